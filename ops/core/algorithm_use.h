// Which algorithm computes a product, for tests and measurements: results are the same.
#pragma once

#include <atomic>

namespace dynq {

// Whether the whole process follows the rule of an algorithm, or takes it wherever it can be used, or nowhere.
enum class AlgorithmUse { kByRule, kAlways, kNever };

inline std::atomic<AlgorithmUse> winograd_use{AlgorithmUse::kByRule};
inline std::atomic<AlgorithmUse> strassen_use{AlgorithmUse::kByRule};
inline std::atomic<AlgorithmUse> conv_rows_use{AlgorithmUse::kByRule};

}  // namespace dynq
