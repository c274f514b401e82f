// The reference kernels in plain C++, which define the correct results. Compilers vectorize the loops for the baseline
// of any CPU (these are the kernels on ARM): no calls, no branches on data, conversions by arithmetic.
#include "kernels/kernels.h"

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
int32_t round_half_even(float value) {
  constexpr int32_t kBitsOfRoundingBias = 0x4B400000;
  const float shifted = value + kRoundingBias;
  int32_t bits;
  __builtin_memcpy(&bits, &shifted, sizeof bits);
  return bits - kBitsOfRoundingBias;
}

bool is_narrow(int32_t zp) { return zp >= -kNarrowZeroPoint && zp <= kNarrowZeroPoint; }

// For any zero point. In double every float quotient, every int32 and the comparison of their sum with the bounds are
// exact.
template <CodeKind kKind>
int32_t quantize_wide(float x, float scale, int32_t zp) {
  const float quotient = x / scale;
  constexpr double kInt52 = 6755399441055744.0;  // 1.5 * 2^52 rounds doubles as kRoundingBias rounds floats
  const double bounded = clamp(static_cast<double>(quotient), -1e12, 1e12);
  const double rounded = (bounded + kInt52) - kInt52;
  return static_cast<int32_t>(
      clamp(rounded + zp, static_cast<double>(Code<kKind>::kMin), static_cast<double>(Code<kKind>::kMax)));
}

template <CodeKind kKind>
int32_t quantize_onnx(float x, float scale, int32_t zp) {
  const float low = static_cast<float>(Code<kKind>::kMin - zp), high = static_cast<float>(Code<kKind>::kMax - zp);
  return round_half_even(clamp(x / scale, low, high)) + zp;
}

template <CodeKind kKind>
int32_t quantize_onednn(float x, float reciprocal, float zp) {
  const float low = static_cast<float>(Code<kKind>::kMin), high = static_cast<float>(Code<kKind>::kMax);
  return round_half_even(clamp(x * reciprocal + zp, low, high));
}

// dst[i] = function(src[i], i). The vectorizer needs restricted pointers and a local count: codes are characters, which
// may alias anything.
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
    } else if (is_narrow(zp)) {
      map(src, dst, block.cols, [=](float x, int64_t) { return quantize_onnx<kKind>(x, scale, zp); });
    } else {
      map(src, dst, block.cols, [=](float x, int64_t) { return quantize_wide<kKind>(x, scale, zp); });
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
    else if (narrow)
      map(src, dst, block.cols, [=](float x, int64_t i) { return quantize_onnx<kKind>(x, scales[i], zps[i]); });
    else
      map(src, dst, block.cols, [=](float x, int64_t i) { return quantize_wide<kKind>(x, scales[i], zps[i]); });
  });
}

// The difference of an 8-bit code and a narrow zero point is exact in float32. A wide zero point needs 33 bits.
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

// Rounds half to even for any magnitude: from 2^23 on every float is an integer. Keeps the sign of zero, as ONNX's
// Round does. (rintf is a call on a baseline without SSE4.1.)
float round_any(float value) {
  constexpr float kEveryFloatIsWhole = 8388608.0f;
  const float magnitude = __builtin_fabsf(value);
  const float rounded =
      magnitude < kEveryFloatIsWhole ? (magnitude + kEveryFloatIsWhole) - kEveryFloatIsWhole : magnitude;
  return __builtin_copysignf(rounded, value);
}

// ONNX's Clip: NaN stays NaN.
float clip(float value, float low, float high) {
  value = value < low ? low : value;
  return value > high ? high : value;
}

template <Scaling kScaling, RoundingOrder kOrder>
float affine_code(const AffineBlock& block, float x, float scale, float zp) {
  const float t = kScaling == kDivide ? x / scale : kScaling == kMultiply ? x * scale : x * (1.0f / scale);
  const float code = kOrder == kRoundThenAdd   ? clip(round_any(t) + zp, block.low, block.high)
                     : kOrder == kAddThenRound ? round_any(clip(t + zp, block.low, block.high))
                                               : clip(round_any(t), block.low, block.high);
  const float number = code != code ? block.nan_code : code;
  return block.integer_codes ? __builtin_truncf(number) + block.code_offset : number;
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

template <Scaling kScaling, RoundingOrder kOrder, AffineTarget kTarget, Parameters kParameters>
void affine(const AffineBlock& block) {
  using T = typename AffineOutput<kTarget>::Type;
  map_rows<float, T>(block, [&](int64_t row, const float* src, T* dst) {
    map(src, dst, block.cols, [block, row](float x, int64_t column) -> T {
      const int64_t i = kParameters == kPerRow ? row : column;
      const float scale = block.scales[i], zp = block.zps[i];
      const float code = affine_code<kScaling, kOrder>(block, x, scale, zp);
      if (kTarget != kToFloat) return static_cast<T>(code);
      const float difference = kOrder == kNoZeroPoint ? code : code - zp;
      return static_cast<T>(kScaling == kMultiply ? difference / scale : difference * scale);
    });
  });
}

template <Scaling kScaling, bool kAddFirst>
void bounded(const BoundedBlock& block) {
  map_rows<float, float>(block, [&](int64_t row, const float* src, float* dst) {
    const float scale = block.scales[row], reciprocal = 1.0f / scale, zp = block.zps[row];
    const float zero = block.keeps_negative_zero ? -0.0f : 0.0f;
    map(src, dst, block.cols, [=](float x, int64_t) {
      const float t = kScaling == kDivide ? x / scale : kScaling == kMultiply ? x * scale : x * reciprocal;
      const float code = round_any(kAddFirst ? t + zp : t) + zero;
      const float difference = kAddFirst ? code - zp : code;
      return kScaling == kMultiply ? difference / scale : difference * scale;
    });
  });
}

template <bool kAbsMax>
Range range(const float* x, int64_t count) {
  float low = __builtin_inff(), high = kAbsMax ? 0.0f : -__builtin_inff(), not_finite = 0.0f;
  for (int64_t i = 0; i < count; ++i) {
    const float element = load(x + i), v = kAbsMax && element < 0 ? -element : element;
    low = v < low ? v : low;
    high = v > high ? v : high;
    not_finite += v * 0.0f;  // 0 while every element is finite
  }
  const float first = load(x);
  const bool is_nan = first != first;
  if (is_nan) return {first, first, not_finite};
  return {kAbsMax ? 0.0f : low, high, not_finite};
}

template <bool kAbsMax>
void row_range(const float* x, int64_t rows, int64_t cols, int64_t stride, float* low, float* high) {
  constexpr int64_t kLanes = 8;
  for (int64_t row = 0; row < rows; ++row) {
    const float* from = x + row * stride;
    float l[kLanes], h[kLanes];
    for (int64_t k = 0; k < kLanes; ++k) {
      l[k] = kAbsMax ? 0.0f : low[row];
      h[k] = high[row];
    }
    const auto take = [&](int64_t k, float v) {
      if (kAbsMax) v = __builtin_fabsf(v);
      l[k] = v < l[k] ? v : l[k];
      h[k] = v > h[k] ? v : h[k];
    };
    int64_t i = 0;
    for (; i + kLanes <= cols; i += kLanes)
      for (int64_t k = 0; k < kLanes; ++k) take(k, load(from + i + k));
    for (; i < cols; ++i) take(0, load(from + i));
    for (int64_t k = 0; k < kLanes; ++k) {
      if (!kAbsMax) low[row] = l[k] < low[row] ? l[k] : low[row];
      high[row] = h[k] > high[row] ? h[k] : high[row];
    }
  }
}

template <bool kAbsMax>
void column_range(const float* x, int64_t rows, int64_t cols, int64_t stride, float* __restrict low,
                  float* __restrict high) {
  for (int64_t row = 0; row < rows; ++row) {
    const float* __restrict from = x + row * stride;
    for (int64_t i = 0; i < cols; ++i) {
      const float v = kAbsMax ? __builtin_fabsf(load(from + i)) : load(from + i);
      if (!kAbsMax) low[i] = v < low[i] ? v : low[i];
      high[i] = v > high[i] ? v : high[i];
    }
  }
}

// Products. The depth is cut into groups; exact[g] is an int32, which wraps.
//
//   exact[g] = the sum over group g of (code - row_zp) * (weight - weight_zp)
//   sum = -0; for each g, ascending: sum = sum + float(exact[g]) * column_scale[g] * row_scale[g]
//   dst = sum * column_scale * row_scale + bias
//
// A scale that varies with g multiplies every float(exact[g]), any other one the sum. If none varies:
//
//   kScalesFirst    dst = sum * (row_scale * column_scale) + bias
//   kRowFirst       dst = sum * row_scale * column_scale + bias
//   kColumnFirst    dst = sum * column_scale * row_scale + bias
//
// Operations of equal precedence are done from left to right.

// The loops widen codes and weights to int16, kWidened k at once, for the dot products that CPUs have for these.
constexpr int64_t kWidened = 256, kWidenedUnit = 16, kProductRows = 16;

// `quads` quads of a block of 16 columns, from quad `first`. 4-bit weights lose their zero points.
template <int kBits>
void widen_weights(const int8_t* block, int64_t first, int64_t quads, const int32_t* zps, int16_t (*to)[kWidened]) {
  constexpr int64_t kBytes = kBlockColumns * kQuad;
  int16_t subtracted[kBytes];
  for (int64_t i = 0; i < kBytes; ++i) subtracted[i] = static_cast<int16_t>(zps[i / kQuad]);
  for (int64_t quad = first; quad < first + quads; ++quad) {
    const int8_t* __restrict from = block + (kBits == 8 ? quad : quad / 2) * kBytes;
    const int shift = quad % 2 == 0 ? 0 : 4;
    int16_t wide[kBytes];
    for (int64_t i = 0; i < kBytes; ++i)
      wide[i] = static_cast<int16_t>(kBits == 8 ? from[i] : (from[i] >> shift & 15) - subtracted[i]);
    for (int64_t column = 0; column < kBlockColumns; ++column)
      __builtin_memcpy(to[column] + (quad - first) * kQuad, wide + column * kQuad, kQuad * sizeof(int16_t));
  }
}

// Four sums at once, so that the codes are loaded once for them.
constexpr int64_t kDots = 4;
void add_dots(const int16_t* __restrict codes, const int16_t (*__restrict weights)[kWidened], int64_t count,
              uint32_t* sums) {
  int32_t s0 = 0, s1 = 0, s2 = 0, s3 = 0;
  for (int64_t i = 0; i < count; ++i) {
    s0 += codes[i] * weights[0][i];
    s1 += codes[i] * weights[1][i];
    s2 += codes[i] * weights[2][i];
    s3 += codes[i] * weights[3][i];
  }
  sums[0] += static_cast<uint32_t>(s0);
  sums[1] += static_cast<uint32_t>(s1);
  sums[2] += static_cast<uint32_t>(s2);
  sums[3] += static_cast<uint32_t>(s3);
}

// Adds the products of `rows` rows and a block of 16 columns. The sums may wrap, so they are unsigned.
template <int kBits>
void add_products(const ProductBlock& block, const uint8_t* codes, int64_t rows, const int8_t* weights, int64_t first,
                  int64_t quads, const int32_t* zps, uint32_t (*sums)[kBlockColumns]) {
  const int64_t count = quads * kQuad, padded = (count + kWidenedUnit - 1) / kWidenedUnit * kWidenedUnit;
  int16_t wide_weights[kBlockColumns][kWidened], wide_codes[kWidened];
  for (int64_t column = 0; column < kBlockColumns; ++column)
    for (int64_t i = count; i < padded; ++i) wide_weights[column][i] = 0;
  widen_weights<kBits>(weights, first, quads, zps, wide_weights);
  for (int64_t i = count; i < padded; ++i) wide_codes[i] = 0;
  for (int64_t row = 0; row < rows; ++row) {
    map(codes + row * block.codes_stride + first * kQuad, wide_codes, count,
        [](uint8_t code, int64_t) { return code; });
    for (int64_t column = 0; column < kBlockColumns; column += kDots)
      add_dots(wide_codes, wide_weights + column, padded, sums[row] + column);
  }
}

// Up to kProductRows rows, up to 16 columns.
template <int kBits>
void product_rows(const ProductBlock& block, int64_t row, int64_t rows, int64_t first, int64_t count) {
  const uint8_t* codes = block.codes + row * block.codes_stride;
  const int8_t* weights = block.weights + first / kBlockColumns * block.weights_stride;
  const float* scales = block.scales + row * block.row_groups;
  const int32_t* zps = block.zps + row * block.row_groups;
  const bool row_varies = block.row_groups > 1, column_varies = block.column_groups > 1;
  const int64_t quads = block.depth / kQuad / block.groups;
  float sums[kProductRows][kBlockColumns];
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t i = 0; i < count; ++i) sums[r][i] = -0.0f;
  for (int64_t group = 0; group < block.groups; ++group) {
    int32_t weight_zps[kBlockColumns];
    for (int64_t i = 0; i < kBlockColumns; ++i) {
      weight_zps[i] = block.weight_zps == nullptr ? block.weight_zp
                      : i < count                 ? block.weight_zps[group * block.columns + first + i]
                                                  : 0;
      if (kBits == 4) weight_zps[i] &= 15;
    }
    uint32_t products[kProductRows][kBlockColumns] = {};
    for (int64_t quad = 0; quad < quads; quad += kWidened / kQuad)
      add_products<kBits>(block, codes, rows, weights, group * quads + quad,
                          quads - quad < kWidened / kQuad ? quads - quad : kWidened / kQuad, weight_zps, products);
    for (int64_t r = 0; r < rows; ++r) {
      const auto row_zp = static_cast<uint32_t>(zps[r * block.row_groups + (row_varies ? group : 0)]);
      const uint32_t row_sum =
          block.row_sums == nullptr ? 0 : static_cast<uint32_t>(block.row_sums[(row + r) * block.groups + group]);
      for (int64_t i = 0; i < count; ++i) {
        const auto column_sum = static_cast<uint32_t>(load(block.column_sums + group * block.columns + first + i));
        const auto exact =
            static_cast<int32_t>(products[r][i] - static_cast<uint32_t>(weight_zps[i]) * row_sum - row_zp * column_sum);
        float term = static_cast<float>(exact);
        if (column_varies) term *= load(block.column_scales + group * block.columns + first + i);
        if (row_varies) term *= scales[r * block.row_groups + group];
        sums[r][i] += term;
      }
    }
  }
  for (int64_t r = 0; r < rows; ++r) {
    const float scale = scales[r * block.row_groups];
    float* dst = block.dst + (row + r) * block.dst_stride + first;
    for (int64_t i = 0; i < count; ++i) {
      const float column_scale = load(block.column_scales + first + i);
      float real = sums[r][i];
      if (row_varies || column_varies) {
        if (!column_varies) real *= column_scale;
        if (!row_varies) real *= scale;
      } else {
        real = block.order == kScalesFirst ? real * (scale * column_scale)
               : block.order == kRowFirst  ? real * scale * column_scale
                                           : real * column_scale * scale;
      }
      store(dst + i, real + load(block.bias + first + i));
    }
  }
}

template <int kBits>
void product(const ProductBlock& block) {
  for (int64_t first = 0; first < block.cols; first += kBlockColumns)
    for (int64_t row = 0; row < block.rows; row += kProductRows)
      product_rows<kBits>(block, row, block.rows - row < kProductRows ? block.rows - row : kProductRows, first,
                          block.cols - first < kBlockColumns ? block.cols - first : kBlockColumns);
}

// Convolutions: exact, int32, is the sum over the quads of (code - zp) * (weight - weight_zp). Then as products of one
// group: the scale is that of the row, the channel scale that of the column.

// Sums of kPositions positions, kept apart for the four codes of a quad until all quads are added.
constexpr int64_t kPositions = 64;

void add_overlapping_quads(const uint8_t* __restrict codes, const int8_t* weights, int32_t* __restrict sums) {
  const int16_t w0 = weights[0], w1 = weights[1], w2 = weights[2], w3 = weights[3];
  for (int64_t i = 0; i < kPositions; ++i)
    sums[i * kQuad] += codes[i] * w0 + codes[i + 1] * w1 + codes[i + 2] * w2 + codes[i + 3] * w3;
}

void add_quads(const uint8_t* __restrict codes, const int8_t* weights, int32_t* __restrict sums) {
  int16_t wide[kQuad * 4];
  for (int64_t i = 0; i < kQuad * 4; ++i) wide[i] = weights[i % kQuad];
  for (int64_t i = 0; i < kPositions * kQuad; i += kQuad * 4)
    for (int64_t j = 0; j < kQuad * 4; ++j) sums[i + j] += codes[i + j] * wide[j];
}

void conv(const ConvBlock& block) {
  const bool has_weight_zps = block.weight_zps != nullptr || block.weight_zp != 0;
  int32_t sums[kPositions * kQuad], code_sums[kPositions];
  const auto add_all = [&](int64_t position, const int8_t* weights, int64_t step) {
    for (int32_t& sum : sums) sum = 0;
    for (int64_t quad = 0; quad < block.quads; ++quad)
      if (block.quads_overlap)
        add_overlapping_quads(block.image + block.offsets[quad] + position, weights + quad * step, sums);
      else
        add_quads(block.image + block.offsets[quad] + position * kQuad, weights + quad * step, sums);
  };
  const auto sum_of = [&](int64_t i) {
    return sums[i * kQuad] + sums[i * kQuad + 1] + sums[i * kQuad + 2] + sums[i * kQuad + 3];
  };
  for (int64_t first = 0; first < block.positions; first += kPositions) {
    const int64_t count = block.positions - first < kPositions ? block.positions - first : kPositions;
    if (has_weight_zps) {
      add_all(first, block.ones, kQuad);
      for (int64_t i = 0; i < count; ++i) code_sums[i] = sum_of(i);
    }
    for (int64_t channel = 0; channel < block.channels; ++channel) {
      add_all(first, block.weights + channel * kQuad, kBlockColumns * kQuad);
      const auto weight_zp =
          static_cast<uint32_t>(block.weight_zps == nullptr ? block.weight_zp : block.weight_zps[channel]);
      const auto correction = static_cast<uint32_t>(block.zp) * static_cast<uint32_t>(block.channel_sums[channel]);
      const float scale = block.scale, channel_scale = block.channel_scales[channel];
      float* dst = block.dst + channel * block.dst_stride + first;
      for (int64_t i = 0; i < count; ++i) {
        const uint32_t code_sum = has_weight_zps ? static_cast<uint32_t>(code_sums[i]) : 0;
        const auto exact = static_cast<int32_t>(static_cast<uint32_t>(sum_of(i)) - correction - weight_zp * code_sum);
        float real = static_cast<float>(exact);
        real = block.order == kScalesFirst ? real * (scale * channel_scale)
               : block.order == kRowFirst  ? real * scale * channel_scale
                                           : real * channel_scale * scale;
        store(dst + i, real + block.bias[channel]);
      }
    }
  }
}

void interleave(const uint8_t* const (&rows)[kQuad], int64_t count, uint8_t flip, uint8_t* to) {
  const uint8_t* __restrict r0 = rows[0], * __restrict r1 = rows[1], * __restrict r2 = rows[2], * __restrict r3 = rows[3];
  uint8_t* __restrict quads = to;
  for (int64_t i = 0; i < count; ++i) {
    quads[kQuad * i] = r0[i] ^ flip;
    quads[kQuad * i + 1] = r1[i] ^ flip;
    quads[kQuad * i + 2] = r2[i] ^ flip;
    quads[kQuad * i + 3] = r3[i] ^ flip;
  }
}

constexpr KernelTable kPortable = {
    {{{quantize_rows<kOnnx, kU8>, quantize_columns<kOnnx, kU8>},
      {quantize_rows<kOnnx, kS8>, quantize_columns<kOnnx, kS8>}},
     {{quantize_rows<kOneDnn, kU8>, quantize_columns<kOneDnn, kU8>},
      {quantize_rows<kOneDnn, kS8>, quantize_columns<kOneDnn, kS8>}}},
    {{dequantize_rows<kU8>, dequantize_columns<kU8>}, {dequantize_rows<kS8>, dequantize_columns<kS8>}},
    ORT_DYNQ_AFFINE_TABLE,
    {{bounded<kDivide, false>, bounded<kDivide, true>},
     {bounded<kMultiplyByTheReciprocal, false>, bounded<kMultiplyByTheReciprocal, true>},
     {bounded<kMultiply, false>, bounded<kMultiply, true>}},
    range<false>,
    range<true>,
    {row_range<false>, column_range<false>},
    {row_range<true>, column_range<true>},
};

}  // namespace

const KernelTable& portable_kernels() noexcept { return kPortable; }

const ProductKernels kPortableProducts = {product<8>, product<8>, product<4>, nullptr, conv, interleave};

}  // namespace dynq
