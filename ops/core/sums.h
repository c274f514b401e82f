// How long sums of products of 8-bit codes may be.
#pragma once

#include <cstdint>

namespace dynq {

// The longest sums that cannot overflow int32: codes minus zero points are within 255, and so are weights minus zero
// points, or within 128 if 8-bit weights have no zero points.
constexpr int64_t kLongestSum = INT32_MAX / (255 * 255);
constexpr int64_t kLongestSymmetricSum = INT32_MAX / (255 * 128);

}  // namespace dynq
