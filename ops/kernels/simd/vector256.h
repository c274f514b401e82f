// Vectors of eight lanes, for elementwise kernels and products. Needs AVX2 and F16C. Everything is in an anonymous
// namespace: each file that includes this one has its own copy, compiled for its instruction set.
#pragma once

#include <immintrin.h>

#include "kernels/elementwise.h"
#include "kernels/products.h"

namespace dynq {
namespace {

struct Vector256 {
  static constexpr int64_t kLanes = 8;
  using F = __m256;
  using I = __m256i;

  static F set1(float value) { return _mm256_set1_ps(value); }
  static I set1(int32_t value) { return _mm256_set1_epi32(value); }
  // The second operand if one is NaN, or if both are zeros.
  static F max(F a, F b) { return _mm256_max_ps(a, b); }
  static F min(F a, F b) { return _mm256_min_ps(a, b); }
  static F add(F a, F b) { return _mm256_add_ps(a, b); }
  static F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static F sub(F a, F b) { return _mm256_sub_ps(a, b); }
  static F fmadd(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static F fnmadd(F a, F b, F c) { return _mm256_fnmadd_ps(a, b, c); }
  static I add(I a, I b) { return _mm256_add_epi32(a, b); }
  static I mul(I a, I b) { return _mm256_mullo_epi32(a, b); }
  static I sub(I a, I b) { return _mm256_sub_epi32(a, b); }
  static F to_float(I a) { return _mm256_cvtepi32_ps(a); }
  static F load(const float* p) { return _mm256_loadu_ps(p); }
  static F load_f16(const uint8_t* p) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
  static I load(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
};

}  // namespace
}  // namespace dynq
