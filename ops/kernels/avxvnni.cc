// Products with AVX-VNNI: eight columns in a vector. simd/product-inl.h has the loops.
// Compiler options for x86_64: -mavx2 -mfma -mf16c -mavxvnni
#include "kernels/simd/elementwise256.h"

namespace dynq {
namespace {

#include "kernels/simd/dotavxvnni-inl.h"
#include "kernels/simd/product256-inl.h"

struct P : Product256 {
  static constexpr int kSteps = 1;
  static I dot(I sums, I codes, I weights) {
    ORT_DYNQ_DOT(dpbusd);
    return sums;
  }
  static I dot4(I sums, I codes0, I codes1, I low, I high) { return dot(dot(sums, codes0, low), codes1, high); }
};

using C = P;

#include "kernels/simd/conv-inl.h"  // which includes product-inl.h

}  // namespace

extern const ProductKernels kAvxVnniProducts;
constexpr ProductKernels kAvxVnniProducts = product_kernels();

}  // namespace dynq
