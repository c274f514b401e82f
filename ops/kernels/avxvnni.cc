// Products with AVX-VNNI: eight columns in a vector. simd/product-inl.h has the loops.
// Compiler options for x86_64: -mavx2 -mfma -mf16c -mavxvnni
#include "kernels/simd/vector256.h"

namespace dynq {
namespace {

#include "kernels/simd/product256-inl.h"

struct P : Product256 {
  static constexpr int kSteps = 1;

  // Built for AVX-512 VNNI instead, the file has the same instruction in its other encoding; the tests do that on CPUs
  // without this one.
  static I dot(I sums, I codes, I weights) {
#if defined(__AVXVNNI__) || defined(_MSC_VER)
    ORT_DYNQ_ACCUMULATE("%{vex%} vpdpbusd", "x", _mm256_dpbusd_avx_epi32, sums, codes, weights);
#else
    ORT_DYNQ_ACCUMULATE("vpdpbusd", "x", _mm256_dpbusd_epi32, sums, codes, weights);
#endif
    return sums;
  }
  static I dot4(I sums, I codes0, I codes1, I low, I high) { return dot(dot(sums, codes0, low), codes1, high); }
};

using C = P;

#include "kernels/simd/winograd256-inl.h"

struct W : Winograd256 {
  static Sums dot(Sums sums, Pair codes, Weights weights) {
#if defined(__AVXVNNI__) || defined(_MSC_VER)
    ORT_DYNQ_ACCUMULATE("%{vex%} vpdpwssd", "x", _mm256_dpwssd_avx_epi32, sums, codes, weights);
#else
    ORT_DYNQ_ACCUMULATE("vpdpwssd", "x", _mm256_dpwssd_epi32, sums, codes, weights);
#endif
    return sums;
  }
};

#include "kernels/simd/conv-inl.h"  // which includes product-inl.h and winograd-inl.h

}  // namespace

extern const ProductKernels kAvxVnniProducts;
constexpr ProductKernels kAvxVnniProducts = product_kernels();

}  // namespace dynq
