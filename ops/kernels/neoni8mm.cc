// Products with the mixed dot products of I8MM: four columns in a vector. simd/product-inl.h has the loops.
// Compiler options for aarch64: -march=armv8.2-a+dotprod+i8mm
#include "kernels/simd/vectorneon.h"

namespace dynq {
namespace {

#include "kernels/simd/productneon-inl.h"

struct P : ProductNeon {
  static I dot(I sums, Quad codes, I weights) { return vsudotq_lane_s32(sums, signed_bytes(weights), codes, 0); }
  static I zps4(I zps) { return mul(vandq_s32(zps, set1(15)), set1(0x01010101)); }
  static void halves(const int8_t* p, I zps, I& low, I& high) {
    split(load(static_cast<const void*>(p)), low, high);
    low = ints(vsubq_u8(bytes(low), bytes(zps)));
    high = ints(vsubq_u8(bytes(high), bytes(zps)));
  }
  static I dot4(I sums, Quad codes0, Quad codes1, I low, I high) { return dot(dot(sums, codes0, low), codes1, high); }
};

struct C : ProductNeon {
  static I dot(I sums, I codes, Quad weights) {
    return vusdotq_lane_s32(sums, bytes(codes), vreinterpret_s8_u8(weights), 0);
  }
};

#include "kernels/simd/conv-inl.h"  // which includes product-inl.h

}  // namespace

extern const ProductKernels kNeonI8mmProducts;
constexpr ProductKernels kNeonI8mmProducts = product_kernels();

}  // namespace dynq
