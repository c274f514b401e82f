#include "core/states.h"

#include <algorithm>
#include <cstring>

#include "core/rounding.h"
#include "core/scratch.h"
#include "kernels/dispatch.h"
#include "kernels/numbers.h"

namespace dynq {
namespace {

constexpr float kMaxCode = 255;

}  // namespace

StateCodes::StateCodes(const RecurrentWeights<Weight>& weights, int64_t rows)
    : weights_(weights), rows_(rows), depth_(round_up(weights.size, kQuad)), codes_(memory<uint8_t>(rows * depth_)) {
  std::memset(codes_.get(), 0, static_cast<size_t>(rows * depth_));
}

void StateCodes::quantize(const float* states) {
  const ElementwiseKernels& table = active_kernels();
  const int64_t size = weights_.size;
  float lows[kMaxStates] = {}, highs[kMaxStates] = {};
  table.row_ranges[kMinMax](states, rows_, size, size, lows, highs);
  for (int64_t row = 0; row < rows_; ++row) {
    const float scale = (highs[row] - lows[row]) / kMaxCode;
    scales_[row] = scale == 0 ? 1.0f : scale;
    const float steps = -lows[row] / scales_[row];  // NaN if both are infinite
    zps_[row] = steps > 0 ? static_cast<int32_t>(round_half_even(std::min(steps, kMaxCode))) : 0;
  }
  const bool is_packed = depth_ == size;
  for (int64_t row = 0; row < rows_; row += is_packed ? rows_ : 1) {
    QuantizeBlock block = {};
    block.rows = is_packed ? rows_ : 1;
    block.cols = block.stride = size;
    block.src = states + row * size;
    block.dst = codes_.get() + row * depth_;
    block.scales = scales_ + row;
    block.zps = zps_ + row;
    table.quantize[kOnnx][kU8][kPerRow](block);
  }
}

void StateCodes::multiply(int64_t col, int64_t cols, float* to, int64_t stride) const {
  ProductBlock block = {};
  block.rows = rows_;
  block.cols = cols;
  block.depth = depth_;
  block.groups = 1;
  block.output = {to, stride, false};
  block.codes = {codes_.get(), depth_, scales_, zps_, 1, nullptr, false};
  block.weights.packed = weights_.packed + col * depth_;
  block.weights.stride = depth_ * kBlockColumns;
  block.columns.scales = weights_.scales + col;
  block.columns.scale_groups = 1;
  block.columns.sums = weights_.sums + col;
  block.columns.bias = weights_.bias + col;
  block.order = kScalesFirst;
  active_isa().products->gemm_qc8w(block);
}

StateWords::StateWords(const RecurrentWeights<Weight>& weights, int64_t rows)
    : weights_(weights), rows_(rows), words_(rows, weights.size) {}

void StateWords::multiply(int64_t col, int64_t cols, float* to, int64_t stride) const {
  for (int64_t row = 0; row < rows_; ++row)
    std::memcpy(to + row * stride, weights_.bias + col, static_cast<size_t>(cols) * sizeof(float));
  const int16_t* const panels = weights_.packed + col * round_up(weights_.size, kDepth);
  words_.multiply(0, rows_, {panels, weights_.scales + col, cols}, to, stride);
}

}  // namespace dynq
