// Convolutions: codes of positions times packed weights of output channels, to floats, written once for any type C of
// convolutions. A vector has the sums of kLanes adjacent positions and one channel, so a channel of the output is
// written in order.

#include "kernels/simd/product-inl.h"

// The members of C. Nothing uses this struct, but the compiler checks that every member exists with its type.
struct ConvMembers {
  using F = C::F;  // kLanes floats
  using I = C::I;  // kLanes int32, or quads of codes
  using Quad = C::Quad;
  using Mask = C::Mask;
  static constexpr int64_t kLanes = C::kLanes;
  // The channels and the vectors of positions of a tile, at most: kConvSums sums fit the registers.
  static constexpr int kConvChannels = C::kConvChannels, kConvRows = C::kConvRows, kConvSums = C::kConvSums;
  static constexpr int kSteps = C::kSteps;  // calls of dot for the products of a quad: 1 or 2
  // dot takes codes - 128: the sums lack 128 times the sum of the weights (sum_weights).
  static constexpr bool kSignedCodes = C::kSignedCodes;

  F (*set1_float)(float) = C::set1;
  I (*set1_int)(int32_t) = C::set1;
  I (*load)(const void*) = C::load;
  void (*store_floats)(float*, F) = C::store;
  void (*store_ints)(void*, I) = C::store;
  Mask (*first)(int64_t n) = C::first;  // the first n lanes, for any n
  void (*store_first)(float*, F, Mask) = C::store_part;

  F (*add)(F, F) = C::add;
  F (*mul)(F, F) = C::mul;
  F (*min)(F, F) = C::min;  // the second argument if either is NaN, or if both are zeros
  F (*max)(F, F) = C::max;  // likewise
  I (*sub_ints)(I, I) = C::sub;
  I (*mul_ints)(I, I) = C::mul;
  F (*to_float)(I) = C::to_float;

  Quad (*quad)(const uint8_t* weights) = C::quad;  // for all lanes
  Quad (*weights_of)(Quad) = C::weights_of<0>;     // as dot takes them in a step
  I (*codes_of)(I) = C::codes_of<0>;               // likewise
  I (*dot)(I sums, I codes, Quad weights) = C::dot;
  I (*quads_1)(const uint8_t*) = C::overlapping_quads<1>;  // of positions that are 1 code apart
  I (*quads_2)(const uint8_t*) = C::overlapping_quads<2>;
  // Interleaves 16, 8 or 4 codes of each row, from code i on.
  void (*store_quads)(const uint8_t* const (&rows)[kQuad], int64_t i, uint8_t flip, uint8_t* to) = C::store_quads<16>;
  // Also sum_weights if kSignedCodes, and store_halves if kSteps is 2.
};

constexpr int kMaxConvVectors = C::kConvRows;
constexpr int conv_vectors(int channels) {
  return C::kConvSums / channels < kMaxConvVectors ? C::kConvSums / channels : kMaxConvVectors;
}
static_assert(kMaxConvVectors * C::kLanes <= kConvSlack, "kernels read whole vectors");

// Where the vectors of positions of a tile are: adjacent in a row, or each in another row. kBytes is
// ConvInput::position_bytes.
template <int kBytes_, bool kByRows_>
struct ConvForm {
  static constexpr int kBytes = kBytes_;
  static constexpr bool kByRows = kByRows_;

  static int64_t image_step(const ConvBlock& block) { return kByRows ? block.input.row_stride : C::kLanes; }
  static int64_t dst_step(const ConvBlock& block) { return kByRows ? block.output.row_stride : C::kLanes; }
  static C::I quads(const uint8_t* codes) {
    if constexpr (kBytes == kQuad)
      return C::load(static_cast<const void*>(codes));
    else
      return C::template overlapping_quads<kBytes>(codes);
  }
};

// A block, and what the exact sums of each channel begin with, their factors and biases, for all lanes: a tile has too
// few positions to make these vectors itself.
struct ConvTask : ConvBlock {
  C::I corrections[kBlockColumns];
  C::F first[kBlockColumns], second[kBlockColumns], biases[kBlockColumns];
  bool has_second, clips;

  // Sets the vectors of the block's channels only: setting all to 0 takes as long as the products of a small block.
  explicit ConvTask(const ConvBlock& given);
};

// `Type` is C: only a template may call a function that C does not have.
template <class Type = C>
inline void sum_weights(const ConvBlock& block, const int8_t* weights, int64_t step, int64_t channels, int32_t* sums) {
  if constexpr (Type::kSignedCodes) Type::sum_weights(weights, step, block.input.quads, channels, sums);
}

template <class Form, int kStep, int kChannels, int kCount, class Sums>
inline void conv_step(const uint8_t* codes, int64_t step, const typename C::Quad (&weights)[kChannels], Sums& sums) {
  typename C::Quad w[kChannels];
#pragma GCC unroll 8
  for (int c = 0; c < kChannels; ++c) w[c] = C::weights_of<kStep>(weights[c]);
#pragma GCC unroll 8
  for (int v = 0; v < kCount; ++v) {
    const auto quads = C::codes_of<kStep>(Form::quads(codes + v * step * Form::kBytes));
#pragma GCC unroll 8
    for (int c = 0; c < kChannels; ++c) sums[c][v] = C::dot(sums[c][v], quads, w[c]);
  }
}

// Adds the products of all quads, with weights `weights_step` bytes apart, for kChannels channels and kCount
// vectors from `position` of the image on.
template <class Form, int kChannels, int kCount, class Sums>
inline void conv_products(const ConvBlock& block, const int8_t* weights, int64_t weights_step, int64_t position,
                          Sums& sums) {
  const uint8_t* image = block.input.image + position * Form::kBytes;
  const int64_t step = Form::image_step(block);
  for (int64_t quad = 0; quad < block.input.quads; ++quad, weights += weights_step) {
    const uint8_t* codes = image + block.input.offsets[quad];
    typename C::Quad w[kChannels];
#pragma GCC unroll 8
    for (int c = 0; c < kChannels; ++c) w[c] = C::quad(reinterpret_cast<const uint8_t*>(weights) + c * kQuad);
    conv_step<Form, 0, kChannels, kCount>(codes, step, w, sums);
    if constexpr (C::kSteps == 2) conv_step<Form, 1, kChannels, kCount>(codes, step, w, sums);
  }
}

// If C::kSteps is 2, the weights of a block are widened to int16 once for all positions: [kWideChannels channels each]
// [quads][steps][kWideChannels].
constexpr int64_t kWideChannels = 4, kWideStepBytes = kWideChannels * kQuad, kWideQuadBytes = 2 * kWideStepBytes;
constexpr int64_t kConvQuadBytes = C::kSteps == 2 ? kBlockColumns / kWideChannels * kWideQuadBytes : 0;

// `Type` is C: only a template may call functions that C does not have.
template <class Type = C>
void widen_conv_weights(const ConvBlock& block) {
  static_assert(Type::kLanes == 2 * kWideChannels, "a half of a vector has the weights of some channels");
  const int64_t quads = block.input.quads;
  for (int64_t channel = 0; channel < block.channels; channel += C::kLanes) {
    const int8_t* from = block.weights.packed + channel * kQuad;
    uint8_t* low = block.scratch.weights + channel * quads * (kWideQuadBytes / kWideChannels);
    uint8_t* high = low + quads * kWideQuadBytes;
    const auto mask = C::first(block.channels - channel);
    for (int64_t quad = 0; quad < quads; ++quad) {
      const auto w = C::load_part(reinterpret_cast<const int32_t*>(from), mask);
      Type::store_halves(low, high, Type::template weights_of<0>(w));
      Type::store_halves(low + kWideStepBytes, high + kWideStepBytes, Type::template weights_of<1>(w));
      from += kBlockBytes;
      low += kWideQuadBytes;
      high += kWideQuadBytes;
    }
  }
}

// As conv_products(), with the widened weights of channels from `channel` on.
template <class Form, int kChannels, int kCount, class Sums>
inline void conv_wide_products(const ConvBlock& block, int64_t channel, int64_t position, Sums& sums) {
  static_assert(kChannels <= kWideChannels, "they are adjacent");
  const int64_t in_group = channel & (kWideChannels - 1);
  const uint8_t* weights = block.scratch.weights +
                           (channel - in_group) * block.input.quads * (kWideQuadBytes / kWideChannels) +
                           in_group * kQuad;
  const uint8_t* image = block.input.image + position * Form::kBytes;
  const int64_t step = Form::image_step(block);
  for (int64_t quad = 0; quad < block.input.quads; ++quad, weights += kWideQuadBytes) {
    const uint8_t* codes = image + block.input.offsets[quad];
    typename C::I quads[kCount], c[kCount];
#pragma GCC unroll 8
    for (int v = 0; v < kCount; ++v) {
      quads[v] = Form::quads(codes + v * step * Form::kBytes);
      c[v] = C::template codes_of<0>(quads[v]);
    }
#pragma GCC unroll 8
    for (int i = 0; i < kChannels; ++i) {
      const auto w = C::quad(weights + i * kQuad);
#pragma GCC unroll 8
      for (int v = 0; v < kCount; ++v) sums[i][v] = C::dot(sums[i][v], c[v], w);
    }
#pragma GCC unroll 8
    for (int v = 0; v < kCount; ++v) c[v] = C::template codes_of<1>(quads[v]);
#pragma GCC unroll 8
    for (int i = 0; i < kChannels; ++i) {
      const auto w = C::quad(weights + kWideStepBytes + i * kQuad);
#pragma GCC unroll 8
      for (int v = 0; v < kCount; ++v) sums[i][v] = C::dot(sums[i][v], c[v], w);
    }
  }
}

// The products of one channel with a kernel of kKernelRows rows: each quad of the image is loaded once for all kernel
// rows that read it.
template <class Form, int kStep, int kKernelRows, int kCount>
inline void conv_row_step(const ConvBlock& block, const int8_t* weights, const uint8_t* codes,
                          typename C::I (&sums)[1][kCount]) {
  const int64_t row_quads = block.input.quads / kKernelRows, step = block.input.row_stride * Form::kBytes;
  for (int64_t quad = 0; quad < row_quads; ++quad, codes += kQuad) {
    typename C::Quad w[kKernelRows];
#pragma GCC unroll 8
    for (int k = 0; k < kKernelRows; ++k)
      w[k] = C::weights_of<kStep>(
          C::quad(reinterpret_cast<const uint8_t*>(weights) + (k * row_quads + quad) * kBlockBytes));
#pragma GCC unroll 16
    for (int row = 0; row < kCount + kKernelRows - 1; ++row) {
      const auto quads = C::codes_of<kStep>(Form::quads(codes + row * step));
#pragma GCC unroll 8
      for (int k = 0; k < kKernelRows; ++k)
        if (row - k >= 0 && row - k < kCount) sums[0][row - k] = C::dot(sums[0][row - k], quads, w[k]);
    }
  }
}

template <class Form, int kKernelRows, int kCount>
inline void conv_row_products(const ConvBlock& block, const int8_t* weights, int64_t position,
                              typename C::I (&sums)[1][kCount]) {
  const uint8_t* codes = block.input.image + position * Form::kBytes + block.input.offsets[0];
  conv_row_step<Form, 0, kKernelRows, kCount>(block, weights, codes, sums);
  if constexpr (C::kSteps == 2) conv_row_step<Form, 1, kKernelRows, kCount>(block, weights, codes, sums);
}

// What the sums begin with: corrections of the channels, and zero points of weights times sums of codes.
template <class Form, int kChannels, int kCount>
ORT_DYNQ_INLINE inline void begin_conv_sums(const ConvTask& block, int64_t channel, int64_t position,
                                            typename C::I (&sums)[kChannels][kCount]) {
#pragma GCC unroll 8
  for (int c = 0; c < kChannels; ++c)
#pragma GCC unroll 8
    for (int v = 0; v < kCount; ++v) sums[c][v] = block.corrections[channel + c];
  if (!has_zero_points(block.weights)) return;
#pragma GCC unroll 8
  for (int c = 0; c < kChannels; ++c) {
    const auto zp = C::set1(block.weights.zps == nullptr ? block.weights.zp : block.weights.zps[channel + c]);
#pragma GCC unroll 8
    for (int v = 0; v < kCount; ++v)
      sums[c][v] =
          C::sub(sums[c][v], C::mul(zp, C::load(block.scratch.code_sums + position + v * Form::image_step(block))));
  }
}

template <class Form, int kChannels, int kCount>
ORT_DYNQ_INLINE inline void add_conv_products(const ConvTask& block, int64_t channel, int64_t position,
                                              typename C::I (&sums)[kChannels][kCount]) {
  [[maybe_unused]] const int8_t* weights = block.weights.packed + channel * kQuad;
  if constexpr (Form::kByRows && kChannels == 1 && kCount > 1) {
    if (block.input.kernel_rows == 3)
      conv_row_products<Form, 3, kCount>(block, weights, position, sums);
    else if (block.input.kernel_rows == 5)
      conv_row_products<Form, 5, kCount>(block, weights, position, sums);
    else
      conv_products<Form, kChannels, kCount>(block, weights, kBlockBytes, position, sums);
  } else if constexpr (C::kSteps == 2 && Form::kBytes == kQuad) {
    conv_wide_products<Form, kChannels, kCount>(block, channel, position, sums);
  } else {
    conv_products<Form, kChannels, kCount>(block, weights, kBlockBytes, position, sums);
  }
}

// The outputs of exact sums: scaled, with bias, and clipped.
template <int kChannels, int kCount>
ORT_DYNQ_INLINE inline void scale_conv_sums(const ConvTask& block, int64_t channel,
                                            const typename C::I (&sums)[kChannels][kCount],
                                            typename C::F (&reals)[kChannels][kCount]) {
#pragma GCC unroll 8
  for (int c = 0; c < kChannels; ++c)
#pragma GCC unroll 8
    for (int v = 0; v < kCount; ++v) reals[c][v] = C::mul(C::to_float(sums[c][v]), block.first[channel + c]);
  if (block.has_second) {
#pragma GCC unroll 8
    for (int c = 0; c < kChannels; ++c)
#pragma GCC unroll 8
      for (int v = 0; v < kCount; ++v) reals[c][v] = C::mul(reals[c][v], block.second[channel + c]);
  }
#pragma GCC unroll 8
  for (int c = 0; c < kChannels; ++c)
#pragma GCC unroll 8
    for (int v = 0; v < kCount; ++v) reals[c][v] = C::add(reals[c][v], block.biases[channel + c]);
  if (!block.clips) return;
  const auto lowest = C::set1(block.scaling.lowest), highest = C::set1(block.scaling.highest);
#pragma GCC unroll 8
  for (int c = 0; c < kChannels; ++c)
#pragma GCC unroll 8
    for (int v = 0; v < kCount; ++v) reals[c][v] = C::min(highest, C::max(lowest, reals[c][v]));
}

// Addresses are computed before the first store: compilers assume that a store of a vector changes the block, and would
// compute those of the others again.
template <class Form, int kChannels, int kCount>
ORT_DYNQ_INLINE inline void store_conv_outputs(const ConvTask& block, int64_t channel, int64_t row, int64_t col,
                                               const typename C::F (&reals)[kChannels][kCount]) {
  const int64_t channel_stride = block.output.channel_stride, step = Form::dst_step(block), cols = block.cols - col;
  float* const dst = block.output.dst + channel * channel_stride + row * block.output.row_stride + col;
  if (cols >= (Form::kByRows ? 1 : kCount) * C::kLanes) {
#pragma GCC unroll 8
    for (int c = 0; c < kChannels; ++c)
#pragma GCC unroll 8
      for (int v = 0; v < kCount; ++v) C::store(dst + c * channel_stride + v * step, reals[c][v]);
    return;
  }
#pragma GCC unroll 8
  for (int v = 0; v < kCount; ++v) {
    const int64_t n = cols - (Form::kByRows ? 0 : v * C::kLanes);
    const typename C::Mask mask = C::first(n);
#pragma GCC unroll 8
    for (int c = 0; c < kChannels; ++c) {
      float* const to = dst + c * channel_stride + v * step;
      if (n >= C::kLanes)
        C::store(to, reals[c][v]);
      else
        C::store_part(to, reals[c][v], mask);
    }
  }
}

template <class Form, int kChannels, int kCount>
void conv_tile(const ConvTask& block, int64_t channel, int64_t row, int64_t col) {
  const int64_t position = row * block.input.row_stride + col;
  typename C::I sums[kChannels][kCount];
  begin_conv_sums<Form>(block, channel, position, sums);
  add_conv_products<Form>(block, channel, position, sums);
  typename C::F reals[kChannels][kCount];
  scale_conv_sums(block, channel, sums, reals);
  store_conv_outputs<Form>(block, channel, row, col, reals);
}

#include "kernels/simd/conv-channels-inl.h"

// What an exact sum of a channel begins with, its zero point, and how it becomes an output. `weight_sum`: of the
// weights, if C::kSignedCodes.
struct ConvChannel {
  int32_t correction, zp;
  ConvFactors factors;
  float bias;

  ConvChannel(const ConvBlock& block, int64_t channel, int32_t weight_sum) {
    const ConvScaling& scaling = block.scaling;
    const auto sum = static_cast<uint32_t>(load(scaling.channel_sums + channel));
    correction =
        static_cast<int32_t>(128u * static_cast<uint32_t>(weight_sum) - static_cast<uint32_t>(scaling.zp) * sum);
    zp = block.weights.zps == nullptr ? block.weights.zp : block.weights.zps[channel];
    factors = factors_of(scaling, channel);
    bias = load(scaling.bias + channel);
  }
};

inline ConvTask::ConvTask(const ConvBlock& given)
    : ConvBlock(given),
      has_second(given.scaling.order != kScalesFirst),
      clips(given.scaling.lowest > -INFINITY || given.scaling.highest < INFINITY) {
  int32_t weight_sums[kBlockColumns] = {};
  sum_weights(given, given.weights.packed, kBlockBytes, given.channels, weight_sums);
  for (int64_t c = 0; c < given.channels; ++c) {
    const ConvChannel channel(given, c, weight_sums[c]);
    corrections[c] = C::set1(channel.correction);
    first[c] = C::set1(channel.factors.first);
    second[c] = C::set1(channel.factors.second);
    biases[c] = C::set1(channel.bias);
  }
}

// Overlapping quads are for groups of few output channels: one channel at once is enough.
inline void conv(const ConvBlock& given) {
  const ConvTask block(given);
  if constexpr (C::kSteps == 2)
    if (block.input.position_bytes == kQuad) widen_conv_weights(block);
  if (block.input.position_bytes == kQuad)
    conv_remaining_channels<ConvForm<kQuad, false>, C::kConvChannels>(block, 0);
  else if (block.input.position_bytes == 2)
    conv_remaining_channels<ConvForm<2, true>, 1>(block, 0);
  else if (block.rows > 1)
    conv_remaining_channels<ConvForm<1, true>, 1>(block, 0);
  else
    conv_remaining_channels<ConvForm<1, false>, C::kConvChannels>(block, 0);
}

template <int kBytes>
void sum_conv_codes_of(const ConvBlock& block) {
  const int64_t positions = (block.rows - 1) * block.input.row_stride + block.cols;
  int32_t ones = 0;
  sum_weights(block, block.weights.ones, kQuad, 1, &ones);
  for (int64_t position = 0; position < positions; position += kMaxConvVectors * C::kLanes) {
    typename C::I sums[1][kMaxConvVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kMaxConvVectors; ++v) sums[0][v] = C::set1(C::kSignedCodes ? 128 * ones : 0);
    conv_products<ConvForm<kBytes, false>, 1, kMaxConvVectors>(block, block.weights.ones, kQuad, position, sums);
#pragma GCC unroll 8
    for (int v = 0; v < kMaxConvVectors; ++v) C::store(block.scratch.code_sums + position + v * C::kLanes, sums[0][v]);
  }
}

inline void sum_conv_codes(const ConvBlock& block) {
  (block.input.position_bytes == kQuad ? sum_conv_codes_of<kQuad>
   : block.input.position_bytes == 2   ? sum_conv_codes_of<2>
                                       : sum_conv_codes_of<1>)(block);
}

// The last vector overlaps the one before, so that it ends with the row. Rows of fewer than 4 codes are copied one by
// one.
template <int64_t kCodes = 16>
void interleave_quads(const uint8_t* const (&rows)[kQuad], int64_t count, uint8_t flip, uint8_t* to) {
  if constexpr (kCodes >= kQuad) {
    if (count < kCodes) return interleave_quads<kCodes / 2>(rows, count, flip, to);
    // Copies, which no store changes.
    const uint8_t* const codes[kQuad] = {rows[0], rows[1], rows[2], rows[3]};
    for (int64_t i = 0; i < count; i += kCodes)
      C::store_quads<kCodes>(codes, i + kCodes <= count ? i : count - kCodes, flip, to);
  } else {
    for (int64_t i = 0; i < count; ++i)
      for (int j = 0; j < kQuad; ++j) to[kQuad * i + j] = rows[j][i] ^ flip;
  }
}

constexpr ProductKernels product_kernels(const WinogradKernels* winograd = nullptr,
                                         const StrassenKernels* strassen = nullptr) {
  ProductKernels table = {};
  table.gemm_qc8w = gemm<8, true, P::kBlocks>;
  table.gemm_qb8w = gemm<8, false, P::kGroupBlocks>;
  table.gemm_qb4w = gemm<4, false, P::kGroupBlocks>;
  table.gemm_qb2w = gemm_2bit;
  table.form_name = name_of_form;
  if (P::kSteps == 2)
    table.words = kWordsWithoutBytes;
  else if (kIsBlock)
    table.words = kWordsBesideVnni;
  table.sum_columns_8bit = sum_columns<8>;
  table.sum_columns_4bit = sum_columns<4>;
  table.sums_codes_4bit = table.makes_sums_4bit = P::kSteps == 2;
  table.conv = conv;
  table.conv_quad_bytes = kConvQuadBytes;
  table.sum_conv_codes = sum_conv_codes;
  table.interleave_quads = interleave_quads<>;
  table.winograd = winograd;
  table.strassen = strassen;
  return table;
}
