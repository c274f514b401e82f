// Products with the dot products of ARMv8.2: four columns in a vector. simd/product-inl.h has the loops.
// Compiler options for aarch64: -march=armv8.2-a+dotprod
#include "kernels/simd/vectorneon.h"

namespace dynq {
namespace {

#include "kernels/simd/productneon-inl.h"

struct P : UnsignedProductNeon {
  template <int>
  static I weights_of(I weights) {
    return flipped(weights);
  }
  static I dot(I sums, Quad codes, I weights) {
    return vreinterpretq_s32_u32(vdotq_lane_u32(u32(sums), bytes(weights), codes, 0));
  }
  static I dot4(I sums, Quad codes0, Quad codes1, I low, I high) { return dot(dot(sums, codes0, low), codes1, high); }
};

struct C : SignedConvNeon {
  template <int>
  static I codes_of(I codes) {
    return flipped(codes);
  }
  static I dot(I sums, I codes, Quad weights) {
    return vdotq_lane_s32(sums, signed_bytes(codes), vreinterpret_s8_u8(weights), 0);
  }
};

#include "kernels/simd/conv-inl.h"  // which includes product-inl.h

}  // namespace

extern const ProductKernels kNeonDotProducts;
constexpr ProductKernels kNeonDotProducts = product_kernels();

}  // namespace dynq
