// convolutions: codes of positions times packed weights of output channels to floats, written once for any type `P` of
// products (product-inl.h). A vector has the sums of P::kLanes adjacent positions and one channel, so that a channel of
// the output is written in order. P::overlapping_quads<>() are those of positions that are 1 or 2 codes apart.
// P::kConvSums sums, of P::kConvRows channels or fewer, fit the registers.

#include "kernels/simd/product-inl.h"

constexpr int kMostConvVectors = P::kConvRows;
constexpr int conv_vectors(int channels) {
  return P::kConvSums / channels < kMostConvVectors ? P::kConvSums / channels : kMostConvVectors;
}
static_assert(kMostConvVectors * P::kLanes <= kConvSlack, "kernels read whole vectors");

// How vectors of positions follow each other: kBytes is ConvBlock::position_bytes. They are adjacent, or each is of
// another row.
template <int kBytes_, bool kByRows_>
struct ConvForm {
  static constexpr int kBytes = kBytes_;
  static constexpr bool kByRows = kByRows_;

  static int64_t image_step(const ConvBlock& block) { return kByRows ? block.image_row : P::kLanes; }
  static int64_t dst_step(const ConvBlock& block) { return kByRows ? block.dst_row : P::kLanes; }
  static P::I quads(const uint8_t* codes) {
    if constexpr (kBytes == kQuad)
      return P::load(static_cast<const void*>(codes));
    else
      return P::template overlapping_quads<kBytes>(codes);
  }
};

template <class Form, int kStep, int kChannels, int kCount, class Sums>
inline void conv_step(const uint8_t* codes, int64_t step, const typename P::I (&weights)[kChannels], Sums& sums) {
  typename P::I w[kChannels];
#pragma GCC unroll 8
  for (int c = 0; c < kChannels; ++c) w[c] = weights_of<kStep>(weights[c]);
#pragma GCC unroll 8
  for (int v = 0; v < kCount; ++v) {
    const auto quads = codes_of<kStep>(Form::quads(codes + v * step * Form::kBytes));
#pragma GCC unroll 8
    for (int c = 0; c < kChannels; ++c) sums[c][v] = P::dot(sums[c][v], quads, w[c]);
  }
}

// Adds the products of all quads, whose weights are `weights_step` bytes apart: kChannels channels, kCount vectors from
// `position` of the image on.
template <class Form, int kChannels, int kCount, class Sums>
inline void conv_products(const ConvBlock& block, const int8_t* weights, int64_t weights_step, int64_t position,
                          Sums& sums) {
  const uint8_t* image = block.image + position * Form::kBytes;
  const int64_t step = Form::image_step(block);
  for (int64_t quad = 0; quad < block.quads; ++quad, weights += weights_step) {
    const uint8_t* codes = image + block.offsets[quad];
    typename P::I w[kChannels];
#pragma GCC unroll 8
    for (int c = 0; c < kChannels; ++c) w[c] = P::quad(reinterpret_cast<const uint8_t*>(weights) + c * kQuad);
    conv_step<Form, 0, kChannels, kCount>(codes, step, w, sums);
    if constexpr (P::kSteps == 2) conv_step<Form, 1, kChannels, kCount>(codes, step, w, sums);
  }
}

// The products of one channel whose kernel has kKernelRows rows: each quad of the image is loaded once, for all vectors
// that multiply it.
template <class Form, int kStep, int kKernelRows, int kCount>
inline void conv_row_step(const ConvBlock& block, const int8_t* weights, const uint8_t* codes,
                          typename P::I (&sums)[1][kCount]) {
  const int64_t row_quads = block.quads / kKernelRows, step = block.image_row * Form::kBytes;
  for (int64_t quad = 0; quad < row_quads; ++quad, codes += kQuad) {
    typename P::I w[kKernelRows];
#pragma GCC unroll 8
    for (int k = 0; k < kKernelRows; ++k)
      w[k] =
          weights_of<kStep>(P::quad(reinterpret_cast<const uint8_t*>(weights) + (k * row_quads + quad) * kBlockBytes));
#pragma GCC unroll 16
    for (int row = 0; row < kCount + kKernelRows - 1; ++row) {
      const auto quads = codes_of<kStep>(Form::quads(codes + row * step));
#pragma GCC unroll 8
      for (int k = 0; k < kKernelRows; ++k)
        if (row - k >= 0 && row - k < kCount) sums[0][row - k] = P::dot(sums[0][row - k], quads, w[k]);
    }
  }
}

template <class Form, int kKernelRows, int kCount>
inline void conv_row_products(const ConvBlock& block, const int8_t* weights, int64_t position,
                              typename P::I (&sums)[1][kCount]) {
  const uint8_t* codes = block.image + position * Form::kBytes + block.offsets[0];
  conv_row_step<Form, 0, kKernelRows, kCount>(block, weights, codes, sums);
  if constexpr (P::kSteps == 2) conv_row_step<Form, 1, kKernelRows, kCount>(block, weights, codes, sums);
}

template <class Form, int kChannels, int kCount>
void conv_some(const ConvBlock& block, int64_t channel, int64_t row, int64_t col) {
  const int64_t position = row * block.image_row + col;
  typename P::I sums[kChannels][kCount];
#pragma GCC unroll 8
  for (int c = 0; c < kChannels; ++c) {
    const auto channel_sum = static_cast<uint32_t>(load(block.channel_sums + channel + c));
    const auto correction = P::set1(static_cast<int32_t>(0u - static_cast<uint32_t>(block.zp) * channel_sum));
#pragma GCC unroll 8
    for (int v = 0; v < kCount; ++v) sums[c][v] = correction;
  }
  if (block.weight_zps != nullptr || block.weight_zp != 0) {
#pragma GCC unroll 8
    for (int c = 0; c < kChannels; ++c) {
      const auto zp = P::set1(block.weight_zps == nullptr ? block.weight_zp : block.weight_zps[channel + c]);
#pragma GCC unroll 8
      for (int v = 0; v < kCount; ++v)
        sums[c][v] = P::sub(sums[c][v], P::mul(zp, P::load(block.code_sums + position + v * Form::image_step(block))));
    }
  }
  const int8_t* weights = block.weights + channel * kQuad;
  if constexpr (Form::kByRows && kChannels == 1 && kCount > 1) {
    if (block.kernel_rows == 3)
      conv_row_products<Form, 3, kCount>(block, weights, position, sums);
    else if (block.kernel_rows == 5)
      conv_row_products<Form, 5, kCount>(block, weights, position, sums);
    else
      conv_products<Form, kChannels, kCount>(block, weights, kBlockBytes, position, sums);
  } else {
    conv_products<Form, kChannels, kCount>(block, weights, kBlockBytes, position, sums);
  }
#pragma GCC unroll 8
  for (int c = 0; c < kChannels; ++c) {
    const float scale = block.scale, channel_scale = load(block.channel_scales + channel + c);
    const auto first = P::set1(block.order == kScalesFirst ? scale * channel_scale
                               : block.order == kRowFirst  ? scale
                                                           : channel_scale);
    const auto second = P::set1(block.order == kScalesFirst ? 1.0f : block.order == kRowFirst ? channel_scale : scale);
    const auto bias = P::set1(load(block.bias + channel + c));
    const auto lowest = P::set1(block.lowest), highest = P::set1(block.highest);
    float* dst = block.dst + (channel + c) * block.dst_stride + row * block.dst_row + col;
#pragma GCC unroll 8
    for (int v = 0; v < kCount; ++v) {
      const auto sum = P::add(P::mul(P::mul(P::to_float(sums[c][v]), first), second), bias);
      const auto real = P::min(highest, P::max(lowest, sum));
      const int64_t n = block.cols - col - (Form::kByRows ? 0 : v * P::kLanes);
      if (n >= P::kLanes)
        P::store(dst + v * Form::dst_step(block), real);
      else
        P::store_part(dst + v * Form::dst_step(block), real, P::first(n));
    }
  }
}

// Channels from `first` to `last`, kChannels at once. Each function takes some vectors of positions, whose codes stay
// in the first-level cache for all channels.
template <class Form, int kChannels>
void conv_channels(const ConvBlock& block, int64_t first, int64_t last) {
  constexpr int kMost = conv_vectors(kChannels), kHalf = (kMost + 1) / 2;
  // One vector alone takes as long as two, which wait less for the sums before: 2 and 2 instead of 3 and 1.
  const auto next = [](int64_t vectors) {
    return vectors == kMost || vectors >= kMost + kHalf ? kMost : vectors >= kHalf ? kHalf : 1;
  };
  const auto run = [&](int count, int64_t row, int64_t col) {
    for (int64_t channel = first; channel < last; channel += kChannels)
      (count == kMost   ? conv_some<Form, kChannels, kMost>
       : count == kHalf ? conv_some<Form, kChannels, kHalf>
                        : conv_some<Form, kChannels, 1>)(block, channel, row, col);
  };
  if constexpr (Form::kByRows) {
    for (int64_t row = 0; row < block.rows;) {
      int count = next(block.rows - row);
      if (count < kHalf && block.rows >= kHalf) {  // the last rows once more, with those before: rows share codes
        count = kHalf;
        row = block.rows - kHalf;
      }
      for (int64_t col = 0; col < block.cols; col += P::kLanes) run(count, row, col);
      row += count;
    }
  } else {
    for (int64_t row = 0; row < block.rows; ++row)
      for (int64_t col = 0; col < block.cols;) {
        const int count = next((block.cols - col + P::kLanes - 1) / P::kLanes);
        run(count, row, col);
        col += count * P::kLanes;
      }
  }
}

template <class Form, int kChannels>
void conv_from(const ConvBlock& block, int64_t channel) {
  const int64_t last = block.channels - (block.channels - channel) % kChannels;
  if (channel < last) conv_channels<Form, kChannels>(block, channel, last);
  if constexpr (kChannels > 1) conv_from<Form, kChannels / 2>(block, last);
}

// Rows are for a few channels of each group, so that one channel at once does.
inline void conv(const ConvBlock& block) {
  if (block.position_bytes == kQuad)
    conv_from<ConvForm<kQuad, false>, P::kConvRows>(block, 0);
  else if (block.position_bytes == 2)
    conv_from<ConvForm<2, true>, 1>(block, 0);
  else if (block.rows > 1)
    conv_from<ConvForm<1, true>, 1>(block, 0);
  else
    conv_from<ConvForm<1, false>, P::kConvRows>(block, 0);
}

template <int kBytes>
void sum_codes_of(const ConvBlock& block) {
  const int64_t positions = (block.rows - 1) * block.image_row + block.cols;
  for (int64_t position = 0; position < positions; position += kMostConvVectors * P::kLanes) {
    typename P::I sums[1][kMostConvVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kMostConvVectors; ++v) sums[0][v] = P::set1(0);
    conv_products<ConvForm<kBytes, false>, 1, kMostConvVectors>(block, block.ones, kQuad, position, sums);
#pragma GCC unroll 8
    for (int v = 0; v < kMostConvVectors; ++v) P::store(block.code_sums + position + v * P::kLanes, sums[0][v]);
  }
}

inline void sum_codes(const ConvBlock& block) {
  (block.position_bytes == kQuad ? sum_codes_of<kQuad>
   : block.position_bytes == 2   ? sum_codes_of<2>
                                 : sum_codes_of<1>)(block);
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
                                      nullptr,
                                      nullptr,
                                      conv,
                                      nullptr,
                                      nullptr,
                                      sum_codes,
                                      interleave};
