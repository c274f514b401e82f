// As vector256.h, for sixteen lanes. Needs AVX-512 F, BW, VL and DQ.
#pragma once

#if defined(__GNUC__) && !defined(__clang__)  // GCC 12 warns about its own header: gcc.gnu.org/PR105593
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>

#include "kernels/elementwise.h"
#include "kernels/products.h"

namespace dynq {
namespace {

struct Vector512 {
  static constexpr int64_t kLanes = 16;
  using F = __m512;
  using I = __m512i;

  static F set1(float value) { return _mm512_set1_ps(value); }
  static I set1(int32_t value) { return _mm512_set1_epi32(value); }
  // The second operand if one is NaN, or if both are zeros.
  static F max(F a, F b) { return _mm512_max_ps(a, b); }
  static F min(F a, F b) { return _mm512_min_ps(a, b); }
  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F fmadd(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static F fnmadd(F a, F b, F c) { return _mm512_fnmadd_ps(a, b, c); }
  static I add(I a, I b) { return _mm512_add_epi32(a, b); }
  static I mul(I a, I b) { return _mm512_mullo_epi32(a, b); }
  static I sub(I a, I b) { return _mm512_sub_epi32(a, b); }
  static F to_float(I a) { return _mm512_cvtepi32_ps(a); }
  static F load(const float* p) { return _mm512_loadu_ps(p); }
  static F load_f16(const uint8_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static I load(const void* p) { return _mm512_loadu_si512(p); }
};

}  // namespace
}  // namespace dynq
