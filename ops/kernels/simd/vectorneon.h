// As vector256.h, for NEON with four lanes, which every 64-bit ARM CPU has.
#pragma once

#include <arm_neon.h>

#include "kernels/elementwise.h"
#include "kernels/products.h"

namespace dynq {
namespace {

struct VectorNeon {
  static constexpr int64_t kLanes = 4;
  using F = float32x4_t;
  using I = int32x4_t;

  static F set1(float value) { return vdupq_n_f32(value); }
  static I set1(int32_t value) { return vdupq_n_s32(value); }
  // The second operand if one is NaN, or if both are zeros. NEON's own instructions return NaN, and order -0 below +0.
  static F max(F a, F b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
  static F min(F a, F b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
  static F add(F a, F b) { return vaddq_f32(a, b); }
  static F mul(F a, F b) { return vmulq_f32(a, b); }
  static F sub(F a, F b) { return vsubq_f32(a, b); }
  static F fmadd(F a, F b, F c) { return vfmaq_f32(c, a, b); }
  static F fnmadd(F a, F b, F c) { return vfmsq_f32(c, a, b); }
  // Headers may implement the intrinsics of int32 with C++ operators; their overflow is undefined, but unsigned ones
  // wrap.
  static I add(I a, I b) { return vreinterpretq_s32_u32(vaddq_u32(u32(a), u32(b))); }
  static I mul(I a, I b) { return vreinterpretq_s32_u32(vmulq_u32(u32(a), u32(b))); }
  static I sub(I a, I b) { return vreinterpretq_s32_u32(vsubq_u32(u32(a), u32(b))); }
  static F to_float(I a) { return vcvtq_f32_s32(a); }
  static uint32x4_t u32(I a) { return vreinterpretq_u32_s32(a); }

  static F load(const float* p) { return dynq::load(reinterpret_cast<const F*>(p)); }
  static F load_f16(const uint8_t* p) { return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p))); }
  static I load(const void* p) { return dynq::load(static_cast<const I*>(p)); }
  static void store(float* p, F a) { dynq::store(reinterpret_cast<F*>(p), a); }
  static void store(void* p, I a) { dynq::store(static_cast<I*>(p), a); }

  // The first n elements, one by one: NEON has no masks.
  static F load_part(const float* p, int64_t n, F rest) {
    if (n >= kLanes) return load(p);
    if (n > 0) rest = vsetq_lane_f32(dynq::load(p), rest, 0);
    if (n > 1) rest = vsetq_lane_f32(dynq::load(p + 1), rest, 1);
    if (n > 2) rest = vsetq_lane_f32(dynq::load(p + 2), rest, 2);
    return rest;
  }
  static F load_part(const float* p, int64_t n) { return load_part(p, n, set1(0.0f)); }
  static I load_part(const int32_t* p, int64_t n) {
    return vreinterpretq_s32_f32(load_part(reinterpret_cast<const float*>(p), n));
  }
  static void store_part(float* p, F a, int64_t n) {
    if (n >= kLanes) return store(p, a);
    if (n > 0) dynq::store(p, vgetq_lane_f32(a, 0));
    if (n > 1) dynq::store(p + 1, vgetq_lane_f32(a, 1));
    if (n > 2) dynq::store(p + 2, vgetq_lane_f32(a, 2));
  }

  // Four bytes in a register, followed by zeros.
  static uint8x8_t load4(const uint8_t* p) { return vcreate_u8(dynq::load(reinterpret_cast<const uint32_t*>(p))); }
  static uint8x8_t load4_part(const uint8_t* p, int64_t n) {
    if (n >= kLanes) return load4(p);
    uint64_t bytes = 0;
    for (int64_t i = n; i-- > 0;) bytes = bytes << 8 | p[i];
    return vcreate_u8(bytes);
  }
  // Their elements as int32.
  template <CodeKind kKind>
  static I widen(uint8x8_t codes) {
    if constexpr (kKind == kU8)
      return vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(vmovl_u8(codes))));
    else
      return vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u8(codes))));
  }
};

}  // namespace
}  // namespace dynq
