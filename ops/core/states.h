// The states of some sequences of a recurrent layer, and their products with the recurrent weights of a direction: as
// codes of 8 bits, or as words.
#pragma once

#include <cstdint>
#include <memory>

#include "core/words.h"
#include "kernels/products.h"

namespace dynq {

constexpr int64_t kMaxStates = 24;  // that are multiplied at once: several tiles of every kernel

// The weights of a direction, [size, columns], packed in blocks, and numbers of their columns.
template <class T>
struct RecurrentWeights {
  const T* packed;
  const float *scales, *bias;
  const int32_t* sums;  // null with words
  int64_t size, columns;
};

class StateCodes {
 public:
  using Weight = int8_t;
  static constexpr int64_t kColumns = kBlockColumns, kDepth = kQuad;  // of a block of weights
  static constexpr bool kHasSums = true;

  StateCodes(const RecurrentWeights<Weight>& weights, int64_t rows);

  // Makes codes of states, [rows, size]; each has a scale and a zero point, as DynamicQuantizeLinear has them.
  void quantize(const float* states);

  // The products with columns [col, col + cols), and their bias; `col` begins a block of weights.
  void multiply(int64_t col, int64_t cols, float* to, int64_t stride) const;

 private:
  const RecurrentWeights<Weight> weights_;
  const int64_t rows_, depth_;
  const std::unique_ptr<uint8_t[]> codes_;
  float scales_[kMaxStates];
  int32_t zps_[kMaxStates];
};

class StateWords {
 public:
  using Weight = int16_t;
  static constexpr int64_t kColumns = kMaxPanelColumns, kDepth = kWordPair;
  static constexpr bool kHasSums = false;

  StateWords(const RecurrentWeights<Weight>& weights, int64_t rows);

  void quantize(const float* states) const { words_.quantize(states, 0, rows_); }
  void multiply(int64_t col, int64_t cols, float* to, int64_t stride) const;

 private:
  const RecurrentWeights<Weight> weights_;
  const int64_t rows_;
  const WordBlocks words_;
};

}  // namespace dynq
