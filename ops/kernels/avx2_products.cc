// Products with AVX2: eight columns in a vector. simd/ has the kernels.
// Compiler options for x86_64: -mavx2 -mfma -mf16c
#include "kernels/simd/elementwise256.h"

namespace dynq {
namespace {

#include "kernels/simd/product256-inl.h"

// Products without saturation: codes and weights are widened to int16, and pairs of products are added to int32.
// Convolutions and products in groups take even bytes in step 0 and odd bytes in step 1.
struct P : Product256 {
  static constexpr int kSteps = 2;

  static I dot(I sums, I codes, I weights) {
    ORT_DYNQ_ADD_PRODUCT("vpmaddwd", "vpaddd", add(sums, _mm256_madd_epi16(codes, weights)), sums, codes, weights);
    return sums;
  }
  // The codes of both steps.
  static void widen_steps(const uint8_t* codes, int64_t quads, uint8_t* even, uint8_t* odd) {
    for (int64_t quad = 0; quad < quads; quad += kLanes) {
      const I both = load_part(reinterpret_cast<const int32_t*>(codes + quad * kQuad), first(quads - quad));
      store(even + quad * kQuad, codes_of<0>(both));
      store(odd + quad * kQuad, codes_of<1>(both));
    }
  }
  // The quads of a matrix product as int16 in their order: `pairs` repeats one, and half a vector of weights has four.
  // The sums of a column are in two lanes, which sum_pairs adds.
  static void widen(const uint8_t* codes, int64_t quads, uint8_t* to) {
    int64_t quad = 0;
    for (; quad + kLanes / 2 <= quads; quad += kLanes / 2)
      store(to + quad * 2 * kQuad,
            _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + quad * kQuad))));
    for (; quad < quads; ++quad)
      _mm_storel_epi64(
          reinterpret_cast<__m128i*>(to + quad * 2 * kQuad),
          _mm_cvtepu8_epi16(_mm_cvtsi32_si128(dynq::load(reinterpret_cast<const int32_t*>(codes + quad * kQuad)))));
  }
  static I widen(const int8_t* weights) {
    return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(weights)));
  }
  static I pairs(const uint8_t* quad) { return _mm256_set1_epi64x(dynq::load(reinterpret_cast<const int64_t*>(quad))); }
  static I sum_pairs(I low, I high) {
    return _mm256_permute4x64_epi64(_mm256_hadd_epi32(low, high), _MM_SHUFFLE(3, 1, 2, 0));
  }
  template <int kStep>
  static I codes_of(I quads) {
    return kStep == 0 ? _mm256_and_si256(quads, _mm256_set1_epi16(255)) : _mm256_srli_epi16(quads, 8);
  }
  template <int kStep>
  static I weights_of(I quads) {
    return _mm256_srai_epi16(kStep == 0 ? _mm256_slli_epi16(quads, 8) : quads, 8);
  }
  static void store_halves(uint8_t* low, uint8_t* high, I a) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(low), _mm256_castsi256_si128(a));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(high), _mm256_extracti128_si256(a, 1));
  }
  // 4-bit weights minus zero points are within 15, so the sums of four products fit int16.
  static I dot4(I sums, I codes0, I codes1, I low, I high) {
    const I four = _mm256_add_epi16(_mm256_maddubs_epi16(codes0, low), _mm256_maddubs_epi16(codes1, high));
    return add(sums, _mm256_madd_epi16(four, _mm256_set1_epi16(1)));
  }
  // Adds the sums of two products of bytes with weights, in int16.
  static I dot_words(I sums, I codes, I weights) {
    ORT_DYNQ_ADD_PRODUCT("vpmaddubsw", "vpaddw", add16(sums, words(codes, weights)), sums, codes, weights);
    return sums;
  }
  // Parts of dot4: the sums of two products of bytes with weights, in int16; additions that wrap; the sums of two
  // words.
  static I words(I codes, I weights) { return _mm256_maddubs_epi16(codes, weights); }
  static I add16(I a, I b) { return _mm256_add_epi16(a, b); }
  static I sub16(I a, I b) { return _mm256_sub_epi16(a, b); }
  static I either_bits(I a, I b) { return _mm256_or_si256(a, b); }
  static I sum_words(I words) { return _mm256_madd_epi16(words, _mm256_set1_epi16(1)); }
  static I same_bytes(int32_t byte) { return _mm256_set1_epi8(static_cast<char>(byte)); }
};

using C = P;

#include "kernels/simd/winograd256-inl.h"

struct W : Winograd256 {
  static Sums dot(Sums sums, Pair codes, Weights weights) {
    ORT_DYNQ_ADD("vpaddd", "x", _mm256_add_epi32, sums, _mm256_madd_epi16(codes, weights));
    return sums;
  }
};

#include "kernels/simd/conv-inl.h"  // which includes product-inl.h
#include "kernels/simd/strassen-inl.h"
#include "kernels/simd/winograd-inl.h"

}  // namespace

extern const ProductKernels kAvx2Products;
constexpr ProductKernels kAvx2Products = product_kernels(&kWinograd, &kStrassen);

}  // namespace dynq
