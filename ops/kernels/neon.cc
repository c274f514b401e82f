// NEON: four lanes; products without dot product instructions. simd/ has the kernels.
// Compiler options for aarch64: -march=armv8-a
#include "kernels/simd/vectorneon.h"

namespace dynq {
namespace {

struct V : VectorNeon {
  static constexpr int kRows = 4;  // the rows that kernels of columns process at once

  static F div(F a, F b) { return vdivq_f32(a, b); }
  static float lowest(F a) { return vminvq_f32(a); }
  static float highest(F a) { return vmaxvq_f32(a); }
  template <class Op>
  static F combine_lanes(const F* rows, const Op& op) {
    const auto pairs = [&](F a, F b) { return op(vuzp1q_f32(a, b), vuzp2q_f32(a, b)); };
    return pairs(pairs(rows[0], rows[1]), pairs(rows[2], rows[3]));
  }
  static F larger_bits(F a, F b) {
    return vreinterpretq_f32_s32(vmaxq_s32(vreinterpretq_s32_f32(a), vreinterpretq_s32_f32(b)));
  }
  static F negate(F a) { return vnegq_f32(a); }
  static F abs(F a) { return vabsq_f32(a); }
  static F with_sign_of(F a, F b) { return vbslq_f32(vdupq_n_u32(0x80000000), b, a); }
  static F round_float(F a) { return vrndnq_f32(a); }
  static F replace_nan(F a, F b) { return vbslq_f32(vceqq_f32(a, a), a, b); }
  static F or_nan(F a, F b) { return vbslq_f32(vceqq_f32(b, b), a, b); }
  static F floor(F a) { return vrndmq_f32(a); }
  static F ceil(F a) { return vrndpq_f32(a); }
  static F sqrt(F a) { return vsqrtq_f32(a); }
  static F times_power_of_2(F a, F n) {
    return vmulq_f32(a, vreinterpretq_f32_u32(vshlq_n_u32(u32(add(vcvtnq_s32_f32(n), set1(int32_t{127}))), 23)));
  }
  static void store_bytes(uint8_t* low, uint8_t* high, I a) {
    const uint16x4_t words = vmovn_u32(u32(a));
    const uint16x8_t both = vcombine_u16(words, words);
    dynq::store(reinterpret_cast<uint32_t*>(low), vget_lane_u32(vreinterpret_u32_u8(vmovn_u16(both)), 0));
    dynq::store(reinterpret_cast<uint32_t*>(high), vget_lane_u32(vreinterpret_u32_u8(vshrn_n_u16(both, 8)), 0));
  }
  static void store_bytes(uint8_t* low, uint8_t* high, const I (&a)[4]) {
    const auto words_of = [](I first, I second) {
      return vuzp1q_u16(vreinterpretq_u16_s32(first), vreinterpretq_u16_s32(second));
    };
    const uint8x16_t words[2] = {vreinterpretq_u8_u16(words_of(a[0], a[1])),
                                 vreinterpretq_u8_u16(words_of(a[2], a[3]))};
    vst1q_u8(low, vuzp1q_u8(words[0], words[1]));
    vst1q_u8(high, vuzp2q_u8(words[0], words[1]));
  }
  static F shift_exponent(F a, F n) {
    return vreinterpretq_f32_u32(vaddq_u32(vreinterpretq_u32_f32(a), vshlq_n_u32(vreinterpretq_u32_f32(n), 23)));
  }
  static F one_if(uint32x4_t is_true) { return vbslq_f32(is_true, set1(1.0f), set1(0.0f)); }
  static F equal(F a, F b) { return one_if(vceqq_f32(a, b)); }
  static F less(F a, F b) { return one_if(vcltq_f32(a, b)); }
  static F less_or_equal(F a, F b) { return one_if(vcleq_f32(a, b)); }
  static F choose(F c, F a, F b) { return vbslq_f32(vceqq_f32(c, set1(0.0f)), b, a); }
  static float first_lane(F a) { return vgetq_lane_f32(a, 0); }
  static bool has_nan(F a, F b) { return vminvq_u32(vandq_u32(vceqq_f32(a, a), vceqq_f32(b, b))) == 0; }
  // The conversion makes 0 of NaN.
  static I round(F a) { return vcvtnq_s32_f32(vmaxnmq_f32(a, set1(-2147483648.0f))); }

  template <bool>
  static void store(float* p, F a) {
    VectorNeon::store(p, a);
  }
  static constexpr bool kStreams = false;
  static void fence() {}

  // Saturates two vectors of int32 to one of int16.
  static I pack16(I a, I b) { return vreinterpretq_s32_s16(vqmovn_high_s32(vqmovn_s32(a), b)); }
  // Adds int16 with saturation.
  static I add16(I a, I b) {
    return vreinterpretq_s32_s16(vqaddq_s16(vreinterpretq_s16_s32(a), vreinterpretq_s16_s32(b)));
  }
  static I sub16(I a, I b) {
    return vreinterpretq_s32_s16(vsubq_s16(vreinterpretq_s16_s32(a), vreinterpretq_s16_s32(b)));
  }
  // Saturates 8 int16 to codes.
  template <CodeKind kKind>
  static uint8x8_t codes(int16x8_t a) {
    return kKind == kU8 ? vqmovun_s16(a) : vreinterpret_u8_s8(vqmovn_s16(a));
  }
  using Packed8 = uint8x16_t;
  template <CodeKind kKind>
  static Packed8 pack8(I ab, I cd) {
    return vcombine_u8(codes<kKind>(vreinterpretq_s16_s32(ab)), codes<kKind>(vreinterpretq_s16_s32(cd)));
  }
  template <bool>
  static void store_codes8(uint8_t* p, Packed8 packed) {
    vst1q_u8(p, packed);
  }
  // Adds zero points in saturating int16 and saturates to codes.
  template <CodeKind kKind>
  static uint32_t narrow(I a, I zp) {
    const int16x4_t words = vqadd_s16(vqmovn_s32(a), vqmovn_s32(zp));
    return vget_lane_u32(vreinterpret_u32_u8(codes<kKind>(vcombine_s16(words, words))), 0);
  }
  template <CodeKind kKind>
  static void store1(uint8_t* p, I a, I zp) {
    dynq::store(reinterpret_cast<uint32_t*>(p), narrow<kKind>(a, zp));
  }
  template <CodeKind kKind>
  static void store_part(uint8_t* p, I a, I zp, int64_t n) {
    uint32_t codes = narrow<kKind>(a, zp);
    for (int64_t i = 0; i < n; ++i, codes >>= 8) p[i] = static_cast<uint8_t>(codes);
  }
  template <CodeKind kKind>
  static I load_codes(const uint8_t* p) {
    return widen<kKind>(load4(p));
  }
  template <CodeKind kKind>
  static I load_codes_part(const uint8_t* p, int64_t n) {
    return widen<kKind>(load4_part(p, n));
  }
  using VectorNeon::store_part;

  // A quotient that is NaN or beyond int32 becomes the lowest int32.
  static I round_wrapping(F a) {
    return vbslq_s32(vcltq_f32(a, set1(2147483648.0f)), vcvtnq_s32_f32(a), set1(INT32_MIN));
  }

  template <CodeKind kKind>
  static I words_of(uint8x8_t codes) {
    if constexpr (kKind == kU8)
      return vreinterpretq_s32_u16(vmovl_u8(codes));
    else
      return vreinterpretq_s32_s16(vmovl_s8(vreinterpret_s8_u8(codes)));
  }
  template <CodeKind kKind>
  static I words(const uint8_t* p) {
    return words_of<kKind>(vld1_u8(p));
  }
  template <CodeKind kKind>
  static void word_pairs(const uint8_t* first, const uint8_t* second, I& low, I& high) {
    const uint8x8x2_t both = vzip_u8(vld1_u8(first), vld1_u8(second));
    low = words_of<kKind>(both.val[0]);
    high = words_of<kKind>(both.val[1]);
  }
  static void order_pairs(I&, I&) {}
  static I flip(I codes, I flips) { return veorq_s32(codes, flips); }
  static uint8x8_t four_bytes(const uint8_t* p) {
    return vreinterpret_u8_u32(vdup_n_u32(dynq::load(reinterpret_cast<const uint32_t*>(p))));
  }
  template <bool kIsShifted>
  static void half_pairs(const uint8_t* first, const uint8_t* second, I flips, I& low, I& high) {
    uint8x8_t b = four_bytes(second);
    if constexpr (kIsShifted) b = vsli_n_u8(vshr_n_u8(b, 4), four_bytes(second + 1), 4);
    const uint8x8_t both = vzip1_u8(four_bytes(first), b);
    const uint16x8_t pairs = vmovl_u8(veor_u8(both, vreinterpret_u8_s32(vget_low_s32(flips))));
    low = vreinterpretq_s32_u16(vandq_u16(pairs, vdupq_n_u16(15)));
    high = vreinterpretq_s32_u16(vshrq_n_u16(pairs, 4));
  }
  static I words_of_halves(const uint8_t* codes, I flips) {
    const uint8x8_t bytes = veor_u8(four_bytes(codes), vreinterpret_u8_s32(vget_low_s32(flips)));
    const uint32x4_t pairs = vmovl_u16(vget_low_u16(vmovl_u8(bytes)));
    return vreinterpretq_s32_u32(vandq_u32(vsliq_n_u32(pairs, pairs, 12), vdupq_n_u32(0x000f000f)));
  }
  // Bytes 0 and 2 of each lane as int16, then bytes 1 and 3.
  static void byte_words(I codes, I (&words)[2]) {
    const int16x8_t all = vreinterpretq_s16_s32(codes);
    words[0] = vreinterpretq_s32_s16(vshrq_n_s16(vshlq_n_s16(all, 8), 8));
    words[1] = vreinterpretq_s32_s16(vshrq_n_s16(all, 8));
  }
  static void half_words(I codes, I (&words)[4]) {
    const uint16x8_t all = vreinterpretq_u16_s32(codes), mask = vdupq_n_u16(15);
    words[0] = vreinterpretq_s32_u16(vandq_u16(all, mask));
    words[1] = vreinterpretq_s32_u16(vandq_u16(vshrq_n_u16(all, 4), mask));
    words[2] = vreinterpretq_s32_u16(vandq_u16(vshrq_n_u16(all, 8), mask));
    words[3] = vreinterpretq_s32_u16(vshrq_n_u16(all, 12));
  }
  static void zip_lanes(I& low, I& high) {
    const I first = vzip1q_s32(low, high);
    high = vzip2q_s32(low, high);
    low = first;
  }
  static void zip_words(I a, I b, I& low, I& high) {
    const int16x8_t x = vreinterpretq_s16_s32(a), y = vreinterpretq_s16_s32(b);
    low = vreinterpretq_s32_s16(vzip1q_s16(x, y));
    high = vreinterpretq_s32_s16(vzip2q_s16(x, y));
  }
  static float32x2_t joined(int32x2_t high, int32x2_t low) {
    return vcvt_f32_f64(vcvtq_f64_s64(vmlal_n_s32(vmovl_s32(low), high, kHighByte)));
  }
  static F joined(I high, I low) {
    return vcombine_f32(joined(vget_low_s32(high), vget_low_s32(low)), joined(vget_high_s32(high), vget_high_s32(low)));
  }
  static I dot_words(I sums, I a, I b) {
    const int16x8_t x = vreinterpretq_s16_s32(a), y = vreinterpretq_s16_s32(b);
    return add(sums, vpaddq_s32(vmull_s16(vget_low_s16(x), vget_low_s16(y)), vmull_high_s16(x, y)));
  }
  static I sum_lanes(const I* rows) { return vpaddq_s32(vpaddq_s32(rows[0], rows[1]), vpaddq_s32(rows[2], rows[3])); }
  static void store_words(int16_t* p, I a) { dynq::store(reinterpret_cast<int16x4_t*>(p), vqmovn_s32(a)); }

  static F load_bits(const uint8_t* p) { return VectorNeon::load(reinterpret_cast<const float*>(p)); }
  static void store_bits(uint8_t* p, F a) { VectorNeon::store(reinterpret_cast<float*>(p), a); }
  static void store_f16(uint8_t* p, F a) { vst1_u8(p, vreinterpret_u8_f16(vcvt_f16_f32(a))); }
  static F rounded_to_f16(F a) { return vcvt_f32_f16(vcvt_f16_f32(a)); }
  static F load_bf16(const uint8_t* p) {
    return vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(p)), 16));
  }
  static I bits(F a) { return vreinterpretq_s32_f32(a); }
  static I high_halves(I a) { return vreinterpretq_s32_u32(vshrq_n_u32(u32(a), 16)); }
  static I lowest_bits(I a) { return vandq_s32(a, set1(1)); }
  static void store_low_halves(uint8_t* p, I a) { vst1_u8(p, vreinterpret_u8_u16(vmovn_u32(u32(a)))); }
  // Takes 4 * kLanes int16 of at most 15, raises negative ones to 0, and joins two of them to a byte.
  using Packed4 = uint8x8_t;
  static Packed4 pack4(I ab, I cd) {
    const uint8x8_t low = codes<kU8>(vreinterpretq_s16_s32(ab)), high = codes<kU8>(vreinterpretq_s16_s32(cd));
    return vsli_n_u8(vuzp1_u8(low, high), vuzp2_u8(low, high), 4);
  }
  // Flips bits of each byte.
  static void store_codes4(uint8_t* p, Packed4 first, Packed4 second, uint8_t flipped) {
    vst1q_u8(p, veorq_u8(vcombine_u8(first, second), vdupq_n_u8(flipped)));
  }
  template <CodeKind kKind>
  static I load_codes_of_4_bits(const uint8_t* p) {
    constexpr int32_t kToHighest[] = {28, 24, 20, 16};
    const I all = set1(int32_t{dynq::load(reinterpret_cast<const uint16_t*>(p))});
    const I highest = vshlq_s32(all, vld1q_s32(kToHighest));
    return kKind == kU8 ? vreinterpretq_s32_u32(vshrq_n_u32(u32(highest), 28)) : vshrq_n_s32(highest, 28);
  }
  // Between 8 bytes of 4-bit codes and 16 bytes of codes.
  template <CodeKind kKind>
  static void widen_codes(const uint8_t* from, uint8_t* to) {
    const uint8x8_t both = vld1_u8(from), low = vand_u8(both, vdup_n_u8(15)), high = vshr_n_u8(both, 4);
    const uint8x16_t codes = vcombine_u8(vzip1_u8(low, high), vzip2_u8(low, high)), sign = vdupq_n_u8(8);
    vst1q_u8(to, kKind == kU8 ? codes : vsubq_u8(veorq_u8(codes, sign), sign));
  }
  template <CodeKind kKind>
  static void narrow_codes(const uint8_t* from, uint8_t* to) {
    const uint8x16_t codes = vld1q_u8(from);
    const int8x16_t clipped = vmaxq_s8(vminq_s8(vreinterpretq_s8_u8(codes), vdupq_n_s8(7)), vdupq_n_s8(-8));
    const uint8x16_t halves =
        kKind == kU8 ? vminq_u8(codes, vdupq_n_u8(15)) : vandq_u8(vreinterpretq_u8_s8(clipped), vdupq_n_u8(15));
    const uint8x16_t first = vuzp1q_u8(halves, halves), second = vuzp2q_u8(halves, halves);
    vst1_u8(to, vget_low_u8(vorrq_u8(first, vshlq_n_u8(second, 4))));
  }
};

#include "kernels/simd/compressed-inl.h"
#include "kernels/simd/table-inl.h"
// clang-format off: the file begins with a pragma
#include "kernels/simd/productneon-inl.h"
// clang-format on

// Without dot products: half a vector of bytes gives eight products of int16, and pairs of them are added to int32. The
// bytes of a vector are ordered so that each half has one pair of each quad.
inline ProductNeon::I pairs(ProductNeon::I quads) {
  constexpr uint8_t kOrder[] = {0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15};
  return ProductNeon::ints(vqtbl1q_u8(ProductNeon::bytes(quads), vld1q_u8(kOrder)));
}
inline ProductNeon::I pairs_of_quad(const uint8_t* p) {
  return pairs(vdupq_n_s32(load(reinterpret_cast<const int32_t*>(p))));
}

struct P : UnsignedProductNeon {
  using Quad = I;
  static Quad quad(const uint8_t* p) { return pairs_of_quad(p); }
  template <int>
  static I weights_of(I weights) {
    return flipped(pairs(weights));
  }
  static I add_pairs(I sums, uint16x8_t products) { return vreinterpretq_s32_u32(vpadalq_u16(u32(sums), products)); }
  static uint16x8_t low_products(I a, I b) { return vmull_u8(vget_low_u8(bytes(a)), vget_low_u8(bytes(b))); }
  static I dot(I sums, Quad codes, I weights) {
    sums = add_pairs(sums, low_products(codes, weights));
    return add_pairs(sums, vmull_high_u8(bytes(codes), bytes(weights)));
  }
  static void halves(const int8_t* p, I, I& low, I& high) {
    split(pairs(load(static_cast<const void*>(p))), low, high);
  }
  static void quarters(const int8_t* p, I (&quads)[4]) { split(pairs(load(static_cast<const void*>(p))), quads); }
  // The sum of two products with 4-bit weights fits 16 bits.
  static I dot4(I sums, Quad codes0, Quad codes1, I low, I high) {
    const uint16x8_t first = low_products(codes0, low), second = vmull_high_u8(bytes(codes0), bytes(low));
    sums = add_pairs(sums, vmlal_u8(first, vget_low_u8(bytes(codes1)), vget_low_u8(bytes(high))));
    return add_pairs(sums, vmlal_high_u8(second, bytes(codes1), bytes(high)));
  }
};

struct C : SignedConvNeon {
  using Quad = I;
  static Quad quad(const uint8_t* p) { return pairs_of_quad(p); }
  template <int>
  static I codes_of(I codes) {
    return flipped(pairs(codes));
  }
  static I dot(I sums, I codes, Quad weights) {
    const int8x16_t a = signed_bytes(codes), b = signed_bytes(weights);
    sums = vpadalq_s16(sums, vmull_s8(vget_low_s8(a), vget_low_s8(b)));
    return vpadalq_s16(sums, vmull_high_s8(a, b));
  }
};

#include "kernels/simd/conv-inl.h"  // which includes product-inl.h

}  // namespace

extern const ElementwiseKernels kNeonKernels;
extern const CompressedKernels kNeonCompressed;
constexpr ElementwiseKernels kNeonKernels = elementwise_kernels();
constexpr CompressedKernels kNeonCompressed = compressed_kernels();
extern const ProductKernels kNeonProducts;
constexpr ProductKernels kNeonProducts = product_kernels();

}  // namespace dynq
