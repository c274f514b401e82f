// The arithmetic of quantization chains that exporters write with Div, Round, Add, Clip and Cast.
#pragma once

#include "kernels/kernels.h"
#include "operators/layout.h"

namespace dynq {

// The attributes that say how a chain goes from a float to a code and back. All are integers, so that a function body
// can refer to them: quotient and order number the enumerations of kernels.h; quant_min and quant_max are the clip,
// where `clip` is not 0; code_type is the type that codes are cast to on the way: 2 uint8, 3 int8, 1 none (they stay
// float32); output_dtype is the type that they have in the output, 128 away if it is not code_type; nan says what a NaN
// becomes: 0 the code 0, which is what a Cast makes of it, 1 quant_min, as QuantizeLinear does, 2 it stays NaN
// (code_type 1).
class AffineArithmetic {
 public:
  AffineArithmetic(const char* op, const Attributes& attributes, bool to_codes);

  const Affine& affine() const { return affine_; }
  Type code_type() const { return code_type_; }
  Type output_dtype() const { return output_dtype_; }
  // A zero point of code_type as output_dtype has it, given and returned as a byte.
  uint8_t stored_zero_point(uint8_t code) const { return static_cast<uint8_t>(code + offset()); }
  float quant_min() const { return static_cast<float>(quant_min_); }
  float quant_max() const { return static_cast<float>(quant_max_); }

  // Whether every element between low and high, all of them finite, gets a code within the clip, and the scale is one
  // for which the quicker kernels are exact.
  bool is_bounded(float low, float high, float scale, float zero_point) const;
  // Those kernels: kPerRow, of `table`; how block.zero and block.zps are to be set for them.
  Kernel bounded_kernel(const KernelTable& table) const;
  float bounded_zero() const { return order_ == kRoundThenAdd && target_ == kToFloat ? 0.0f : affine_.zero; }
  int32_t bounded_zero_point(float zero_point) const {
    return offset() + (order_ == kNoAdd ? 0 : static_cast<int32_t>(zero_point));
  }

  // The kernels from float32 to codes, or through codes to float32; by Parameters.
  const Kernel* kernels(const KernelTable& table) const;

 private:
  // What the codes of output_dtype have over those of code_type.
  int32_t offset() const { return 128 * (static_cast<int32_t>(code_type_) - static_cast<int32_t>(output_dtype_)); }

  Quotient quotient_;
  Order order_;
  AffineTarget target_;
  Type code_type_, output_dtype_;
  int64_t quant_min_, quant_max_;
  Affine affine_;
};

}  // namespace dynq
