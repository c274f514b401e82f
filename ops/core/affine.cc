#include "core/affine.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/attributes.h"

namespace dynq {

// Whether a number has 11 significant bits or less, as float16 has.
static bool has_11_bits(float number) { return (to_bits(number) & 0x1fff) == 0; }

AffineArithmetic::AffineArithmetic(const char* op, const Attributes& attributes, bool to_codes)
    : scaling_(read_encoding(op, attributes, "scaling", kDivide)),
      order_(read_encoding(op, attributes, "rounding_order", kRoundThenAdd)),
      code_type_(to_codes ? read_code_type(op, attributes, "code_type", kInt8)
                          : read_code_or_float_type(op, attributes, "code_type", kFloat)),
      output_dtype_(to_codes ? read_code_type(op, attributes, "output_dtype", kInt8) : code_type_),
      quant_min_(attributes.integer("quant_min", code_type_ == kUint8 ? 0 : -128)),
      quant_max_(attributes.integer("quant_max", code_type_ == kUint8 ? 255 : 127)) {
  const std::string name = op;
  const bool has_integer_codes = code_type_ != kFloat;
  const bool clip = read_flag(op, attributes, "clip", true);
  const NanCode nan_code =
      read_encoding(op, attributes, "nan_code", has_integer_codes ? NanCode::kZero : NanCode::kNan);
  if ((nan_code == NanCode::kNan) == has_integer_codes)
    throw Error(
        name + ": nan_code is " + text_of(nan_code) + " for codes of " + name_of(code_type_) + ", expected " +
        (has_integer_codes ? text_of(NanCode::kZero) + " or " + text_of(NanCode::kQuantMin) : text_of(NanCode::kNan)));
  if (quant_min_ > quant_max_)
    throw Error(name + ": quant_min is " + std::to_string(quant_min_) + ", quant_max " + std::to_string(quant_max_) +
                ", expected quant_min <= quant_max");
  if (has_integer_codes) {
    const int64_t low = code_type_ == kUint8 ? 0 : -128, high = low + 255;
    if (quant_min_ < low || quant_max_ > high)
      throw Error(name + ": codes are clipped to " + std::to_string(quant_min_) + " to " + std::to_string(quant_max_) +
                  ", expected a range within " + std::to_string(low) + " to " + std::to_string(high) + " of " +
                  name_of(code_type_));
  }
  constants_.low = clip ? quant_min() : -kInfinity;
  constants_.high = clip ? quant_max() : kInfinity;
  constants_.nan_code = nan_code == NanCode::kZero       ? 0.0f
                        : nan_code == NanCode::kQuantMin ? constants_.low
                                                         : std::numeric_limits<float>::quiet_NaN();
  constants_.integer_codes = has_integer_codes;
  constants_.wraps = has_integer_codes && !clip;
  if (constants_.wraps) {
    constants_.low = code_type_ == kUint8 ? 0.0f : -128.0f;
    constants_.high = constants_.low + 255;
    if (nan_code == NanCode::kQuantMin) constants_.nan_code = 0;  // the Cast of -infinity
  }
  constants_.code_offset = static_cast<float>(offset());
  target_ = !to_codes ? kToFloat : output_dtype_ == kUint8 ? kToU8 : kToS8;
}

const AffineKernel* AffineArithmetic::kernels(const ElementwiseKernels& table, bool wraps) const {
  return (wraps ? kPortableKernels : table).affine[scaling_][order_][target_];
}

bool AffineArithmetic::find_bounded(const RowParameters& rows, int64_t count, bool* is_bounded) const {
  // If the quotient underflows, the order of operations decides the sign of the code 0. A bound of 0 before rounding
  // makes +0 of -0.25, whose rounded code -0 lies within the bounds.
  const bool bounds_at_zero = constants_.low == 0 || constants_.high == 0;
  if (order_ == kAddThenRound && code_type_ == kFloat && (scaling_ == kDivide || bounds_at_zero)) {
    std::fill_n(is_bounded, count, false);
    return false;
  }
  // Codes are monotonic in x, so low and high have the extreme codes.
  alignas(64) float lowest[kMostRows], highest[kMostRows];
  find_codes(rows.low, rows.scale, rows.zero_point, count, lowest);
  find_codes(rows.high, rows.scale, rows.zero_point, count, highest);
  const float low = std::max(constants_.low, -kLargestSafeClip), high = std::min(constants_.high, kLargestSafeClip);
  int32_t fits[kMostRows], all = 1;
  for (int64_t i = 0; i < padded(count); ++i) {
    const float scale = rows.scale[i], zp = rows.zero_point[i];
    const int32_t is_not_tiny = scale >= kSmallestSafeScale, is_not_huge = scale <= kLargestSafeScale;
    const int32_t is_narrow = std::fabs(zp) <= static_cast<float>(kNarrowZeroPoint),
                  is_whole = zp == round_half_even(zp);
    const int32_t starts_above = lowest[i] >= low, starts_below = lowest[i] <= high;
    const int32_t ends_above = highest[i] >= low, ends_below = highest[i] <= high;
    fits[i] = is_not_tiny & is_not_huge & is_narrow & is_whole & starts_above & starts_below & ends_above & ends_below;
    all &= fits[i];
  }
  for (int64_t i = 0; i < count; ++i) is_bounded[i] = fits[i] != 0;
  return all != 0;
}

bool AffineArithmetic::may_wrap(const RowParameters& rows, int64_t row) const {
  if (!constants_.wraps) return false;
  // As in find_bounded(). Without a zero point, a NaN code at an end hides no larger code. Either the scale is NaN; or
  // scale and x are 0, and the other end shows whether any element is not; or both are infinite, and finite x have code
  // 0.
  float x[kRowsOfVectors], scales[kRowsOfVectors], zero_points[kRowsOfVectors], codes[kRowsOfVectors];
  for (int64_t i = 0; i < kRowsOfVectors; ++i) {
    x[i] = i == 0 ? rows.low[row] : rows.high[row];
    scales[i] = rows.scale[row];
    zero_points[i] = rows.zero_point[row];
  }
  find_codes(x, scales, zero_points, 2, codes);
  const auto wraps = [&](float code) {
    const bool fits = code >= constants_.low && code <= constants_.high;
    return !fits && !(std::isnan(code) && zero_points[0] == 0);
  };
  return wraps(codes[0]) || wraps(codes[1]);
}

void AffineArithmetic::find_codes(const float* x, const float* scales, const float* zero_points, int64_t count,
                                  float* codes) const {
  float* __restrict code = codes;
  const auto set = [=](const auto& function) {
    for (int64_t i = 0; i < padded(count); ++i) code[i] = function(x[i], scales[i]);
  };
  const auto add = [=](const auto& function) {
    for (int64_t i = 0; i < padded(count); ++i) code[i] = function(code[i]) + zero_points[i];
  };
  if (scaling_ == kDivide)
    set([](float value, float scale) { return value / scale; });
  else if (scaling_ == kMultiply)
    set([](float value, float scale) { return value * scale; });
  else
    set([](float value, float scale) { return value * (1.0f / scale); });
  if (order_ == kFloat16Quotient) round_to_float16(code, count);
  if (adds_first(order_)) add([](float t) { return t; });
  if (order_ == kFloat16Sum) round_to_float16(code, count);
  if (order_ == kRoundThenAdd)
    add(round_half_even);
  else
    for (int64_t i = 0; i < padded(count); ++i) code[i] = round_half_even(code[i]);
}

bool AffineArithmetic::takes_float16(const ElementwiseKernels& table, const float* scales, int64_t count) const {
  if (fake_quantizer(table, true) == nullptr && quantizer(table, true) == nullptr) return false;
  if (order_ != kFloat16Quotient || scaling_ != kDivide) return true;
  const bool is_narrow = constants_.low >= -kLargestRoundedQuotient && constants_.high <= kLargestRoundedQuotient;
  return is_narrow && std::all_of(scales, scales + count, has_11_bits);
}

void AffineArithmetic::store_zero_points(const float* zero_points, int64_t count, uint8_t* codes) const {
  const int32_t shift = offset();
  uint8_t stored[kMostRows];  // codes may alias anything
  for (int64_t i = 0; i < padded(count); ++i) stored[i] = static_cast<uint8_t>(low_byte(zero_points[i]) + shift);
  std::copy_n(stored, count, codes);
}

BoundedKernel AffineArithmetic::fake_quantizer(const ElementwiseKernels& table, bool is_float16) const {
  if (target_ != kToFloat || order_ == kFloat16Sum) return nullptr;
  const BoundedOrder order = order_ == kAddThenRound      ? kAddsFirst
                             : order_ == kFloat16Quotient ? kRoundsQuotient
                                                          : kNoEffectOfZeroPoint;
  return (is_float16 ? table.bounded_f16 : table.bounded)[scaling_][order];
}

QuantizeKernel AffineArithmetic::quantizer(const ElementwiseKernels& table, bool is_float16) const {
  if (target_ == kToFloat || scaling_ != kDivide || adds_first(order_)) return nullptr;
  const Arithmetic arithmetic = order_ == kFloat16Quotient ? kRoundedQuotient : kOnnx;
  return (is_float16 ? table.quantize_f16 : table.quantize)[arithmetic][target_ == kToU8 ? kU8 : kS8][kPerRow];
}

void AffineArithmetic::run(const ElementwiseKernels& table, const void* src, void* dst, bool is_float16,
                           const Extent& extent, const RowParameters& rows, int64_t first, bool bounded) const {
  const float *scales = rows.scale + first, *zps = rows.zero_point + first;
  if (const BoundedKernel kernel = bounded ? fake_quantizer(table, is_float16) : nullptr) {
    // Adding the zero point of kRoundThenAdd and subtracting it again turns -0 into +0, as integer codes do.
    const bool keeps_negative_zero = order_ != kRoundThenAdd && !constants_.integer_codes;
    float reciprocals[kMostRows];
    const bool has_reciprocals = scaling_ == kMultiplyByTheReciprocal;
    for (int64_t i = 0; has_reciprocals && i < extent.rows; ++i) reciprocals[i] = 1.0f / scales[i];
    kernel({extent, src, dst, has_reciprocals ? reciprocals : scales, scales, zps, keeps_negative_zero});
  } else if (const QuantizeKernel to_codes = bounded ? quantizer(table, is_float16) : nullptr) {
    int32_t codes[kMostRows];
    for (int64_t i = 0; i < extent.rows; ++i)
      codes[i] = offset() + (has_zero_point(order_) ? static_cast<int32_t>(zps[i]) : 0);
    to_codes({extent, src, dst, scales, codes, false});
  } else {
    const bool wraps = !bounded && may_wrap(rows, first);
    kernels(table,
            wraps)[kPerRow]({extent, static_cast<const float*>(src), dst, scales, zps, constants_.low, constants_.high,
                             constants_.nan_code, constants_.integer_codes, constants_.code_offset, wraps});
  }
}

}  // namespace dynq
