// convolutions: codes of positions times packed weights of output channels to floats, written once for any type `P` of
// products (product-inl.h). A vector has the sums of P::kLanes adjacent positions and one channel, so that a channel of
// the output is written in order. P::codes_of<> and P::weights_of<> are quads as P::dot() takes them in each step;
// P::overlapping_quads() are those that begin at adjacent codes.
// P::kConvSums sums, of P::kConvRows channels or fewer, fit the registers.

#include "kernels/simd/product-inl.h"

constexpr int kMostConvVectors = P::kConvRows;
constexpr int conv_vectors(int rows) {
  return P::kConvSums / rows < kMostConvVectors ? P::kConvSums / rows : kMostConvVectors;
}
static_assert(kMostConvVectors * P::kLanes <= kConvSlack, "kernels read whole vectors");

template <int kStep, bool kOverlap, int kRows, int kCount, class Sums>
inline void conv_step(const uint8_t* codes, const typename P::I (&weights)[kRows], Sums& sums) {
  typename P::I w[kRows];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) w[r] = P::template weights_of<kStep>(weights[r]);
#pragma GCC unroll 8
  for (int v = 0; v < kCount; ++v) {
    const auto c =
        P::template codes_of<kStep>(kOverlap ? P::overlapping_quads(codes + v * P::kLanes)
                                             : P::load(static_cast<const void*>(codes + v * P::kLanes * kQuad)));
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) sums[r][v] = P::dot(sums[r][v], c, w[r]);
  }
}

// Adds the products of all quads, which are `step` bytes apart: kRows channels, kCount vectors of positions.
template <bool kOverlap, int kRows, int kCount, class Sums>
inline void conv_products(const ConvBlock& block, const int8_t* weights, int64_t step, int64_t position, Sums& sums) {
  const uint8_t* image = block.image + position * (kOverlap ? 1 : kQuad);
  for (int64_t quad = 0; quad < block.quads; ++quad, weights += step) {
    const uint8_t* codes = image + block.offsets[quad];
    typename P::I w[kRows];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) w[r] = P::quad(reinterpret_cast<const uint8_t*>(weights) + r * kQuad);
    conv_step<0, kOverlap, kRows, kCount>(codes, w, sums);
    if constexpr (P::kSteps == 2) conv_step<1, kOverlap, kRows, kCount>(codes, w, sums);
  }
}

template <bool kOverlap, int kRows, int kCount>
void conv_some(const ConvBlock& block, int64_t channel, int64_t position) {
  typename P::I sums[kRows][kCount];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    const auto correction =
        static_cast<uint32_t>(block.zp) * static_cast<uint32_t>(dynq::load(block.channel_sums + channel + r));
#pragma GCC unroll 8
    for (int v = 0; v < kCount; ++v) sums[r][v] = P::set1(static_cast<int32_t>(0u - correction));
  }
  if (block.weight_zps != nullptr || block.weight_zp != 0) {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const auto zp = P::set1(block.weight_zps == nullptr ? block.weight_zp : block.weight_zps[channel + r]);
#pragma GCC unroll 8
      for (int v = 0; v < kCount; ++v)
        sums[r][v] = P::sub(sums[r][v], P::mul(zp, P::load(block.code_sums + position + v * P::kLanes)));
    }
  }
  conv_products<kOverlap, kRows, kCount>(block, block.weights + channel * kQuad, kBlockBytes, position, sums);
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    const float scale = block.scale, channel_scale = dynq::load(block.channel_scales + channel + r);
    const auto first = P::set1(block.order == kScalesFirst ? scale * channel_scale
                               : block.order == kRowFirst  ? scale
                                                           : channel_scale);
    const auto second = P::set1(block.order == kScalesFirst ? 1.0f : block.order == kRowFirst ? channel_scale : scale);
    const auto bias = P::set1(dynq::load(block.bias + channel + r));
    float* dst = block.dst + (channel + r) * block.dst_stride + position;
#pragma GCC unroll 8
    for (int v = 0; v < kCount; ++v) {
      const auto real = P::add(P::mul(P::mul(P::to_float(sums[r][v]), first), second), bias);
      const int64_t n = block.positions - position - v * P::kLanes;
      if (n >= P::kLanes)
        P::store(dst + v * P::kLanes, real);
      else
        P::store_part(dst + v * P::kLanes, real, P::first(n));
    }
  }
}

// `channels` channels, a multiple of kRows. The codes of some positions stay in the first-level cache for all of them.
template <bool kOverlap, int kRows>
void conv_rows(const ConvBlock& block, int64_t first, int64_t channels) {
  constexpr int kCount = conv_vectors(kRows), kHalf = (kCount + 1) / 2;
  for (int64_t position = 0; position < block.positions;) {
    const int64_t vectors = (block.positions - position + P::kLanes - 1) / P::kLanes;
    // One vector alone takes as long as two, which wait less for the sums before: 2 and 2 instead of 3 and 1.
    const int count = vectors == kCount || vectors >= kCount + kHalf ? kCount : vectors >= kHalf ? kHalf : 1;
    for (int64_t channel = first; channel < first + channels; channel += kRows)
      (count == kCount  ? conv_some<kOverlap, kRows, kCount>
       : count == kHalf ? conv_some<kOverlap, kRows, kHalf>
                        : conv_some<kOverlap, kRows, 1>)(block, channel, position);
    position += count * P::kLanes;
  }
}

template <bool kOverlap, int kRows>
void conv_from(const ConvBlock& block, int64_t channel) {
  const int64_t count = (block.channels - channel) / kRows * kRows;
  if (count > 0) conv_rows<kOverlap, kRows>(block, channel, count);
  if constexpr (kRows > 1) conv_from<kOverlap, kRows / 2>(block, channel + count);
}

inline void conv(const ConvBlock& block) {
  block.quads_overlap ? conv_from<true, P::kConvRows>(block, 0) : conv_from<false, P::kConvRows>(block, 0);
}

template <bool kOverlap>
void sum_codes_of(const ConvBlock& block) {
  for (int64_t position = 0; position < block.positions; position += kMostConvVectors * P::kLanes) {
    typename P::I sums[1][kMostConvVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kMostConvVectors; ++v) sums[0][v] = P::set1(0);
    conv_products<kOverlap, 1, kMostConvVectors>(block, block.ones, kQuad, position, sums);
#pragma GCC unroll 8
    for (int v = 0; v < kMostConvVectors; ++v) P::store(block.code_sums + position + v * P::kLanes, sums[0][v]);
  }
}

inline void sum_codes(const ConvBlock& block) {
  block.quads_overlap ? sum_codes_of<true>(block) : sum_codes_of<false>(block);
}

// Rows of 16 codes in `a` to `d`: stores their quads.
inline void store_quads(__m128i a, __m128i b, __m128i c, __m128i d, uint8_t flip, uint8_t* to) {
  const __m128i flips = _mm_set1_epi8(static_cast<char>(flip));
  const __m128i low[2] = {_mm_unpacklo_epi8(a, b), _mm_unpacklo_epi8(c, d)};
  const __m128i high[2] = {_mm_unpackhi_epi8(a, b), _mm_unpackhi_epi8(c, d)};
  auto* out = reinterpret_cast<__m128i*>(to);
  _mm_storeu_si128(out, _mm_xor_si128(_mm_unpacklo_epi16(low[0], low[1]), flips));
  _mm_storeu_si128(out + 1, _mm_xor_si128(_mm_unpackhi_epi16(low[0], low[1]), flips));
  _mm_storeu_si128(out + 2, _mm_xor_si128(_mm_unpacklo_epi16(high[0], high[1]), flips));
  _mm_storeu_si128(out + 3, _mm_xor_si128(_mm_unpackhi_epi16(high[0], high[1]), flips));
}

// The last vector overlaps the one before; fewer than 16 codes of each row are copied.
inline void interleave(const uint8_t* const (&rows)[kQuad], int64_t count, uint8_t flip, uint8_t* to) {
  constexpr int64_t kCodes = 16;
  const auto row = [&](int j, int64_t i) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[j] + i)); };
  for (int64_t i = 0; i + kCodes <= count; i += kCodes)
    store_quads(row(0, i), row(1, i), row(2, i), row(3, i), flip, to + i * kQuad);
  if (count % kCodes == 0) return;
  if (count > kCodes) {
    const int64_t i = count - kCodes;
    store_quads(row(0, i), row(1, i), row(2, i), row(3, i), flip, to + i * kQuad);
    return;
  }
  if (count >= kCodes / 2) {
    const auto half = [&](int j, int64_t i) { return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(rows[j] + i)); };
    for (int64_t i = 0; i <= count - kCodes / 2; i += count > kCodes / 2 ? count - kCodes / 2 : 1) {
      const __m128i flips = _mm_set1_epi8(static_cast<char>(flip));
      const __m128i pairs[2] = {_mm_unpacklo_epi8(half(0, i), half(1, i)), _mm_unpacklo_epi8(half(2, i), half(3, i))};
      auto* out = reinterpret_cast<__m128i*>(to + i * kQuad);
      _mm_storeu_si128(out, _mm_xor_si128(_mm_unpacklo_epi16(pairs[0], pairs[1]), flips));
      _mm_storeu_si128(out + 1, _mm_xor_si128(_mm_unpackhi_epi16(pairs[0], pairs[1]), flips));
    }
    return;
  }
  if (count >= kQuad) {
    const auto some = [&](int j, int64_t i) {
      return _mm_cvtsi32_si128(dynq::load(reinterpret_cast<const int32_t*>(rows[j] + i)));
    };
    for (int64_t i = 0; i <= count - kQuad; i += count > kQuad ? count - kQuad : 1) {
      const __m128i pairs[2] = {_mm_unpacklo_epi8(some(0, i), some(1, i)), _mm_unpacklo_epi8(some(2, i), some(3, i))};
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i * kQuad),
                       _mm_xor_si128(_mm_unpacklo_epi16(pairs[0], pairs[1]), _mm_set1_epi8(static_cast<char>(flip))));
    }
    return;
  }
  for (int64_t i = 0; i < count; ++i)
    for (int j = 0; j < kQuad; ++j) to[kQuad * i + j] = rows[j][i] ^ flip;
}

constexpr ProductKernels kProducts = {products<8, true, P::kBlocks>,
                                      products<8, false, P::kGroupBlocks>,
                                      products<4, false, P::kGroupBlocks>,
                                      nullptr,
                                      conv,
                                      sum_codes,
                                      interleave};
