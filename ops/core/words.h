// Words of the operators with weights of 12 bits: integers that stand for floats. Sums of products of kMaxProducts
// words are exact in int32. kernels/portable_compressed.cc has the arithmetic.
#pragma once

#include <atomic>

#include "core/operator.h"
#include "kernels/compressed.h"

namespace dynq {

constexpr float kLargestOfSrc = 4095;  // of an activation
constexpr int64_t kLargestWeight = 2047;
static_assert(static_cast<int64_t>(kLargestOfSrc) * kLargestWeight * kMaxProducts <= INT32_MAX, "sums are exact");

// The check of the weights of a node: sums of larger words may not fit int32.
class WordRange {
 public:
  // Throws Error if input number `weight`, of int16, has a larger word. A constant is checked once.
  void check(const char* op, Context& context, size_t weight) const;

 private:
  mutable std::atomic<bool> was_checked_ = false;
};

}  // namespace dynq
