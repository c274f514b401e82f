// The definition of correct, in plain C++. The loops are shaped so that compilers vectorise them for the baseline of
// any CPU (this is what ARM gets): no calls, no branches on data, conversions by arithmetic.
#include "kernels/kernels.h"

namespace dynq {
namespace {

// Adding and taking away 1.5 * 2^23 leaves a float of magnitude up to 2^22 rounded half to even.
constexpr float kRoundingBias = 12582912.0f;

template <CodeType kType>
struct Code;
template <>
struct Code<kU8> {
  using Type = uint8_t;
  static constexpr int32_t kMin = 0, kMax = 255;
};
template <>
struct Code<kS8> {
  using Type = int8_t;
  static constexpr int32_t kMin = -128, kMax = 127;
};

template <class T>
T clamp(T value, T low, T high) {
  value = value >= low ? value : low;  // false for NaN, which therefore becomes `low`
  return value <= high ? value : high;
}

int32_t round_half_even(float value) { return static_cast<int32_t>((value + kRoundingBias) - kRoundingBias); }

bool is_narrow(int32_t zp) { return zp >= -kNarrowZeroPoint && zp <= kNarrowZeroPoint; }

// Any zero point: in double every float quotient and every int32 are exact, and so is the comparison of their sum
// with the bounds, which is all that saturation asks.
template <CodeType kType>
int32_t quantize_wide(float x, float scale, int32_t zp) {
  const float quotient = x / scale;
  constexpr double kInt52 = 6755399441055744.0;  // 1.5 * 2^52 rounds doubles as kRoundingBias rounds floats
  const double bounded = clamp(static_cast<double>(quotient), -1e12, 1e12);
  const double rounded = (bounded + kInt52) - kInt52;
  return static_cast<int32_t>(
      clamp(rounded + zp, static_cast<double>(Code<kType>::kMin), static_cast<double>(Code<kType>::kMax)));
}

template <CodeType kType>
int32_t quantize_onnx(float x, float scale, int32_t zp) {
  const float low = static_cast<float>(Code<kType>::kMin - zp), high = static_cast<float>(Code<kType>::kMax - zp);
  return round_half_even(clamp(x / scale, low, high)) + zp;
}

template <CodeType kType>
int32_t quantize_onednn(float x, float reciprocal, float zp) {
  const float low = static_cast<float>(Code<kType>::kMin), high = static_cast<float>(Code<kType>::kMax);
  return round_half_even(clamp(x * reciprocal + zp, low, high));
}

// dst[i] = function(src[i], i). Restricted pointers and a local count are what the vectoriser needs: codes are
// characters, which otherwise might alias anything.
template <class In, class Out, class Function>
void map(const In* __restrict src, Out* __restrict dst, int64_t count, Function function) {
  for (int64_t i = 0; i < count; ++i) store(dst + i, static_cast<Out>(function(load(src + i), i)));
}

template <class In, class Out, class Function>
void map_rows(const Block& block, Function function_of_row) {
  for (int64_t row = 0; row < block.rows; ++row)
    function_of_row(row, static_cast<const In*>(block.src) + row * block.stride,
                    static_cast<Out*>(block.dst) + row * block.stride);
}

template <Arithmetic kArithmetic, CodeType kType>
void quantize_rows(const Block& block) {
  using T = typename Code<kType>::Type;
  map_rows<float, T>(block, [&](int64_t row, const float* src, T* dst) {
    const float scale = block.scales[row];
    const int32_t zp = block.zps[row];
    if (kArithmetic == kOneDnn) {
      const float reciprocal = 1.0f / scale, zp_f32 = static_cast<float>(zp);
      map(src, dst, block.cols, [=](float x, int64_t) { return quantize_onednn<kType>(x, reciprocal, zp_f32); });
    } else if (is_narrow(zp)) {
      map(src, dst, block.cols, [=](float x, int64_t) { return quantize_onnx<kType>(x, scale, zp); });
    } else {
      map(src, dst, block.cols, [=](float x, int64_t) { return quantize_wide<kType>(x, scale, zp); });
    }
  });
}

bool are_narrow(const int32_t* zps, int64_t count) {
  int32_t wide = 0;
  for (int64_t i = 0; i < count; ++i) wide |= !is_narrow(zps[i]);
  return wide == 0;
}

template <Arithmetic kArithmetic, CodeType kType>
void quantize_columns(const Block& block) {
  using T = typename Code<kType>::Type;
  const float* scales = block.scales;
  const int32_t* zps = block.zps;
  float reciprocals[kMaxParameters];
  if (kArithmetic == kOneDnn)
    for (int64_t i = 0; i < block.cols; ++i) reciprocals[i] = 1.0f / scales[i];
  const float* inverse = reciprocals;
  const bool narrow = are_narrow(zps, block.cols);
  map_rows<float, T>(block, [&](int64_t, const float* src, T* dst) {
    if (kArithmetic == kOneDnn)
      map(src, dst, block.cols,
          [=](float x, int64_t i) { return quantize_onednn<kType>(x, inverse[i], static_cast<float>(zps[i])); });
    else if (narrow)
      map(src, dst, block.cols, [=](float x, int64_t i) { return quantize_onnx<kType>(x, scales[i], zps[i]); });
    else
      map(src, dst, block.cols, [=](float x, int64_t i) { return quantize_wide<kType>(x, scales[i], zps[i]); });
  });
}

// The difference of an 8-bit code and a narrow zero point is exact in float32; a wide one needs 33 bits.
float dequantize_narrow(int32_t code, float scale, int32_t zp) { return static_cast<float>(code - zp) * scale; }
float dequantize_wide(int32_t code, float scale, int32_t zp) {
  return static_cast<float>(static_cast<int64_t>(code) - zp) * scale;
}

template <CodeType kType>
void dequantize_rows(const Block& block) {
  using T = typename Code<kType>::Type;
  map_rows<T, float>(block, [&](int64_t row, const T* src, float* dst) {
    const float scale = block.scales[row];
    const int32_t zp = block.zps[row];
    if (is_narrow(zp))
      map(src, dst, block.cols, [=](int32_t code, int64_t) { return dequantize_narrow(code, scale, zp); });
    else
      map(src, dst, block.cols, [=](int32_t code, int64_t) { return dequantize_wide(code, scale, zp); });
  });
}

template <CodeType kType>
void dequantize_columns(const Block& block) {
  using T = typename Code<kType>::Type;
  const float* scales = block.scales;
  const int32_t* zps = block.zps;
  const bool narrow = are_narrow(zps, block.cols);
  map_rows<T, float>(block, [&](int64_t, const T* src, float* dst) {
    if (narrow)
      map(src, dst, block.cols, [=](int32_t code, int64_t i) { return dequantize_narrow(code, scales[i], zps[i]); });
    else
      map(src, dst, block.cols, [=](int32_t code, int64_t i) { return dequantize_wide(code, scales[i], zps[i]); });
  });
}

// Rounds half to even whatever the magnitude: from 2^23 on every float is an integer. The sign of zero stays, as
// Round's does. (rintf would do, but is a call on a baseline without SSE4.1.)
float round_any(float value) {
  constexpr float kEveryFloatIsWhole = 8388608.0f;
  const float magnitude = __builtin_fabsf(value);
  const float rounded =
      magnitude < kEveryFloatIsWhole ? (magnitude + kEveryFloatIsWhole) - kEveryFloatIsWhole : magnitude;
  return __builtin_copysignf(rounded, value);
}

// ONNX's Clip: a NaN stays one.
float clip(float value, float low, float high) {
  value = value < low ? low : value;
  return value > high ? high : value;
}

template <Quotient kQuotient, Order kOrder>
float affine_code(const Block& block, float x, float scale, float zp) {
  const float t = kQuotient == kDivide ? x / scale : kQuotient == kMultiply ? x * scale : x * (1.0f / scale);
  const float code = kOrder == kRoundThenAdd   ? clip(round_any(t) + zp, block.low, block.high)
                     : kOrder == kAddThenRound ? round_any(clip(t + zp, block.low, block.high))
                                               : clip(round_any(t), block.low, block.high);
  const float defined = code != code ? block.nan : code;
  return has_integer_codes(block) ? __builtin_truncf(defined) + block.zero : defined;
}

template <AffineTarget kTarget>
struct AffineOutput {
  using Type = float;
};
template <>
struct AffineOutput<kToU8> {
  using Type = uint8_t;
};
template <>
struct AffineOutput<kToS8> {
  using Type = int8_t;
};

template <Quotient kQuotient, Order kOrder, AffineTarget kTarget, Parameters kParameters>
void affine(const Block& block) {
  using T = typename AffineOutput<kTarget>::Type;
  map_rows<float, T>(block, [&](int64_t row, const float* src, T* dst) {
    map(src, dst, block.cols, [block, row](float x, int64_t column) -> T {
      const int64_t i = kParameters == kPerRow ? row : column;
      const float scale = block.scales[i], zp = block.float_zps[i];
      const float code = affine_code<kQuotient, kOrder>(block, x, scale, zp);
      if (kTarget != kToFloat) return static_cast<T>(code);
      const float difference = kOrder == kNoAdd ? code : code - zp;
      return static_cast<T>(kQuotient == kMultiply ? difference / scale : difference * scale);
    });
  });
}

template <Quotient kQuotient, bool kAddFirst>
void bounded(const Block& block) {
  map_rows<float, float>(block, [&](int64_t row, const float* src, float* dst) {
    const float scale = block.scales[row], reciprocal = 1.0f / scale, zp = block.float_zps[row], zero = block.zero;
    map(src, dst, block.cols, [=](float x, int64_t) {
      const float t = kQuotient == kDivide ? x / scale : kQuotient == kMultiply ? x * scale : x * reciprocal;
      const float code = round_any(kAddFirst ? t + zp : t) + zero;
      const float difference = kAddFirst ? code - zp : code;
      return kQuotient == kMultiply ? difference / scale : difference * scale;
    });
  });
}

template <bool kMagnitude>
void range(const float* x, int64_t count, float result[3]) {
  float low = __builtin_inff(), high = kMagnitude ? 0.0f : -__builtin_inff(), finite = 0.0f;
  for (int64_t i = 0; i < count; ++i) {
    const float element = load(x + i), v = kMagnitude && element < 0 ? -element : element;
    low = v < low ? v : low;
    high = v > high ? v : high;
    finite += v * 0.0f;  // 0 for as long as every element is finite
  }
  const float first = load(x);
  const bool is_nan = first != first;
  result[0] = is_nan ? first : kMagnitude ? 0.0f : low;
  result[1] = is_nan ? first : high;
  result[2] = finite;
}

template <ScaleOrder kOrder>
void accumulators(const Accumulators& block) {
  for (int64_t row = 0; row < block.rows; ++row) {
    const float scale = block.scales[row], *column_scales = block.column_scales, *bias = block.bias;
    const uint32_t zp = static_cast<uint32_t>(block.zps[row]);
    const int32_t* sums = block.column_sums;
    map(block.src + row * block.stride, block.dst + row * block.stride, block.cols, [=](int32_t acc, int64_t i) {
      const uint32_t exact = static_cast<uint32_t>(acc) - zp * static_cast<uint32_t>(load(sums + i));
      const float real = static_cast<float>(static_cast<int32_t>(exact)), column = load(column_scales + i);
      const float scaled = kOrder == kScalesFirst ? real * (scale * column)
                           : kOrder == kRowFirst  ? real * scale * column
                                                  : real * column * scale;
      return scaled + load(bias + i);
    });
  }
}

template <bool kMagnitude>
void row_range(const float* x, int64_t rows, int64_t cols, int64_t stride, float* low, float* high) {
  constexpr int64_t kLanes = 8;
  for (int64_t row = 0; row < rows; ++row) {
    const float* from = x + row * stride;
    float l[kLanes], h[kLanes];
    for (int64_t k = 0; k < kLanes; ++k) {
      l[k] = kMagnitude ? 0.0f : low[row];
      h[k] = high[row];
    }
    const auto take = [&](int64_t k, float v) {
      if (kMagnitude) v = __builtin_fabsf(v);
      l[k] = v < l[k] ? v : l[k];
      h[k] = v > h[k] ? v : h[k];
    };
    int64_t i = 0;
    for (; i + kLanes <= cols; i += kLanes)
      for (int64_t k = 0; k < kLanes; ++k) take(k, load(from + i + k));
    for (; i < cols; ++i) take(0, load(from + i));
    for (int64_t k = 0; k < kLanes; ++k) {
      if (!kMagnitude) low[row] = l[k] < low[row] ? l[k] : low[row];
      high[row] = h[k] > high[row] ? h[k] : high[row];
    }
  }
}

template <bool kMagnitude>
void column_range(const float* x, int64_t rows, int64_t cols, int64_t stride, float* __restrict low,
                  float* __restrict high) {
  for (int64_t row = 0; row < rows; ++row) {
    const float* __restrict from = x + row * stride;
    for (int64_t i = 0; i < cols; ++i) {
      const float v = kMagnitude ? __builtin_fabsf(load(from + i)) : load(from + i);
      if (!kMagnitude) low[i] = v < low[i] ? v : low[i];
      high[i] = v > high[i] ? v : high[i];
    }
  }
}

constexpr KernelTable kPortable = {
    "portable",
    {{{quantize_rows<kOnnx, kU8>, quantize_columns<kOnnx, kU8>},
      {quantize_rows<kOnnx, kS8>, quantize_columns<kOnnx, kS8>}},
     {{quantize_rows<kOneDnn, kU8>, quantize_columns<kOneDnn, kU8>},
      {quantize_rows<kOneDnn, kS8>, quantize_columns<kOneDnn, kS8>}}},
    {{dequantize_rows<kU8>, dequantize_columns<kU8>}, {dequantize_rows<kS8>, dequantize_columns<kS8>}},
    ORT_DYNQ_AFFINE_TABLE,
    {{bounded<kDivide, false>, bounded<kDivide, true>},
     {bounded<kMultiplyReciprocal, false>, bounded<kMultiplyReciprocal, true>},
     {bounded<kMultiply, false>, bounded<kMultiply, true>}},
    range<false>,
    range<true>,
    {accumulators<kScalesFirst>, accumulators<kRowFirst>, accumulators<kColumnFirst>},
    {row_range<false>, column_range<false>},
    {row_range<true>, column_range<true>},
};

}  // namespace

const KernelTable& portable_kernels() noexcept { return kPortable; }

}  // namespace dynq
