// The portable elementwise kernels in plain C++: they define the correct results. Loops have no calls and no branches
// on data, and convert by arithmetic, so compilers vectorize them for the baseline of any CPU.
#include <math.h>

#include "kernels/elementwise.h"

namespace dynq {
namespace {

// Adding and subtracting 1.5 * 2^23 rounds a float of magnitude up to 2^22 half to even.
constexpr float kRoundingBias = 12582912.0f;

template <CodeKind kKind>
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

// The low bits of value + kRoundingBias hold the rounded integer. Taking them as they are is faster than a conversion.
int32_t round_to_int(float value) {
  constexpr int32_t kBitsOfRoundingBias = 0x4B400000;
  const float shifted = value + kRoundingBias;
  int32_t bits;
  memcpy(&bits, &shifted, sizeof bits);
  return bits - kBitsOfRoundingBias;
}

bool is_narrow(int32_t zp) { return zp >= -kNarrowZeroPoint && zp <= kNarrowZeroPoint; }

// For any zero point. In double, every float quotient, every int32 and the comparison of their sum with the bounds are
// exact.
template <CodeKind kKind>
int32_t quantize_wide(float quotient, int32_t zp) {
  constexpr double kInt52 = 6755399441055744.0;  // 1.5 * 2^52 rounds doubles as kRoundingBias rounds floats
  const double bounded = clamp(static_cast<double>(quotient), -1e12, 1e12);
  const double rounded = (bounded + kInt52) - kInt52;
  return static_cast<int32_t>(
      clamp(rounded + zp, static_cast<double>(Code<kKind>::kMin), static_cast<double>(Code<kKind>::kMax)));
}

template <CodeKind kKind>
int32_t quantize_onnx(float quotient, int32_t zp) {
  const float low = static_cast<float>(Code<kKind>::kMin - zp), high = static_cast<float>(Code<kKind>::kMax - zp);
  return round_to_int(clamp(quotient, low, high)) + zp;
}

template <CodeKind kKind>
int32_t quantize_onednn(float x, float reciprocal, float zp) {
  const float low = static_cast<float>(Code<kKind>::kMin), high = static_cast<float>(Code<kKind>::kMax);
  return round_to_int(clamp(x * reciprocal + zp, low, high));
}

template <CodeKind kKind>
int32_t quantize_wrapping(float x, float scale, int32_t zp) {
  constexpr float kAboveInt32 = 2147483648.0f, kHighestInt32 = 2147483520.0f;  // as floats
  const float quotient = x / scale;
  const int32_t rounded = static_cast<int32_t>(round_half_even(clamp(quotient, -kAboveInt32, kHighestInt32)));
  const uint32_t sum = static_cast<uint32_t>(quotient < kAboveInt32 ? rounded : INT32_MIN) + static_cast<uint32_t>(zp);
  return clamp(static_cast<int32_t>(sum), Code<kKind>::kMin, Code<kKind>::kMax);
}

// dst[i] = function(src[i], i). The vectorizer needs restricted pointers and a local count: codes are of a character
// type, which may alias anything.
template <class In, class Out, class Function>
void map(const In* __restrict src, Out* __restrict dst, int64_t count, Function function) {
  for (int64_t i = 0; i < count; ++i) store(dst + i, static_cast<Out>(function(load(src + i), i)));
}

// function_of_row(row, src, dst) for every row.
template <class In, class Out, class Block, class Function>
void map_rows(const Block& block, Function function_of_row) {
  for (int64_t row = 0; row < block.rows; ++row)
    function_of_row(row, static_cast<const In*>(block.src) + row * block.stride,
                    static_cast<Out*>(block.dst) + row * block.stride);
}

template <Arithmetic kArithmetic, CodeKind kKind>
void quantize_rows(const QuantizeBlock& block) {
  using T = typename Code<kKind>::Type;
  map_rows<float, T>(block, [&](int64_t row, const float* src, T* dst) {
    const float scale = block.scales[row];
    const int32_t zp = block.zps[row];
    if (kArithmetic == kOneDnn) {
      const float reciprocal = 1.0f / scale, zp_f32 = static_cast<float>(zp);
      map(src, dst, block.cols, [=](float x, int64_t) { return quantize_onednn<kKind>(x, reciprocal, zp_f32); });
    } else if (kArithmetic == kWrapping) {
      map(src, dst, block.cols, [=](float x, int64_t) { return quantize_wrapping<kKind>(x, scale, zp); });
    } else if (is_narrow(zp)) {
      map(src, dst, block.cols,
          [=](float x, int64_t) { return quantize_onnx<kKind>(kArithmetic == kProduct ? x * scale : x / scale, zp); });
    } else {
      map(src, dst, block.cols,
          [=](float x, int64_t) { return quantize_wide<kKind>(kArithmetic == kProduct ? x * scale : x / scale, zp); });
    }
  });
}

bool are_narrow(const int32_t* zps, int64_t count) {
  int32_t wide = 0;
  for (int64_t i = 0; i < count; ++i) wide |= !is_narrow(zps[i]);
  return wide == 0;
}

template <Arithmetic kArithmetic, CodeKind kKind>
void quantize_columns(const QuantizeBlock& block) {
  using T = typename Code<kKind>::Type;
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
          [=](float x, int64_t i) { return quantize_onednn<kKind>(x, inverse[i], static_cast<float>(zps[i])); });
    else if (kArithmetic == kWrapping)
      map(src, dst, block.cols, [=](float x, int64_t i) { return quantize_wrapping<kKind>(x, scales[i], zps[i]); });
    else if (narrow)
      map(src, dst, block.cols, [=](float x, int64_t i) { return quantize_onnx<kKind>(x / scales[i], zps[i]); });
    else
      map(src, dst, block.cols, [=](float x, int64_t i) { return quantize_wide<kKind>(x / scales[i], zps[i]); });
  });
}

// The difference of an 8-bit code and a narrow zero point is exact in float32; with a wide zero point it has 33 bits.
float dequantize_narrow(int32_t code, float scale, int32_t zp) { return static_cast<float>(code - zp) * scale; }
float dequantize_wide(int32_t code, float scale, int32_t zp) {
  return static_cast<float>(static_cast<int64_t>(code) - zp) * scale;
}

template <CodeKind kKind>
void dequantize_rows(const DequantizeBlock& block) {
  using T = typename Code<kKind>::Type;
  map_rows<T, float>(block, [&](int64_t row, const T* src, float* dst) {
    const float scale = block.scales[row];
    const int32_t zp = block.zps[row];
    if (is_narrow(zp))
      map(src, dst, block.cols, [=](int32_t code, int64_t) { return dequantize_narrow(code, scale, zp); });
    else
      map(src, dst, block.cols, [=](int32_t code, int64_t) { return dequantize_wide(code, scale, zp); });
  });
}

template <CodeKind kKind>
void dequantize_columns(const DequantizeBlock& block) {
  using T = typename Code<kKind>::Type;
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

// ONNX's Clip: NaN stays NaN.
float clip(float value, float low, float high) {
  value = value < low ? low : value;
  return value > high ? high : value;
}

template <Parameters kParameters>
void fake_quantize(const FakeQuantizeBlock& block) {
  map_rows<float, float>(block, [&](int64_t row, const float* src, float* dst) {
    map(src, dst, block.cols, [block, row](float x, int64_t column) -> float {
      const int64_t i = kParameters == kPerRow ? row : column;
      const float scale = block.scales[i], zp = block.zps[i];
      const float code = clip(round_half_even(x / scale) + zp, block.low, block.high);
      const float number = code != code ? block.low : code + 0.0f;  // no code is -0
      return (number - zp) * scale;
    });
  });
}

template <Scaling kScaling, bool kAddFirst>
void bounded(const BoundedBlock& block) {
  map_rows<float, float>(block, [&](int64_t row, const float* src, float* dst) {
    const float scale = block.scales[row], factor = block.factors[row], zp = kAddFirst ? block.zps[row] : 0;
    const float zero = block.keeps_negative_zero ? -0.0f : 0.0f;
    for (int64_t i = 0; i < block.cols; ++i) {  // src may be dst, so `map` would be undefined
      const float x = load(src + i), t = kScaling == kDivide ? x / scale : x * scale;
      const float code = round_half_even(kAddFirst ? t + zp : t) + zero;
      const float difference = kAddFirst ? code - zp : code;
      store(dst + i, kScaling == kMultiply ? difference / factor : difference * factor);
    }
  });
}

// Copies up to kMaxCount elements; most times kMaxCount, which takes no call.
template <int64_t kMaxCount, class T>
void copy_some(const T* from, T* to, int64_t count) {
  if (count == kMaxCount)
    memcpy(to, from, kMaxCount * sizeof(T));
  else
    memcpy(to, from, static_cast<size_t>(count) * sizeof(T));
}

void two_terms(const TwoTermBlock& block) {
  constexpr int64_t kSome = 16;
  for (int64_t row = 0; row < block.rows; ++row) {
    const float inverse = block.inverses[row];
    for (int64_t col = 0; col < block.cols; col += kSome) {
      const int64_t at = row * block.cols + col;
      const int64_t count = block.cols - col < kSome ? block.cols - col : kSome;
      float x[kSome] = {};
      int8_t codes[kSome], remainders[kSome];
      copy_some<kSome>(block.src + at, x, count);
      for (int64_t i = 0; i < kSome; ++i) {
        const float scaled = x[i] * inverse, t = scaled == scaled ? scaled : 0.0f;
        const int32_t code = round_to_int(clamp(t, -127.0f, 127.0f));
        const float rest = (t - static_cast<float>(code)) * 254.0f;
        codes[i] = static_cast<int8_t>(code);
        remainders[i] = static_cast<int8_t>(round_to_int(clamp(rest, -127.0f, 127.0f)));
      }
      copy_some<kSome>(codes, block.codes + at, count);
      copy_some<kSome>(remainders, block.remainders + at, count);
    }
  }
}

template <Extremes kKind>
Range range(const void* elements, int64_t count) {
  const auto* x = static_cast<const float*>(elements);
  float low = kInfinity, high = kKind == kAbsMax ? 0.0f : -kInfinity, not_finite = 0.0f;
  for (int64_t i = 0; i < count; ++i) {
    const float element = load(x + i), v = kKind == kAbsMax && element < 0 ? -element : element;
    low = v < low ? v : low;
    high = v > high ? v : high;
    not_finite += v * 0.0f;  // 0 while every element is finite
  }
  const float first = load(x);
  const bool is_nan = first != first;
  if (is_nan) return {first, first, not_finite};
  return {kKind == kAbsMax ? 0.0f : low, high, not_finite};
}

template <Extremes kKind>
void row_range(const float* from, int64_t cols, float* low, float* high) {
  constexpr int64_t kLanes = 8;
  float l[kLanes], h[kLanes];
  for (int64_t k = 0; k < kLanes; ++k) {
    l[k] = kKind == kAbsMax ? 0.0f : *low;
    h[k] = *high;
  }
  const auto take = [&](int64_t k, float v) {
    if (kKind == kAbsMax) v = fabsf(v);
    l[k] = v < l[k] ? v : l[k];
    h[k] = v > h[k] ? v : h[k];
  };
  int64_t i = 0;
  for (; i + kLanes <= cols; i += kLanes)
    for (int64_t k = 0; k < kLanes; ++k) take(k, load(from + i + k));
  for (; i < cols; ++i) take(0, load(from + i));
  for (int64_t k = 0; k < kLanes; ++k) {
    if (kKind == kMinMax) *low = l[k] < *low ? l[k] : *low;
    *high = h[k] > *high ? h[k] : *high;
  }
}

template <Extremes kKind>
bool row_ranges(const float* x, int64_t rows, int64_t cols, int64_t stride, float* low, float* high) {
  int32_t not_finite = 0;
  for (int64_t row = 0; row < rows; ++row) {
    const float* from = x + row * stride;
    row_range<kKind>(from, cols, kKind == kAbsMax ? nullptr : low + row, high + row);
    for (int64_t i = 0; i < cols; ++i) not_finite |= (to_bits(load(from + i)) & kMagnitudeBits) >= kInfiniteBits;
  }
  return not_finite == 0;
}

template <Extremes kKind>
void column_ranges(const float* x, int64_t rows, int64_t cols, int64_t stride, float* __restrict low,
                   float* __restrict high) {
  for (int64_t row = 0; row < rows; ++row) {
    const float* __restrict from = x + row * stride;
    for (int64_t i = 0; i < cols; ++i) {
      const float v = kKind == kAbsMax ? fabsf(load(from + i)) : load(from + i);
      if (kKind == kMinMax) low[i] = v < low[i] ? v : low[i];
      high[i] = v > high[i] ? v : high[i];
    }
  }
}

float widen_bf16(uint16_t half) { return from_bits(static_cast<uint32_t>(half) << 16); }

uint16_t narrow_bf16(float value) {
  const uint32_t bits = to_bits(value);
  const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16, nan = (bits >> 16 & 0x8000) | 0x7fc0;
  return static_cast<uint16_t>((bits & kMagnitudeBits) > kInfiniteBits ? nan : rounded);
}

template <float (*kConvert)(uint16_t)>
void widen_half(const void* src, void* dst, int64_t count) {
  map(static_cast<const uint16_t*>(src), static_cast<float*>(dst), count,
      [](uint16_t value, int64_t) { return kConvert(value); });
}

template <uint16_t (*kConvert)(float)>
void narrow_half(const void* src, void* dst, int64_t count) {
  map(static_cast<const float*>(src), static_cast<uint16_t*>(dst), count,
      [](float value, int64_t) { return kConvert(value); });
}

template <CodeKind kKind>
void widen_codes(const void* src, void* dst, int64_t count) {
  constexpr int kSign = kKind == kS8 ? 8 : 0;  // the bit of weight -8
  const auto* from = static_cast<const uint8_t*>(src);
  auto* to = static_cast<uint8_t*>(dst);
  for (int64_t i = 0; i < count; ++i) to[i] = static_cast<uint8_t>(((from[i / 2] >> (i % 2 * 4) & 15) ^ kSign) - kSign);
}

template <CodeKind kKind>
void narrow_codes(const void* src, void* dst, int64_t count) {
  using T = typename Code<kKind>::Type;
  const auto* from = static_cast<const T*>(src);
  auto* to = static_cast<uint8_t*>(dst);
  const auto code = [=](int64_t i) {
    return clamp<int32_t>(from[i], Code<kKind>::kMin / 16, Code<kKind>::kMax / 16) & 15;
  };
  for (int64_t i = 0; i < count / 2; ++i) to[i] = static_cast<uint8_t>(code(2 * i) | code(2 * i + 1) << 4);
  if (count % 2 != 0) to[count / 2] = static_cast<uint8_t>(code(count - 1));
}

template <CodeKind kKind>
constexpr void set_codes(ElementwiseKernels& table) {
  table.quantize[kOnnx][kKind][kPerRow] = quantize_rows<kOnnx, kKind>;
  table.quantize[kOnnx][kKind][kPerColumn] = quantize_columns<kOnnx, kKind>;
  table.quantize[kOneDnn][kKind][kPerRow] = quantize_rows<kOneDnn, kKind>;
  table.quantize[kOneDnn][kKind][kPerColumn] = quantize_columns<kOneDnn, kKind>;
  table.quantize[kWrapping][kKind][kPerRow] = quantize_rows<kWrapping, kKind>;
  table.quantize[kWrapping][kKind][kPerColumn] = quantize_columns<kWrapping, kKind>;
  table.quantize[kProduct][kKind][kPerRow] = quantize_rows<kProduct, kKind>;
  table.dequantize[kKind][kPerRow] = dequantize_rows<kKind>;
  table.dequantize[kKind][kPerColumn] = dequantize_columns<kKind>;
}

template <Scaling kScaling>
constexpr void set_bounded(ElementwiseKernels& table) {
  table.bounded[kScaling][kNoEffectOfZeroPoint] = bounded<kScaling, false>;
  table.bounded[kScaling][kAddsFirst] = bounded<kScaling, true>;
}

// Kernels that are not set are null: float16 and codes of 4 bits are converted.
constexpr ElementwiseKernels elementwise_kernels() {
  ElementwiseKernels table = {};
  set_codes<kU8>(table);
  set_codes<kS8>(table);
  table.fake_quantize[kPerRow] = fake_quantize<kPerRow>;
  table.fake_quantize[kPerColumn] = fake_quantize<kPerColumn>;
  set_bounded<kDivide>(table);
  set_bounded<kMultiplyByTheReciprocal>(table);
  set_bounded<kMultiply>(table);
  table.two_terms = two_terms;
  table.ranges[kMinMax] = range<kMinMax>;
  table.ranges[kAbsMax] = range<kAbsMax>;
  table.row_ranges[kMinMax] = row_ranges<kMinMax>;
  table.row_ranges[kAbsMax] = row_ranges<kAbsMax>;
  table.column_ranges[kMinMax] = column_ranges<kMinMax>;
  table.column_ranges[kAbsMax] = column_ranges<kAbsMax>;
  table.widen[kF16] = widen_half<widen_f16>;
  table.widen[kBf16] = widen_half<widen_bf16>;
  table.widen[kU4] = widen_codes<kU8>;
  table.widen[kS4] = widen_codes<kS8>;
  table.run_pass = run_portable_pass;
  table.softmax = portable_softmax;
  table.narrow[kF16] = narrow_half<narrow_f16>;
  table.narrow[kBf16] = narrow_half<narrow_bf16>;
  table.narrow[kU4] = narrow_codes<kU8>;
  table.narrow[kS4] = narrow_codes<kS8>;
  return table;
}

}  // namespace

constexpr ElementwiseKernels kPortableKernels = elementwise_kernels();

}  // namespace dynq
