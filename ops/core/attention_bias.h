// The bias of attention, which broadcasts to the scores.
#pragma once

#include <string>

#include "core/operator.h"

namespace dynq {

// Which elements of the bias a row of scores has: strides of the batch, the head, the row and the column.
struct AttentionBias {
  const float* data;
  int64_t strides[4];
};

// `sizes` are B, H, S and T: the dimensions of the bias are these, or 1.
inline AttentionBias attention_bias(const std::string& op, const Tensor& bias, const int64_t (&sizes)[4]) {
  AttentionBias found = {static_cast<const float*>(bias.data), {}};
  bool fits = bias.shape.rank == 4;
  uint64_t stride = 1;  // may overflow if there are no elements
  for (size_t i = 4; fits && i-- > 0;) {
    const int64_t length = bias.shape.dims[i];
    fits = length == sizes[i] || length == 1;
    found.strides[i] = length == 1 ? 0 : static_cast<int64_t>(stride);
    stride *= static_cast<uint64_t>(length);
  }
  if (!fits) {
    std::string expected;
    for (const int64_t size : sizes) expected += (expected.empty() ? "" : "x") + std::to_string(size);
    throw Error(op + ": bias has shape " + bias.shape.text() + ", expected rank 4 and dimensions that broadcast to " +
                expected);
  }
  return found;
}

}  // namespace dynq
