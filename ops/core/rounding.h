// Integer division and multiples, rounded up.
#pragma once

#include <cstdint>

namespace dynq {

constexpr int64_t divide_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit; }
constexpr int64_t round_up(int64_t value, int64_t unit) { return divide_up(value, unit) * unit; }

}  // namespace dynq
