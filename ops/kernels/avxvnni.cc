// Products with AVX-VNNI: eight columns in a vector. simd/product-inl.h has the loops.
// Compiler options for x86_64: -mavx2 -mfma -mavxvnni
#include "kernels/simd/vector256.h"

namespace dynq {
namespace {

#include "kernels/simd/product256-inl.h"

struct P : Product256 {
  static constexpr int kSteps = 1;

  // Built for AVX-512 VNNI instead, the file has the same instruction in its other encoding; the tests do that on CPUs
  // without this one. Assembly for the same reason as in avx512vnni.cc.
  static I dot(I sums, I codes, I weights) {
#ifdef __AVXVNNI__
    asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sums) : "x"(codes), "x"(weights));
#else
    asm("vpdpbusd %2, %1, %0" : "+x"(sums) : "x"(codes), "x"(weights));
#endif
    return sums;
  }
  static I dot4(I sums, I codes0, I codes1, I low, I high) { return dot(dot(sums, codes0, low), codes1, high); }
};

using C = P;

#include "kernels/simd/conv-inl.h"  // which includes product-inl.h

}  // namespace

extern const ProductKernels kAvxVnniProducts;
constexpr ProductKernels kAvxVnniProducts = kProducts;

}  // namespace dynq
