// What vectors of eight and of sixteen lanes share on x86. In an anonymous namespace: each file that includes this one
// has its own copy, compiled for its instruction set.
#pragma once

#include <immintrin.h>

namespace dynq {
namespace {

// Codes of 4 bits that begin in the middle of the first byte; `next` has the bytes from the second one on.
inline __m128i shifted_halves(__m128i bytes, __m128i next) {
  const __m128i low = _mm_set1_epi8(15);
  return _mm_or_si128(_mm_and_si128(low, _mm_srli_epi16(bytes, 4)), _mm_andnot_si128(low, _mm_slli_epi16(next, 4)));
}

}  // namespace
}  // namespace dynq
