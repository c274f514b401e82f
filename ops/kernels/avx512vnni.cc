// Products with AVX-512 VNNI: sixteen columns in a vector. simd/product-inl.h has the loops.
// Compiler options for x86_64: -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni -mfma
#include "kernels/simd/elementwise512.h"

namespace dynq {
namespace {

#include "kernels/simd/productx86-inl.h"

struct P : Vector512, ProductX86 {
  static constexpr int kSteps = 1, kBlocks = 4, kGroupBlocks = 2, kSplit = 4;
  static constexpr int64_t kBytesAhead = 4096;  // measured on Zen 5 (family 26, model 2)
  static constexpr int kConvRows = 8, kConvChannels = 8, kConvSums = 24;
  static constexpr bool kUnsignedWeights = false, kSignedCodes = false;

  static void store(float* p, F a) { _mm512_storeu_ps(p, a); }
  static void store(void* p, I a) { _mm512_storeu_si512(p, a); }
  using Mask = __mmask16;
  static Mask first(int64_t n) { return static_cast<Mask>(n >= kLanes ? 0xffff : n > 0 ? (1u << n) - 1 : 0); }
  static F load_part(const float* p, Mask mask) { return _mm512_maskz_loadu_ps(mask, p); }
  static I load_part(const int32_t* p, Mask mask) { return _mm512_maskz_loadu_epi32(mask, p); }
  static void store_part(float* p, F a, Mask mask) { _mm512_mask_storeu_ps(p, mask, a); }
  static I load_zps(const int8_t* p, int64_t n) { return _mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(first(n), p)); }

  static I dot(I sums, I codes, I weights) {
    ORT_DYNQ_ACCUMULATE("vpdpbusd", "v", _mm512_dpbusd_epi32, sums, codes, weights);
    return sums;
  }
  using Quad = I;
  static Quad quad(const uint8_t* p) { return _mm512_set1_epi32(dynq::load(reinterpret_cast<const int32_t*>(p))); }

  // The quads at p, p + kBytes, p + 2 * kBytes and so on. A shuffle stays within 16 bytes, so that quads with codes
  // beyond the first 16 need further loads.
  template <int kBytes>
  static I overlapping_quads(const uint8_t* p) {
    const auto codes = [&](int i) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + i)); };
    if constexpr (kBytes == 2) {
      I all = _mm512_mask_broadcast_i32x4(_mm512_castsi128_si512(codes(0)), 0x00f0, codes(8));
      all = _mm512_mask_broadcast_i32x4(_mm512_mask_broadcast_i32x4(all, 0x0f00, codes(16)), 0xf000, codes(24));
      return _mm512_shuffle_epi8(
          all, _mm512_broadcast_i32x4(_mm_setr_epi32(0x03020100, 0x05040302, 0x07060504, 0x09080706)));
    }
    const I all = _mm512_mask_broadcast_i32x4(_mm512_broadcast_i32x4(codes(0)), 0xf000, codes(4));
    return _mm512_shuffle_epi8(
        all, _mm512_setr_epi32(0x03020100, 0x04030201, 0x05040302, 0x06050403, 0x07060504, 0x08070605, 0x09080706,
                               0x0a090807, 0x0b0a0908, 0x0c0b0a09, 0x0d0c0b0a, 0x0e0d0c0b, 0x0b0a0908, 0x0c0b0a09,
                               0x0d0c0b0a, 0x0e0d0c0b));
  }
  static I low_nibbles(I a) { return _mm512_and_si512(a, _mm512_set1_epi32(15)); }
  static I zps4(I zps) {
    const I codes = _mm512_and_si512(zps, _mm512_set1_epi32(15));
    return _mm512_shuffle_epi8(codes, _mm512_set4_epi32(0x0c0c0c0c, 0x08080808, 0x04040404, 0));
  }
  static void halves(const int8_t* p, I zps, I& low, I& high) {
    const I both = _mm512_loadu_si512(p), mask = _mm512_set1_epi8(15);
    low = _mm512_sub_epi8(_mm512_and_si512(both, mask), zps);
    high = _mm512_sub_epi8(_mm512_and_si512(_mm512_srli_epi16(both, 4), mask), zps);
  }
  static void quarters(const int8_t* p, I (&quads)[4]) {
    const I all = _mm512_loadu_si512(p), mask = _mm512_set1_epi8(3);
    quads[0] = _mm512_and_si512(all, mask);
    quads[1] = _mm512_and_si512(_mm512_srli_epi16(all, 4), mask);
    quads[2] = _mm512_and_si512(_mm512_srli_epi16(all, 2), mask);
    quads[3] = _mm512_and_si512(_mm512_srli_epi16(all, 6), mask);
  }
  static I dot4(I sums, I codes0, I codes1, I low, I high) { return dot(dot(sums, codes0, low), codes1, high); }
};

using C = P;

#include "kernels/simd/conv-inl.h"  // which includes product-inl.h

}  // namespace

extern const ProductKernels kAvx512VnniProducts;
constexpr ProductKernels kAvx512VnniProducts = product_kernels();

}  // namespace dynq
