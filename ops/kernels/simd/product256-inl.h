// Products and convolutions with eight columns or positions in a vector. Needs AVX2.

#include "kernels/simd/productx86-inl.h"

struct Product256 : Vector256, ProductX86 {
  static constexpr int kBlocks = 1, kGroupBlocks = 1, kSplit = 2;
  static constexpr int64_t kBytesAhead = 4096;  // measured on Zen 5 (family 26, model 2)
  static constexpr int kConvRows = 4, kConvChannels = 4, kConvSums = 8;
  static constexpr bool kUnsignedWeights = false, kSignedCodes = false;

  static void store(float* p, F a) { _mm256_storeu_ps(p, a); }
  static void store(void* p, I a) { _mm256_storeu_si256(static_cast<__m256i*>(p), a); }
  using Mask = __m256i;
  static Mask first(int64_t n) {
    const auto count = static_cast<int32_t>(n < kLanes ? n : kLanes);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  static F load_part(const float* p, Mask mask) { return _mm256_maskload_ps(p, mask); }
  static I load_part(const int32_t* p, Mask mask) { return _mm256_maskload_epi32(p, mask); }
  static void store_part(float* p, F a, Mask mask) { _mm256_maskstore_ps(p, mask, a); }
  static I load_zps(const int8_t* p, int64_t n) {
    uint64_t zps = 0;
    if (n >= kLanes)
      zps = dynq::load(reinterpret_cast<const uint64_t*>(p));
    else if (n > 0)
      memcpy(&zps, p, static_cast<size_t>(n));
    return _mm256_cvtepi8_epi32(_mm_cvtsi64_si128(static_cast<int64_t>(zps)));
  }

  using Quad = I;
  static Quad quad(const uint8_t* p) { return _mm256_set1_epi32(dynq::load(reinterpret_cast<const int32_t*>(p))); }
  // The quads at p, p + kBytes, p + 2 * kBytes and so on.
  template <int kBytes>
  static I overlapping_quads(const uint8_t* p) {
    const auto codes = [&](int i) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + i)); };
    if constexpr (kBytes == 2)
      return _mm256_shuffle_epi8(
          _mm256_inserti128_si256(_mm256_castsi128_si256(codes(0)), codes(8), 1),
          _mm256_broadcastsi128_si256(_mm_setr_epi32(0x03020100, 0x05040302, 0x07060504, 0x09080706)));
    const I both = _mm256_broadcastsi128_si256(codes(0));
    return _mm256_shuffle_epi8(both, _mm256_setr_epi32(0x03020100, 0x04030201, 0x05040302, 0x06050403, 0x07060504,
                                                       0x08070605, 0x09080706, 0x0a090807));
  }
  static I low_nibbles(I a) { return _mm256_and_si256(a, set1(15)); }
  static I zps4(I zps) {
    const __m128i lowest = _mm_setr_epi32(0, 0x04040404, 0x08080808, 0x0c0c0c0c);
    return _mm256_shuffle_epi8(_mm256_and_si256(zps, set1(15)), _mm256_broadcastsi128_si256(lowest));
  }
  static void halves(const int8_t* p, I zps, I& low, I& high) {
    const I both = load(static_cast<const void*>(p)), mask = _mm256_set1_epi8(15);
    low = _mm256_sub_epi8(_mm256_and_si256(both, mask), zps);
    high = _mm256_sub_epi8(_mm256_and_si256(_mm256_srli_epi16(both, 4), mask), zps);
  }
  static void quarters(const int8_t* p, I (&quads)[4]) {
    const I all = load(static_cast<const void*>(p)), mask = _mm256_set1_epi8(3);
    quads[0] = _mm256_and_si256(all, mask);
    quads[1] = _mm256_and_si256(_mm256_srli_epi16(all, 4), mask);
    quads[2] = _mm256_and_si256(_mm256_srli_epi16(all, 2), mask);
    quads[3] = _mm256_and_si256(_mm256_srli_epi16(all, 6), mask);
  }
};
