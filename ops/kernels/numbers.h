// Single numbers: loads and stores, rounding, float16. For the portable kernels, for scales and zero points, and for
// the tails of vector kernels. There are no calls and no branches on data, so compilers vectorize loops over these
// functions.
//
// Files of one instruction set include the headers of this folder, and the linker could choose an inline function that
// was compiled for AVX-512 for the whole program. So all functions in these headers are static, and they use only C.
#pragma once

#include <math.h>
#include <string.h>

#include <cstdint>

namespace dynq {

constexpr float kInfinity = INFINITY;
constexpr float kNan = NAN;

// Tensors of callers may be unaligned, even for float.
template <class T>
static inline T load(const T* from) {
  T value;
  memcpy(&value, static_cast<const void*>(from), sizeof value);  // a T* would promise the alignment of a T
  return value;
}
template <class T>
static inline void store(T* to, T value) {
  memcpy(static_cast<void*>(to), &value, sizeof value);
}

static inline uint32_t to_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

static inline float from_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

constexpr uint32_t kMagnitudeBits = 0x7fffffff, kInfiniteBits = 0x7f800000;

// Rounds half to even. From 2^23 on, every float is an integer. Keeps the sign of zero, as ONNX's Round does. (rintf is
// a call on a baseline without SSE4.1.)
static inline float round_half_even(float value) {
  constexpr float kEveryFloatIsWhole = 8388608.0f;
  const float magnitude = fabsf(value);
  const float rounded =
      magnitude < kEveryFloatIsWhole ? (magnitude + kEveryFloatIsWhole) - kEveryFloatIsWhole : magnitude;
  return copysignf(rounded, value);
}

// Subnormal numbers are converted by arithmetic on normal ones: a CPU may treat subnormal floats as 0.
static inline float widen_f16(uint16_t half) {
  const uint32_t magnitude = half & 0x7fffu;
  const float subnormal = static_cast<float>(static_cast<int32_t>(magnitude)) * 5.9604645e-8f;  // 2^-24
  const uint32_t normal = (magnitude << 13) + ((127 - 15) << 23);
  const uint32_t special = (magnitude << 13) | kInfiniteBits | (magnitude > 0x7c00 ? 0x400000u : 0);
  const uint32_t bits = magnitude < 0x400 ? to_bits(subnormal) : magnitude < 0x7c00 ? normal : special;
  return from_bits(bits | ((half & 0x8000u) << 16));
}

// Rounds half to even.
static inline uint16_t narrow_f16(float value) {
  constexpr uint32_t kSmallestNormal = 0x38800000, kTooLarge = 0x47800000;  // 2^-14, 2^16
  const uint32_t bits = to_bits(value), magnitude = bits & kMagnitudeBits;
  // In 0.5 to 1, floats are 2^-24 apart, as subnormal numbers of float16 are.
  const uint32_t subnormal = to_bits(from_bits(magnitude < kSmallestNormal ? magnitude : 0) + 0.5f) - to_bits(0.5f);
  const uint32_t normal = (magnitude + 0xfff + (magnitude >> 13 & 1) - ((127 - 15) << 23)) >> 13;
  const uint32_t special = magnitude > kInfiniteBits ? 0x7e00 : 0x7c00;
  const uint32_t half = magnitude < kSmallestNormal ? subnormal : magnitude < kTooLarge ? normal : special;
  return static_cast<uint16_t>(half | (bits >> 16 & 0x8000));
}

static inline float rounded_to_float16(float value) { return widen_f16(narrow_f16(value)); }

}  // namespace dynq
