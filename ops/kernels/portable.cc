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

template <Arithmetic kArithmetic, CodeType kType>
void quantize_rows(const Block& block) {
  using T = typename Code<kType>::Type;
  for (int64_t row = 0; row < block.rows; ++row) {
    const float* src = static_cast<const float*>(block.src) + row * block.stride;
    T* dst = static_cast<T*>(block.dst) + row * block.stride;
    const float scale = block.scales[row];
    const int32_t zp = block.zps[row];
    if (kArithmetic == kOneDnn) {
      const float reciprocal = 1.0f / scale, zp_f32 = static_cast<float>(zp);
      for (int64_t i = 0; i < block.cols; ++i)
        dst[i] = static_cast<T>(quantize_onednn<kType>(src[i], reciprocal, zp_f32));
    } else if (is_narrow(zp)) {
      for (int64_t i = 0; i < block.cols; ++i) dst[i] = static_cast<T>(quantize_onnx<kType>(src[i], scale, zp));
    } else {
      for (int64_t i = 0; i < block.cols; ++i) dst[i] = static_cast<T>(quantize_wide<kType>(src[i], scale, zp));
    }
  }
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
  const bool narrow = are_narrow(zps, block.cols);
  for (int64_t row = 0; row < block.rows; ++row) {
    const float* src = static_cast<const float*>(block.src) + row * block.stride;
    T* dst = static_cast<T*>(block.dst) + row * block.stride;
    if (kArithmetic == kOneDnn) {
      for (int64_t i = 0; i < block.cols; ++i)
        dst[i] = static_cast<T>(quantize_onednn<kType>(src[i], reciprocals[i], static_cast<float>(zps[i])));
    } else if (narrow) {
      for (int64_t i = 0; i < block.cols; ++i) dst[i] = static_cast<T>(quantize_onnx<kType>(src[i], scales[i], zps[i]));
    } else {
      for (int64_t i = 0; i < block.cols; ++i) dst[i] = static_cast<T>(quantize_wide<kType>(src[i], scales[i], zps[i]));
    }
  }
}

// The difference of an 8-bit code and a narrow zero point is exact in float32; a wide one needs 33 bits.
float dequantize_narrow(int32_t code, float scale, int32_t zp) { return static_cast<float>(code - zp) * scale; }
float dequantize_wide(int32_t code, float scale, int32_t zp) {
  return static_cast<float>(static_cast<int64_t>(code) - zp) * scale;
}

template <CodeType kType>
void dequantize_rows(const Block& block) {
  for (int64_t row = 0; row < block.rows; ++row) {
    const auto* src = static_cast<const typename Code<kType>::Type*>(block.src) + row * block.stride;
    float* dst = static_cast<float*>(block.dst) + row * block.stride;
    const float scale = block.scales[row];
    const int32_t zp = block.zps[row];
    if (is_narrow(zp)) {
      for (int64_t i = 0; i < block.cols; ++i) dst[i] = dequantize_narrow(src[i], scale, zp);
    } else {
      for (int64_t i = 0; i < block.cols; ++i) dst[i] = dequantize_wide(src[i], scale, zp);
    }
  }
}

template <CodeType kType>
void dequantize_columns(const Block& block) {
  const bool narrow = are_narrow(block.zps, block.cols);
  for (int64_t row = 0; row < block.rows; ++row) {
    const auto* src = static_cast<const typename Code<kType>::Type*>(block.src) + row * block.stride;
    float* dst = static_cast<float*>(block.dst) + row * block.stride;
    if (narrow) {
      for (int64_t i = 0; i < block.cols; ++i) dst[i] = dequantize_narrow(src[i], block.scales[i], block.zps[i]);
    } else {
      for (int64_t i = 0; i < block.cols; ++i) dst[i] = dequantize_wide(src[i], block.scales[i], block.zps[i]);
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
};

}  // namespace

const KernelTable& portable_kernels() { return kPortable; }

}  // namespace dynq
