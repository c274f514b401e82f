// The arithmetic of quantization chains that exporters write with Div, Round, Add, Clip and Cast. Shared by the affine
// and the dynamic range operators.
#pragma once

#include "core/layout.h"
#include "core/scale_rule.h"

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

  // Converts zero points, integers of code_type, to codes of output_dtype. There are padded(count) zero points.
  void store_zero_points(const float* zero_points, int64_t count, uint8_t* codes) const;

  // The affine kernels, for each of Parameters, and their constants.
  const AffineKernel* kernels(const ElementwiseKernels& table) const { return kernels(table, constants_.wraps); }
  const AffineConstants& constants() const { return constants_; }

  // Sets whether all elements between low and high of each of the first `count` rows, both finite, have a code within
  // the clip, and the faster kernels are exact for this scale and zero point. Returns whether this holds for all rows.
  bool find_bounded(const RowParameters& rows, int64_t count, bool* is_bounded) const;

  // Quantizes adjacent rows, which are rows number `first` and following of `rows`. `bounded`: as find_bounded() says,
  // and all elements are finite. If not, there is one row, whose elements are NaN or between low and high, which are
  // NaN only if the scale is. `is_float16`: floats of src and dst are float16, not float; only if takes_float16().
  void run(const ElementwiseKernels& table, const void* src, void* dst, bool is_float16, const Extent& extent,
           const RowParameters& rows, int64_t first, bool bounded) const;

  // Whether run() takes float16 for bounded rows of these scales.
  bool takes_float16(const ElementwiseKernels& table, const float* scales, int64_t count) const;

 private:
  // The faster kernels, for elements that are bounded; null if there is none.
  BoundedKernel fake_quantizer(const ElementwiseKernels& table, bool is_float16) const;
  QuantizeKernel quantizer(const ElementwiseKernels& table, bool is_float16) const;
  const AffineKernel* kernels(const ElementwiseKernels& table, bool wraps) const;

  // Whether the code of an element of a row may wrap around.
  bool may_wrap(const RowParameters& rows, int64_t row) const;

  // The codes of x[i] before they are clipped. All arrays have padded(count) elements.
  void find_codes(const float* x, const float* scales, const float* zero_points, int64_t count, float* codes) const;

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
