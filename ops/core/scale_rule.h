// How dynamic quantization computes scales and zero points from the ranges of rows, for many rows at once.
#pragma once

#include "core/operator.h"
#include "kernels/elementwise.h"

namespace dynq {

// Rows whose parameters are computed at once. Loops over them are branch-free, so that compilers vectorize them; they
// run over padded(count) rows, for which vectors need no remaining loop.
constexpr int64_t kMostRows = 256, kRowsOfVectors = 8;
constexpr int64_t padded(int64_t count) { return (count + kRowsOfVectors - 1) / kRowsOfVectors * kRowsOfVectors; }

struct RowParameters {
  alignas(64) float low[kMostRows], high[kMostRows];  // the range: the smallest and the largest element
  alignas(64) float scale[kMostRows], zero_point[kMostRows];
};

// Rounds values to float16, which rarely happens.
void round_to_float16(float* values, int64_t count);

// The input `constants`. ort_dynq/operators/encodings.py has the same fields in the same order, and explains them.
struct RangeConstants {
  float lowest_minimum, highest_maximum;
  float lowest_range, highest_range;
  float divisor, factor;
  float lowest_scale, highest_scale;
  float scale_of_zero;
};
constexpr int64_t kRangeConstants = sizeof(RangeConstants) / sizeof(float);

// ONNX Runtime's Cast to uint8 or int8: the low byte of the value as int32; 0 for NaN and for values beyond int32.
inline uint8_t low_byte(float value) {
  const bool fits = value >= -2147483648.0f && value < 2147483648.0f;
  return static_cast<uint8_t>(static_cast<int32_t>(fits ? value : 0.0f));
}

// Computes scales and zero points from ranges. Every step is a float32 operation of the chain that the operator
// replaces. If the chain lacks a step, the step's constant makes it the identity.
class ScaleRule {
 public:
  // is_linear: as DynamicQuantizeLinear. The scale of an empty range is 1, and a zero point that is NaN (the scale
  // underflows to 0, or the minimum is infinite) becomes quant_max. Throws Error for an invalid attribute; `op` is the
  // operator's name for messages.
  ScaleRule(const char* op, const Attributes& attributes, bool is_linear);

  bool is_abs_max() const { return kind_ == RangeKind::kAbsMax; }
  bool is_linear() const { return is_linear_; }

  // Whether the scale or the zero point depends on the signs of zeros in the range: if both ends are zeros, or if a
  // float zero point is a negated minimum that is zero.
  bool depends_on_signs(float low, float high) const {
    const bool negates = rule_ == ZeroPointRule::kRoundNegated && zero_point_type_ == kFloat;
    return !is_abs_max() && low == 0 && (high == 0 || negates);
  }

  // False only if that is so for none of the first `count` rows.
  bool may_depend_on_signs(const RowParameters& rows, int64_t count) const {
    int32_t any = 0;
    for (int64_t i = 0; i < count; ++i) any |= rows.low[i] == 0;
    return any != 0 && !is_abs_max();
  }

  // Sets scale and zero_point of the first `count` rows. Rows of the padding become copies of the last row.
  void apply(const RangeConstants& constants, float quant_min, float quant_max, int64_t count,
             RowParameters& rows) const;

 private:
  void set_zero_points(const float* low, const float* scale, float quant_min, float quant_max, int64_t count,
                       float* zero_point) const;

  bool is_linear_;
  RangeKind kind_;
  ZeroPointRule rule_;
  InverseScale inverse_scale_;
  AddedEpsilon added_epsilon_;
  bool zero_point_before_epsilon_;
  Type zero_point_type_;
  bool float16_range_, float16_scale_;
};

}  // namespace dynq
