// The portable kernels of matrix products and convolutions in plain C++: they define the correct results. As in
// portable.cc, compilers vectorize the loops for the baseline of any CPU.
#include "kernels/products.h"

namespace dynq {
namespace {

// Products. The depth is cut into groups; exact[g] is an int32, which wraps.
//
//   exact[g] = the sum over group g of (code - row_zp) * (weight - weight_zp), of joined terms kTermRatio * that of the
//              first row + that of the second one
//   sum = -0; for each g, ascending: sum = sum + float(exact[g]) * column_scale[g] * row_scale[g]
//   dst = sum + bias
//
// If row_scale does not vary with g, it multiplies the sum instead of every float(exact[g]). If row_scale varies,
// column_scale always multiplies float(exact[g]) first: with a large row_scale alone, the sum might overflow. If no
// scale varies:
//
//   kScalesFirst    dst = sum * (row_scale * column_scale) + bias
//   kRowFirst       dst = sum * row_scale * column_scale + bias
//   kColumnFirst    dst = sum * column_scale * row_scale + bias
//
// Operations of equal precedence are evaluated from left to right.

// The loops widen codes and weights to int16, kWidened k at once: CPUs have dot products of int16.
constexpr int64_t kWidened = 256, kWidenedUnit = 16, kProductRows = 16;

// The lowest bit of a code in its byte, by the number of its quad.
template <int kBits>
int shift_of(int64_t quad) {
  constexpr int kShifts[] = {0, 4, 2, 6};
  return kBits == 2 ? kShifts[quad % 4] : kBits == 4 ? kShifts[quad % 2] : 0;
}

// Widens `quads` quads of a block of 16 columns, from quad `first` on. Subtracts the zero points of 2-bit and 4-bit
// weights.
template <int kBits>
void widen_weights(const int8_t* block, int64_t first, int64_t quads, const int32_t* zps, int16_t (*to)[kWidened]) {
  constexpr int64_t kBytes = kBlockColumns * kQuad;
  int16_t subtracted[kBytes];
  for (int64_t i = 0; i < kBytes; ++i) subtracted[i] = static_cast<int16_t>(zps[i / kQuad]);
  for (int64_t quad = first; quad < first + quads; ++quad) {
    const int8_t* __restrict from = block + quad * kBits / 8 * kBytes;
    const int shift = shift_of<kBits>(quad);
    int16_t wide[kBytes];
    for (int64_t i = 0; i < kBytes; ++i)
      wide[i] = static_cast<int16_t>(kBits == 8 ? from[i] : (from[i] >> shift & ((1 << kBits) - 1)) - subtracted[i]);
    for (int64_t column = 0; column < kBlockColumns; ++column)
      memcpy(to[column] + (quad - first) * kQuad, wide + column * kQuad, kQuad * sizeof(int16_t));
  }
}

template <int kBits>
void read_zps(const ProductBlock& block, int64_t group, int64_t first, int64_t count, int32_t* zps) {
  for (int64_t i = 0; i < kBlockColumns; ++i) {
    zps[i] = block.weights.zps == nullptr ? block.weights.zp
             : i < count                  ? block.weights.zps[group * block.weights.zps_stride + first + i]
                                          : 0;
    if (kBits < 8) zps[i] &= 15;
  }
}

// Four sums share each load of codes.
constexpr int64_t kDots = 4;
void add_dots(const int16_t* __restrict codes, const int16_t (*__restrict weights)[kWidened], int64_t count,
              uint32_t* sums) {
  int32_t s0 = 0, s1 = 0, s2 = 0, s3 = 0;
  for (int64_t i = 0; i < count; ++i) {
    s0 += codes[i] * weights[0][i];
    s1 += codes[i] * weights[1][i];
    s2 += codes[i] * weights[2][i];
    s3 += codes[i] * weights[3][i];
  }
  sums[0] += static_cast<uint32_t>(s0);
  sums[1] += static_cast<uint32_t>(s1);
  sums[2] += static_cast<uint32_t>(s2);
  sums[3] += static_cast<uint32_t>(s3);
}

// Adds the products of `rows` rows and a block of 16 columns. The sums are unsigned because they may wrap.
template <int kBits>
void add_products(const ProductBlock& block, const uint8_t* codes, int64_t rows, const int8_t* weights, int64_t first,
                  int64_t quads, const int32_t* zps, uint32_t (*sums)[kBlockColumns]) {
  const int64_t count = quads * kQuad, padded = (count + kWidenedUnit - 1) / kWidenedUnit * kWidenedUnit;
  int16_t wide_weights[kBlockColumns][kWidened], wide_codes[kWidened];
  for (int64_t column = 0; column < kBlockColumns; ++column)
    for (int64_t i = count; i < padded; ++i) wide_weights[column][i] = 0;
  widen_weights<kBits>(weights, first, quads, zps, wide_weights);
  for (int64_t i = count; i < padded; ++i) wide_codes[i] = 0;
  for (int64_t row = 0; row < rows; ++row) {
    const uint8_t* __restrict from = codes + row * block.codes.stride + first * kQuad;
    for (int64_t i = 0; i < count; ++i) wide_codes[i] = from[i];
    for (int64_t column = 0; column < kBlockColumns; column += kDots)
      add_dots(wide_codes, wide_weights + column, padded, sums[row] + column);
  }
}

float column_scale(const ProductColumns& columns, int64_t at) {
  return columns.halves == nullptr ? load(columns.scales + at) : widen_f16(load(columns.halves + at));
}

// A tile of up to kProductRows rows and up to 16 columns.
struct Tile {
  int64_t row, rows, first, count;
};

// exact[group] of each element of a tile, and of its row of ones if there is one.
template <int kBits>
void exact_sums(const ProductBlock& block, const Tile& tile, int64_t group, int32_t (*exact)[kBlockColumns]) {
  const ProductCodes& codes = block.codes;
  const int64_t quads = block.depth / kQuad / block.groups;
  int32_t weight_zps[kBlockColumns];
  read_zps<kBits>(block, group, tile.first, tile.count, weight_zps);
  uint32_t products[kProductRows][kBlockColumns] = {};
  for (int64_t quad = 0; quad < quads; quad += kWidened / kQuad)
    add_products<kBits>(block, codes.data + tile.row * codes.stride, tile.rows,
                        block.weights.packed + tile.first / kBlockColumns * block.weights.stride, group * quads + quad,
                        quads - quad < kWidened / kQuad ? quads - quad : kWidened / kQuad, weight_zps, products);
  const bool has_no_sums = kBits < 8 || codes.sums == nullptr;  // widen_weights() subtracts zero points
  const auto sum_of_row = [&](int64_t r) {
    return has_no_sums ? 0 : static_cast<uint32_t>(codes.sums[(tile.row + r) * block.groups + group]);
  };
  uint32_t column_sums[kBlockColumns];
  for (int64_t i = 0; i < tile.count; ++i)
    column_sums[i] =
        codes.has_ones
            ? products[tile.rows - 1][i] - static_cast<uint32_t>(weight_zps[i]) * sum_of_row(tile.rows - 1)
            : static_cast<uint32_t>(load(block.columns.sums + group * block.columns.sums_stride + tile.first + i));
  const int32_t* const zps = codes.zps + tile.row * codes.scale_groups + (codes.scale_groups > 1 ? group : 0);
  for (int64_t r = 0; r < tile.rows - codes.has_ones; ++r) {
    const auto row_zp = static_cast<uint32_t>(zps[r * codes.scale_groups]);
    const uint32_t row_sum = sum_of_row(r);
    for (int64_t i = 0; i < tile.count; ++i)
      exact[r][i] = static_cast<int32_t>(products[r][i] - static_cast<uint32_t>(weight_zps[i]) * row_sum -
                                         row_zp * column_sums[i]);
  }
}

// Of each two rows.
void join_terms(int64_t rows, int64_t count, int32_t (*exact)[kBlockColumns]) {
  for (int64_t r = 0; r + 1 < rows; r += 2)
    for (int64_t i = 0; i < count; ++i)
      exact[r][i] = static_cast<int32_t>(static_cast<uint32_t>(exact[r][i]) * static_cast<uint32_t>(kTermRatio) +
                                         static_cast<uint32_t>(exact[r + 1][i]));
}

float scaled(float sum, ScaleOrder order, float row_scale, float column_scale) {
  return order == kScalesFirst ? sum * (row_scale * column_scale)
         : order == kRowFirst  ? sum * row_scale * column_scale
                               : sum * column_scale * row_scale;
}

void store_tile(const ProductBlock& block, const Tile& tile, const float (*sums)[kBlockColumns]) {
  const bool row_varies = block.codes.scale_groups > 1, in_groups = row_varies || block.columns.scale_groups > 1;
  for (int64_t r = 0; r < tile.rows - block.codes.has_ones; ++r) {
    const float scale = row_varies ? 1.0f : block.codes.scales[tile.row + r];
    float* const dst = block.output.dst + (tile.row + r) * block.output.stride + tile.first;
    for (int64_t i = 0; i < tile.count; ++i) {
      const float real = in_groups
                             ? sums[r][i] * scale
                             : scaled(sums[r][i], block.order, scale, column_scale(block.columns, tile.first + i));
      store(dst + i, real + load(block.columns.bias + tile.first + i));
    }
  }
}

template <int kBits>
void gemm_tile(const ProductBlock& block, const Tile& tile) {
  const float* const scales = block.codes.scales + tile.row * block.codes.scale_groups;
  const bool row_varies = block.codes.scale_groups > 1, column_varies = block.columns.scale_groups > 1;
  const bool in_groups = row_varies || column_varies;
  const int64_t rows = tile.rows - block.codes.has_ones;
  float sums[kProductRows][kBlockColumns];
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t i = 0; i < tile.count; ++i) sums[r][i] = -0.0f;
  for (int64_t group = 0; group < block.groups; ++group) {
    int32_t exact[kProductRows][kBlockColumns];
    exact_sums<kBits>(block, tile, group, exact);
    if (block.joins_terms) join_terms(rows, tile.count, exact);
    const int64_t column = (column_varies ? group : 0) * block.columns.scales_stride + tile.first;
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t i = 0; i < tile.count; ++i) {
        float term = static_cast<float>(exact[r][i]);
        if (in_groups) term *= column_scale(block.columns, column + i);
        if (row_varies) term *= scales[r * block.codes.scale_groups + group];
        sums[r][i] += term;
      }
  }
  store_tile(block, tile, sums);
}

template <int kBits>
void gemm(const ProductBlock& block) {
  for (int64_t first = 0; first < block.cols; first += kBlockColumns)
    for (int64_t row = 0; row < block.rows; row += kProductRows)
      gemm_tile<kBits>(block, {row, block.rows - row < kProductRows ? block.rows - row : kProductRows, first,
                               block.cols - first < kBlockColumns ? block.cols - first : kBlockColumns});
}

template <int kBits>
void sum_columns(const ProductBlock& block, int32_t* sums) {
  const int64_t quads = block.depth / kQuad / block.groups;
  for (int64_t first = 0; first < block.cols; first += kBlockColumns)
    for (int64_t group = 0; group < block.groups; ++group) {
      const int64_t count = block.cols - first < kBlockColumns ? block.cols - first : kBlockColumns;
      int32_t zps[kBlockColumns];
      read_zps<kBits>(block, group, first, count, zps);
      uint32_t products[1][kBlockColumns] = {};
      for (int64_t quad = 0; quad < quads; quad += kWidened / kQuad)
        add_products<kBits>(block, block.codes.data, 1,
                            block.weights.packed + first / kBlockColumns * block.weights.stride, group * quads + quad,
                            quads - quad < kWidened / kQuad ? quads - quad : kWidened / kQuad, zps, products);
      for (int64_t i = 0; i < count; ++i) {
        const uint32_t ones = kBits == 4 ? 0 : static_cast<uint32_t>(block.codes.sums[group]);
        sums[group * block.cols + first + i] =
            static_cast<int32_t>(products[0][i] - static_cast<uint32_t>(zps[i]) * ones);
      }
    }
}

// Convolutions: exact, int32, is the sum over the quads of (code - zp) * (weight - weight_zp). The rest is as for
// products of one group, with the scale in place of the row's scale and the channel's scale in place of the column's.

// Sums of kPositions positions. The four codes of a quad have separate sums until all quads are added. Sums may wrap:
// nothing checks that the padding of weights is 0.
constexpr int64_t kPositions = 64;

template <int64_t kBytes>
void add_overlapping_quads(const uint8_t* __restrict codes, const int8_t* weights, uint32_t* __restrict sums) {
  const int16_t w0 = weights[0], w1 = weights[1], w2 = weights[2], w3 = weights[3];
  for (int64_t i = 0; i < kPositions; ++i) {
    const uint8_t* c = codes + i * kBytes;
    sums[i * kQuad] += static_cast<uint32_t>(c[0] * w0 + c[1] * w1 + c[2] * w2 + c[3] * w3);
  }
}

void add_quads(const uint8_t* __restrict codes, const int8_t* weights, uint32_t* __restrict sums) {
  int16_t wide[kQuad * 4];
  for (int64_t i = 0; i < kQuad * 4; ++i) wide[i] = weights[i % kQuad];
  for (int64_t i = 0; i < kPositions * kQuad; i += kQuad * 4)
    for (int64_t j = 0; j < kQuad * 4; ++j) sums[i + j] += static_cast<uint32_t>(codes[i + j] * wide[j]);
}

// The sums for kPositions positions from `position` of the image on.
void conv_products(const ConvBlock& block, int64_t position, const int8_t* weights, int64_t step,
                   int32_t (&totals)[kPositions]) {
  uint32_t sums[kPositions * kQuad] = {};
  for (int64_t quad = 0; quad < block.input.quads; ++quad)
    (block.input.position_bytes == kQuad ? add_quads
     : block.input.position_bytes == 2   ? add_overlapping_quads<2>
                                         : add_overlapping_quads<1>)(block.input.image + block.input.offsets[quad] +
                                                                       position * block.input.position_bytes,
                                                                   weights + quad * step, sums);
  for (int64_t i = 0; i < kPositions; ++i)
    totals[i] = static_cast<int32_t>(sums[i * kQuad] + sums[i * kQuad + 1] + sums[i * kQuad + 2] + sums[i * kQuad + 3]);
}

void sum_conv_codes(const ConvBlock& block) {
  int32_t sums[kPositions];
  const int64_t positions = (block.rows - 1) * block.input.row_stride + block.cols;
  for (int64_t first = 0; first < positions; first += kPositions) {
    conv_products(block, first, block.weights.ones, kQuad, sums);
    for (int64_t i = 0; i < kPositions && first + i < positions; ++i) block.scratch.code_sums[first + i] = sums[i];
  }
}

// A tile of all channels and up to kPositions positions of a row.
void conv_tile(const ConvBlock& block, int64_t row, int64_t col, int64_t count) {
  const bool has_weight_zps = has_zero_points(block.weights);
  const int64_t position = row * block.input.row_stride + col;
  int32_t sums[kPositions];
  for (int64_t channel = 0; channel < block.channels; ++channel) {
    conv_products(block, position, block.weights.packed + channel * kQuad, kBlockColumns * kQuad, sums);
    const auto weight_zp =
        static_cast<uint32_t>(block.weights.zps == nullptr ? block.weights.zp : block.weights.zps[channel]);
    const auto correction =
        static_cast<uint32_t>(block.scaling.zp) * static_cast<uint32_t>(load(block.scaling.channel_sums + channel));
    const ConvFactors factors = factors_of(block.scaling, channel);
    const float bias = load(block.scaling.bias + channel);
    float* dst = block.output.dst + channel * block.output.channel_stride + row * block.output.row_stride + col;
    for (int64_t i = 0; i < count; ++i) {
      const uint32_t code_sum = has_weight_zps ? static_cast<uint32_t>(block.scratch.code_sums[position + i]) : 0;
      const auto exact = static_cast<int32_t>(static_cast<uint32_t>(sums[i]) - correction - weight_zp * code_sum);
      float real = static_cast<float>(exact) * factors.first * factors.second;
      real = real + bias;
      real = real < block.scaling.lowest ? block.scaling.lowest : real;
      store(dst + i, real > block.scaling.highest ? block.scaling.highest : real);
    }
  }
}

void conv(const ConvBlock& block) {
  for (int64_t row = 0; row < block.rows; ++row)
    for (int64_t col = 0; col < block.cols; col += kPositions)
      conv_tile(block, row, col, block.cols - col < kPositions ? block.cols - col : kPositions);
}

void interleave_quads(const uint8_t* const (&rows)[kQuad], int64_t count, uint8_t flip, uint8_t* to) {
  const uint8_t* __restrict r0 = rows[0], * __restrict r1 = rows[1], * __restrict r2 = rows[2], * __restrict r3 = rows[3];
  uint8_t* __restrict quads = to;
  for (int64_t i = 0; i < count; ++i) {
    quads[kQuad * i] = r0[i] ^ flip;
    quads[kQuad * i + 1] = r1[i] ^ flip;
    quads[kQuad * i + 2] = r2[i] ^ flip;
    quads[kQuad * i + 3] = r3[i] ^ flip;
  }
}

// Kernels that are not set are null: there are no tiles.
constexpr ProductKernels product_kernels() {
  ProductKernels table = {};
  table.gemm_qc8w = gemm<8>;
  table.gemm_qb8w = gemm<8>;
  table.gemm_qb4w = gemm<4>;
  table.gemm_qb2w = gemm<2>;
  table.sum_columns_8bit = sum_columns<8>;
  table.sum_columns_4bit = sum_columns<4>;
  table.conv = conv;
  table.sum_conv_codes = sum_conv_codes;
  table.interleave_quads = interleave_quads;
  table.winograd = &kPortableWinograd;
  return table;
}

}  // namespace

bool has_bounded_groups(const ProductBlock& all, int64_t bits) noexcept {
  const bool has_weight_zps = bits == 8 && all.codes.sums != nullptr;
  if (has_weight_zps || all.depth > all.groups * kMaxTileGroup) return false;
  uint32_t beyond = 0;
  for (int64_t i = 0; i < all.groups * all.columns.sums_stride; ++i)
    beyond |= static_cast<uint32_t>(load(all.columns.sums + i)) + kColumnSumBound;
  return beyond < 2 * kColumnSumBound;
}

constexpr ProductKernels kPortableProducts = product_kernels();

}  // namespace dynq
