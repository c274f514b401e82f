// The arithmetic of quantization chains that exporters write with Div, Round, Add, Clip and Cast. Shared by the affine
// and the dynamic range operators.
#pragma once

#include "core/layout.h"

namespace dynq {

// The attributes that define how float32 becomes a code and is dequantized again. `to_codes`: the output has codes, not
// their dequantized values.
//
//   scaling, rounding_order  the formulas of kernels/elementwise.h
//   quant_min, quant_max     codes are clipped to them, unless clip is 0; integer codes wrap around then
//   code_type                the type that the chain casts codes to; float32: it does not
//   output_dtype             the type of codes in the output; if it is not code_type, codes are shifted by 128
//   nan_code                 the code of NaN
class AffineArithmetic {
 public:
  // Throws Error for an invalid value. `op` is the operator's name for messages.
  AffineArithmetic(const char* op, const Attributes& attributes, bool to_codes);

  Type output_dtype() const { return output_dtype_; }
  float quant_min() const { return static_cast<float>(quant_min_); }
  float quant_max() const { return static_cast<float>(quant_max_); }

  // Converts a zero point of code_type to output_dtype; both are given as a byte.
  uint8_t stored_zero_point(uint8_t code) const { return static_cast<uint8_t>(code + offset()); }

  // The affine kernels, for each of Parameters, and their constants.
  const AffineKernel* kernels(const ElementwiseKernels& table) const { return kernels(table, constants_.wraps); }
  const AffineConstants& constants() const { return constants_; }

  // Whether all elements between low and high, both finite, have a code within the clip, and the faster kernels are
  // exact for this scale and zero point.
  bool is_bounded(float low, float high, float scale, float zero_point) const;

  // Whether the code of an element may wrap around. Elements are NaN or between low and high, which are NaN only if the
  // scale is.
  bool may_wrap(float low, float high, float scale, float zero_point) const;

  // Quantizes `count` elements with one scale and one zero point. `bounded`: is_bounded() holds for them. `wraps`:
  // may_wrap() holds. `is_float16`: floats of src and dst are float16, not float; only if takes_float16().
  void run(const ElementwiseKernels& table, const void* src, void* dst, bool is_float16, int64_t count, float scale,
           float zero_point, bool bounded, bool wraps) const;

  // Whether run() takes float16.
  bool takes_float16(const ElementwiseKernels& table, bool bounded, float scale) const;

 private:
  // The faster kernels, for elements that are bounded; null if there is none.
  BoundedKernel fake_quantizer(const ElementwiseKernels& table, bool is_float16) const;
  QuantizeKernel quantizer(const ElementwiseKernels& table, bool is_float16) const;
  const AffineKernel* kernels(const ElementwiseKernels& table, bool wraps) const;

  // The code of x before it is clipped.
  float code_of(float x, float scale, float zero_point) const;

  // Codes of output_dtype minus codes of code_type.
  int32_t offset() const { return 128 * (static_cast<int32_t>(code_type_) - static_cast<int32_t>(output_dtype_)); }

  Scaling scaling_;
  RoundingOrder order_;
  AffineTarget target_;
  Type code_type_, output_dtype_;
  int64_t quant_min_, quant_max_;
  AffineConstants constants_;
};

}  // namespace dynq
