// Products with AVX-VNNI: eight columns in a vector. simd/product-inl.h and compressed-inl.h have the loops.
// Compiler options for x86_64: -mavx2 -mfma -mf16c -mavxvnni
#include "kernels/simd/elementwise256.h"

namespace dynq {
namespace {

#include "kernels/simd/product256-inl.h"

// Built for AVX-512 VNNI instead, the file has the same instructions in their other encoding; the tests do that on CPUs
// without this one.
#if defined(__AVXVNNI__) || defined(_MSC_VER)
#define ORT_DYNQ_DOT(name) ORT_DYNQ_ACCUMULATE("%{vex%} vp" #name, "x", _mm256_##name##_avx_epi32, sums, codes, weights)
#else
#define ORT_DYNQ_DOT(name) ORT_DYNQ_ACCUMULATE("vp" #name, "x", _mm256_##name##_epi32, sums, codes, weights)
#endif

struct P : Product256 {
  static constexpr int kSteps = 1;
  static I dot(I sums, I codes, I weights) {
    ORT_DYNQ_DOT(dpbusd);
    return sums;
  }
  static I dot4(I sums, I codes0, I codes1, I low, I high) { return dot(dot(sums, codes0, low), codes1, high); }
};

using C = P;

#include "kernels/simd/winograd256-inl.h"

struct W : Winograd256 {
  static Sums dot(Sums sums, Pair codes, Weights weights) {
    ORT_DYNQ_DOT(dpwssd);
    return sums;
  }
};

#include "kernels/simd/conv-inl.h"  // which includes product-inl.h and winograd-inl.h

struct V : Elementwise256 {
  static I dot_words(I sums, I codes, I weights) {
    ORT_DYNQ_DOT(dpwssd);
    return sums;
  }
  static I dot_bytes(I sums, I codes, I weights) { return P::dot(sums, codes, weights); }
  static I add_bytes(I sums, I codes, I b) { return dot_bytes(sums, codes, b); }
  static I sums_of_bytes(I sums) { return sums; }
};

#include "kernels/simd/compressed-inl.h"

// Uses the file before.
#include "kernels/simd/compressed-bytes-inl.h"

}  // namespace

extern const ProductKernels kAvxVnniProducts;
extern const CompressedKernels kAvxVnniCompressed;
constexpr ProductKernels kAvxVnniProducts = product_kernels();
constexpr CompressedKernels kAvxVnniCompressed = with_bytes(compressed_kernels());

}  // namespace dynq
