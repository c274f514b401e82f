// How long sums of products of 8-bit codes may be, and how the sums of two terms are scaled.
#pragma once

#include <cstdint>

namespace dynq {

// The longest sums that cannot overflow int32. Codes minus zero points and weights minus zero points are within +-255.
// 8-bit weights without zero points are within +-128.
constexpr int64_t kMaxSumLength = INT32_MAX / (255 * 255);
constexpr int64_t kMaxSymmetricSumLength = INT32_MAX / (255 * 128);

// is_symmetric: the weights have 8 bits and no zero points.
constexpr int64_t longest_sum(bool is_symmetric) { return is_symmetric ? kMaxSymmetricSumLength : kMaxSumLength; }

constexpr float kTermRatio = 254;  // the scale of the first of two terms / that of the second

// The longest sums of two terms that cannot overflow int32 when they are joined, 254 * the first + the second.
constexpr int64_t kMaxJoinedLength = 128;
static_assert(kMaxJoinedLength * 255 <= kMaxSumLength, "joined sums fit int32");

}  // namespace dynq
