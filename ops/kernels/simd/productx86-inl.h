// Products and convolutions on x86-64. Needs SSE2.

#include "kernels/simd/wholequads-inl.h"

struct ProductX86 : WholeQuads {
  // Stores the quads of kCodes codes of each row, from code i on.
  template <int64_t kCodes>
  static void store_quads(const uint8_t* const (&rows)[kQuad], int64_t i, uint8_t flip, uint8_t* to) {
    const auto row = [&](int j) {
      if constexpr (kCodes == 16)
        return _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[j] + i));
      else if constexpr (kCodes == 8)
        return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(rows[j] + i));
      else
        return _mm_cvtsi32_si128(dynq::load(reinterpret_cast<const int32_t*>(rows[j] + i)));
    };
    auto* out = reinterpret_cast<__m128i*>(to + i * kQuad);
    const auto store = [&](int part, __m128i quads) {
      _mm_storeu_si128(out + part, _mm_xor_si128(quads, _mm_set1_epi8(static_cast<char>(flip))));
    };
    const __m128i low[2] = {_mm_unpacklo_epi8(row(0), row(1)), _mm_unpacklo_epi8(row(2), row(3))};
    store(0, _mm_unpacklo_epi16(low[0], low[1]));
    if constexpr (kCodes >= 8) store(1, _mm_unpackhi_epi16(low[0], low[1]));
    if constexpr (kCodes == 16) {
      const __m128i high[2] = {_mm_unpackhi_epi8(row(0), row(1)), _mm_unpackhi_epi8(row(2), row(3))};
      store(2, _mm_unpacklo_epi16(high[0], high[1]));
      store(3, _mm_unpackhi_epi16(high[0], high[1]));
    }
  }
};
