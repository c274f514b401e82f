// Products on the tiles of AMX-int8. simd/tile-*-inl.h: weights in groups, attention over codes. Others: avx512vnni.cc.
// Compiler options for x86_64: -mavx512f -mavx512bw -mavx512vl -mavx512dq -mamx-tile -mamx-int8
//
// Tiles are used for products of 16 rows or more, except with long groups or with one group of 4-bit weights, and for
// convolutions with several channels in each group.
//
// A tile is a register of 16 rows of 64 bytes. A tile of codes has 16 rows of 64 adjacent k; a tile of weights has 16
// quads of k for 16 columns, as weights are packed; their product is added to 16 x 16 sums of int32. The kernel holds
// 2 x 2 tiles of sums, stores them to a buffer, and converts them to floats from there.
//
// Convolutions read codes from tiles of 16 adjacent positions and 16 quads of a run. pack_conv_tiles() makes them from
// the image so that the tile of a kernel position can begin at any position.
//
// Tests replace the tile instructions by functions (tests/native/tile_stand_in.h), because few machines have them.
// Therefore floats are in the compiler's vector extensions, which work on every processor.
#if defined(__GNUC__) && !defined(__clang__)  // GCC 12 warns about its own header: gcc.gnu.org/PR105593
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#ifdef ORT_DYNQ_TILE_STAND_IN
#include ORT_DYNQ_TILE_STAND_IN
#else
#include <immintrin.h>
#endif

#include "kernels/compressed.h"
#include "kernels/elementwise.h"
#include "kernels/products.h"

namespace dynq {

extern const ProductKernels kAvx512VnniProducts;
extern const CompressedKernels kAvx512VnniCompressed;

namespace {

using Floats = float __attribute__((vector_size(64)));
using Ints = int32_t __attribute__((vector_size(64)));
using Sums = uint32_t __attribute__((vector_size(64)));  // they may wrap
using Bytes = int8_t __attribute__((vector_size(16)));

constexpr int64_t kTile = kTileRows * kTileBytes;  // bytes of a tile
constexpr int64_t kPair = 2 * kBlockColumns;       // columns, and rows, of two tiles of sums
constexpr int64_t kSumsStride = kPair * static_cast<int64_t>(sizeof(int32_t));
static_assert(kTileRows == kBlockColumns && kTileBytes == kBlockColumns * kQuad && kTileBytes == sizeof(Sums));

// Makes the compiler assume that memory is read and written here. GCC's tile intrinsics do not say so: it may remove or
// move the stores to an array that only they read.
inline void use_memory(void* memory) { __asm__ volatile("" : : "r"(memory) : "memory"); }

// As LDTILECFG reads it.
struct TileConfiguration {
  uint8_t palette, start_row, reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
};
static_assert(sizeof(TileConfiguration) == 64);
constexpr TileConfiguration kConfiguration = {
    1, 0, {}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};

// No RAII: a destructor would pull in unwinding symbols.
TileConfiguration configure_tiles(TileConfiguration configuration = kConfiguration) {
  TileConfiguration before = {};
  use_memory(&before);
  _tile_storeconfig(&before);
  use_memory(&before);
  use_memory(&configuration);
  _tile_loadconfig(&configuration);
  return before;
}

// Other code of this thread, such as ONNX Runtime's, may have configured the tiles and rely on it.
void restore_tiles(TileConfiguration before) {
  use_memory(&before);
  _tile_loadconfig(&before);  // releases the tiles if they were not configured
}

// One or two blocks of 16 columns.
struct Weights {
  const int8_t* blocks[2];
  const int8_t* tails[2];  // the last k, padded to a tile
  const int8_t* next[2];   // the next blocks, to prefetch, or null
};

// One step of 64 k. Tiles 0 to 3 are sums, 4 and 5 codes, 6 and 7 weights.
template <int kRowTiles, int kColumnTiles>
inline void multiply_step(const uint8_t* codes, int64_t codes_stride, const int8_t* first, const int8_t* second) {
  _tile_loadd(6, first, kTileBytes);
  if (kColumnTiles > 1) _tile_loadd(7, second, kTileBytes);
  _tile_loadd(4, codes, kTileBytes);
  _tile_dpbusd(0, 4, 6);
  if (kColumnTiles > 1) _tile_dpbusd(1, 4, 7);
  if (kRowTiles > 1) {
    _tile_loadd(5, codes + codes_stride, kTileBytes);
    _tile_dpbusd(2, 5, 6);
    if (kColumnTiles > 1) _tile_dpbusd(3, 5, 7);
  }
}

inline void zero_sums() {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
}

template <int kRowTiles, int kColumnTiles>
inline void store_sums(uint32_t* sums) {
  _tile_stored(0, sums, kSumsStride);
  if (kColumnTiles > 1) _tile_stored(1, sums + kBlockColumns, kSumsStride);
  if (kRowTiles > 1) _tile_stored(2, sums + kTileRows * kPair, kSumsStride);
  if (kRowTiles > 1 && kColumnTiles > 1) _tile_stored(3, sums + kTileRows * kPair + kBlockColumns, kSumsStride);
}

// Writes the sums of products of up to 32 rows and up to 32 columns to sums[32][32].
template <int kRowTiles, int kColumnTiles>
void multiply_tiles(const uint8_t* codes, int64_t codes_stride, const Weights& weights, int64_t depth, uint32_t* sums) {
  zero_sums();
  const int64_t whole = depth / kTileBytes * kTile;
  for (int64_t at = 0; at < whole; at += kTile) {
    multiply_step<kRowTiles, kColumnTiles>(codes + at, codes_stride, weights.blocks[0] + at, weights.blocks[1] + at);
    for (const int8_t* next : weights.next)
      for (int64_t line = 0; next != nullptr && line < kTile; line += 64) __builtin_prefetch(next + at + line);
  }
  if (depth % kTileBytes != 0)
    multiply_step<kRowTiles, kColumnTiles>(codes + whole, codes_stride, weights.tails[0], weights.tails[1]);
  store_sums<kRowTiles, kColumnTiles>(sums);
}

enum Store { kWhole, kPart, kStreamed };  // kPart: fewer than 16 columns; kStreamed: past the caches

// 16 elements. kPart reads only the first `count`; the others are 0.
template <class Vector, Store kStore, class T>
inline Vector load_columns(const T* from, int64_t count) {
  Vector vector = {};
  __builtin_memcpy(&vector, from, kStore == kPart ? static_cast<size_t>(count) * sizeof(T) : sizeof vector);
  return vector;
}

// GCC converts the 16 elements one by one without the intrinsic.
inline Sums widen(Bytes bytes) {
#ifdef __AVX512F__
  return reinterpret_cast<Sums>(_mm512_cvtepi8_epi32(reinterpret_cast<__m128i>(bytes)));
#else
  return __builtin_convertvector(bytes, Sums);
#endif
}

template <Store kStore>
inline void store_columns(float* to, Floats vector, int64_t count) {
#ifdef __AVX512F__
  if (kStore == kStreamed) {
    _mm512_stream_ps(to, reinterpret_cast<__m512>(vector));
    return;
  }
#endif
  __builtin_memcpy(to, &vector, kStore == kPart ? static_cast<size_t>(count) * sizeof(float) : sizeof vector);
}

// Converts up to 32 rows of 16 columns of sums[32][32] to floats, scales and stores them. The first one is block's
// element [row, column].
template <ScaleOrder kOrder, Store kStore>
void scale_and_store(const ProductBlock& block, const uint32_t* sums, int64_t row, int64_t column) {
  const int64_t count = block.cols - column;
  const Floats column_scale = load_columns<Floats, kStore>(block.columns.scales + column, count);
  const Floats bias = load_columns<Floats, kStore>(block.columns.bias + column, count);
  const Sums column_sum = load_columns<Sums, kStore>(block.columns.sums + column, count);
  Sums weight_zp = Sums{} + static_cast<uint32_t>(block.weights.zp);
  if (block.weights.zps != nullptr) weight_zp = widen(load_columns<Bytes, kStore>(block.weights.zps + column, count));
  const int64_t end = block.rows - row < kPair ? block.rows : row + kPair;
  const int32_t* row_sums = block.codes.sums;
  float* dst = block.output.dst + row * block.output.stride + column;
  for (; row < end; ++row, sums += kPair, dst += block.output.stride) {
    Sums exact =
        load_columns<Sums, kWhole>(sums, kBlockColumns) - static_cast<uint32_t>(block.codes.zps[row]) * column_sum;
    if (row_sums != nullptr) exact -= static_cast<uint32_t>(row_sums[row]) * weight_zp;
    const Floats real = __builtin_convertvector(reinterpret_cast<Ints>(exact), Floats);
    const float scale = block.codes.scales[row];
    const Floats scaled = kOrder == kScalesFirst ? real * (scale * column_scale)
                          : kOrder == kRowFirst  ? real * scale * column_scale
                                                 : real * column_scale * scale;
    store_columns<kStore>(dst, scaled + bias, count);
  }
}

using Multiply = void (*)(const uint8_t*, int64_t, const Weights&, int64_t, uint32_t*);
constexpr Multiply kMultiply[2][2] = {{multiply_tiles<1, 1>, multiply_tiles<1, 2>},
                                      {multiply_tiles<2, 1>, multiply_tiles<2, 2>}};

using ScaleAndStore = void (*)(const ProductBlock&, const uint32_t*, int64_t, int64_t);
constexpr ScaleAndStore kScaleAndStore[][3] = {
    {scale_and_store<kScalesFirst, kWhole>, scale_and_store<kScalesFirst, kPart>,
     scale_and_store<kScalesFirst, kStreamed>},
    {scale_and_store<kRowFirst, kWhole>, scale_and_store<kRowFirst, kPart>, scale_and_store<kRowFirst, kStreamed>},
    {scale_and_store<kColumnFirst, kWhole>, scale_and_store<kColumnFirst, kPart>,
     scale_and_store<kColumnFirst, kStreamed>},
};

void gemm_qc8w_tiles(const ProductBlock& block) {
  const uintptr_t row_bytes = static_cast<uintptr_t>(block.output.stride) * sizeof(float);
  const bool stream =
      block.output.stream && (reinterpret_cast<uintptr_t>(block.output.dst) | row_bytes) % sizeof(Floats) == 0;
  const int64_t whole = block.depth / kTileBytes * kTile, tail = block.depth % kTileBytes * kBlockColumns;
  alignas(64) int8_t tails[2][kTile] = {};
  alignas(64) uint32_t sums[kPair * kPair];

  const TileConfiguration before = configure_tiles();
  for (int64_t column = 0; column < block.cols; column += kPair) {
    const int64_t count = block.cols - column;
    const bool is_pair = count > kBlockColumns;
    const int8_t* from = block.weights.packed + column / kBlockColumns * block.weights.stride;
    Weights weights = {{from, is_pair ? from + block.weights.stride : from}, {tails[0], tails[1]}, {}};
    for (int64_t i = 0; i < 2; ++i) {
      if (tail > 0) __builtin_memcpy(tails[i], weights.blocks[i] + whole, static_cast<size_t>(tail));
      if (count > kPair + i * kBlockColumns) weights.next[i] = from + (2 + i) * block.weights.stride;
    }
    use_memory(tails);
    for (int64_t row = 0; row < block.rows; row += kPair) {
      const uint8_t* codes = block.codes.data + row / kTileRows * block.codes.stride;
      kMultiply[block.rows - row > kTileRows][is_pair](codes, block.codes.stride, weights, block.depth, sums);
      for (int64_t i = 0; i < (is_pair ? 2 : 1); ++i) {
        const Store store = count < (i + 1) * kBlockColumns ? kPart : stream ? kStreamed : kWhole;
        kScaleAndStore[block.order][store](block, sums + i * kBlockColumns, row, column + i * kBlockColumns);
      }
      weights.next[0] = weights.next[1] = nullptr;
    }
  }
  restore_tiles(before);
#ifdef __AVX512F__
  if (stream) _mm_sfence();
#endif
}

#include "kernels/simd/tile-groups-inl.h"

// Uses the file before.
#include "kernels/simd/tile-compressed-inl.h"

// to[i][j] = from[j][i] for 16 x 16 values of 4 bytes; the rows from `rows` on are 0. Rows of `from` are
// `stride` bytes apart.
void transpose(const void* from, int64_t stride, int64_t rows, void* to) {
  const auto* bytes = static_cast<const uint8_t*>(from);
  auto* result = static_cast<uint8_t*>(to);
  alignas(64) uint8_t padded[kTile];
  if (rows < kTileRows) {
    __builtin_memset(padded, 0, sizeof padded);
    for (int64_t row = 0; row < rows; ++row)
      __builtin_memcpy(padded + row * kTileBytes, bytes + row * stride, kTileBytes);
    bytes = padded;
    stride = kTileBytes;
  }
#ifdef __AVX512F__
  for (int64_t i = 0; i < 4; ++i, bytes += 16, result += 4 * kTileBytes) {  // 4 columns
    __m512i row[4];                                                         // rows j, 4 + j, 8 + j, 12 + j
#pragma GCC unroll 4
    for (int64_t j = 0; j < 4; ++j) {
      const auto part = [&](int64_t lane) {
        return _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes + (4 * lane + j) * stride));
      };
      row[j] = _mm512_inserti32x4(_mm512_castsi128_si512(part(0)), part(1), 1);
      row[j] = _mm512_inserti32x4(_mm512_inserti32x4(row[j], part(2), 2), part(3), 3);
    }
    const __m512i low01 = _mm512_unpacklo_epi32(row[0], row[1]), low23 = _mm512_unpacklo_epi32(row[2], row[3]);
    const __m512i high01 = _mm512_unpackhi_epi32(row[0], row[1]), high23 = _mm512_unpackhi_epi32(row[2], row[3]);
    _mm512_storeu_si512(result, _mm512_unpacklo_epi64(low01, low23));
    _mm512_storeu_si512(result + kTileBytes, _mm512_unpackhi_epi64(low01, low23));
    _mm512_storeu_si512(result + 2 * kTileBytes, _mm512_unpacklo_epi64(high01, high23));
    _mm512_storeu_si512(result + 3 * kTileBytes, _mm512_unpackhi_epi64(high01, high23));
  }
#else
  for (int64_t row = 0; row < kTileRows; ++row)
    for (int64_t col = 0; col < kTileRows; ++col)
      __builtin_memcpy(result + col * kTileBytes + row * kQuad, bytes + row * stride + col * kQuad, kQuad);
#endif
}

// Tiles are [run / 16][positions of a quad in the image][16 quads].
void pack_conv_tiles(const ConvBlock& block) {
  uint8_t* to = block.scratch.tiles;
  const int64_t tiles_bytes = kTileRows * block.input.run_bytes, slack = 2 * kTile;
  __builtin_memset(to + conv_tiles_bytes(block.input.run, block.input.run_bytes) - slack, 0, slack);
  for (int64_t first = 0; first < block.input.run; first += kTileRows, to += tiles_bytes) {
    const uint8_t* from = block.input.image + first * block.input.run_bytes;
    const int64_t rows = block.input.run - first < kTileRows ? block.input.run - first : kTileRows;
    // The last transpositions also write where the next iteration writes, or to the slack.
    for (int64_t at = 0; at < block.input.run_bytes; at += kTileBytes)
      transpose(from + at, block.input.run_bytes, rows, to + at * kTileRows);
  }
}

// A copy of the last quads of the weights of one or two blocks of channels, from quad `first` on, padded with zeros to
// whole tiles.
struct LastQuads {
  int64_t first;
  alignas(64) int8_t weights[2][2 * kTile] = {};

  explicit LastQuads(const ConvBlock& block)
      : first(block.input.quads < kTileRows ? 0 : block.input.quads - kTileRows + 1) {
    for (int64_t i = 0; i * kBlockColumns < block.channels; ++i)
      __builtin_memcpy(weights[i], block.weights.packed + i * block.weights.stride + first * kTileBytes,
                       static_cast<size_t>((block.input.quads - first) * kTileBytes));
    use_memory(weights);
  }
};

// Writes the sums of products of up to 32 positions and up to 32 channels to sums[32][32]. The loop over runs is
// inside: they read the same codes, which stay in the first-level cache.
template <int kRowTiles, int kColumnTiles>
void conv_multiply_tiles(const ConvBlock& block, const LastQuads& last, int64_t position, uint32_t* sums) {
  zero_sums();
  const uint8_t* codes = block.scratch.tiles + position * kTileBytes;
  for (int64_t i = 0; i < block.input.run; i += kTileRows, codes += kTileRows * block.input.run_bytes)
    for (int64_t quad = i; quad < block.input.quads; quad += block.input.run) {
      const bool is_last = quad >= last.first;
      const int64_t at = (is_last ? quad - last.first : quad) * kTileBytes;
      const int8_t* first = (is_last ? last.weights[0] : block.weights.packed) + at;
      const int8_t* second = (is_last ? last.weights[1] : block.weights.packed + block.weights.stride) + at;
      multiply_step<kRowTiles, kColumnTiles>(codes + block.input.offsets[quad - i] * kTileRows, kTile, first, second);
    }
  store_sums<kRowTiles, kColumnTiles>(sums);
}

// Converts sums[32][32] to floats, scales and stores them: all channels, up to 32 positions of a row.
void conv_scale_and_store(const ConvBlock& block, const uint32_t* sums, int64_t row, int64_t col) {
  const bool has_weight_zps = has_zero_points(block.weights);
  // And kConvSlack elements more. Null without zero points.
  const int32_t* code_sums = has_weight_zps ? block.scratch.code_sums + row * block.input.row_stride + col : nullptr;
  for (int64_t i = 0; i < kPair && col + i < block.cols; i += kTileRows)
    for (int64_t first = 0; first < block.channels; first += kBlockColumns) {
      alignas(64) uint32_t channels[kTileRows][kBlockColumns];
      transpose(sums + i * kPair + first, kSumsStride, kTileRows, channels);
      const int64_t end = block.channels - first < kBlockColumns ? block.channels - first : kBlockColumns;
      for (int64_t c = 0; c < end; ++c) {
        const int64_t channel = first + c;
        const float channel_scale = load(block.scaling.channel_scales + channel),
                    bias = load(block.scaling.bias + channel);
        const float scale1 = block.scaling.order == kScalesFirst ? block.scaling.scale * channel_scale
                             : block.scaling.order == kRowFirst  ? block.scaling.scale
                                                                 : channel_scale;
        const float scale2 = block.scaling.order == kScalesFirst ? 1.0f
                             : block.scaling.order == kRowFirst  ? channel_scale
                                                                 : block.scaling.scale;
        Sums exact =
            load_columns<Sums, kWhole>(channels[c], kBlockColumns) -
            static_cast<uint32_t>(block.scaling.zp) * static_cast<uint32_t>(load(block.scaling.channel_sums + channel));
        if (has_weight_zps)
          exact -= static_cast<uint32_t>(block.weights.zps == nullptr ? block.weights.zp : block.weights.zps[channel]) *
                   load_columns<Sums, kWhole>(reinterpret_cast<const uint32_t*>(code_sums) + i, kTileRows);
        Floats real = __builtin_convertvector(reinterpret_cast<Ints>(exact), Floats) * scale1 * scale2 + bias;
        // Minus 0, which leaves every number as it is: -0 + 0 is 0.
        real = real < block.scaling.lowest ? block.scaling.lowest - Floats{} : real;
        real = real > block.scaling.highest ? block.scaling.highest - Floats{} : real;
        float* dst = block.output.dst + channel * block.output.channel_stride + row * block.output.row_stride + col + i;
        if (const int64_t count = block.cols - col - i; count < kTileRows)
          store_columns<kPart>(dst, real, count);
        else
          store_columns<kWhole>(dst, real, kTileRows);
      }
    }
}

using ConvMultiply = void (*)(const ConvBlock&, const LastQuads&, int64_t, uint32_t*);
constexpr ConvMultiply kConvMultiply[2][2] = {{conv_multiply_tiles<1, 1>, conv_multiply_tiles<1, 2>},
                                              {conv_multiply_tiles<2, 1>, conv_multiply_tiles<2, 2>}};

void conv_tiles(const ConvBlock& block) {
  const bool is_pair = block.channels > kBlockColumns;
  const LastQuads last(block);
  use_memory(block.scratch.tiles);
  alignas(64) uint32_t sums[kPair * kPair];
  const TileConfiguration before = configure_tiles();
  for (int64_t row = 0; row < block.rows; ++row)
    for (int64_t col = 0; col < block.cols; col += kPair) {
      kConvMultiply[block.cols - col > kTileRows][is_pair](block, last, row * block.input.row_stride + col, sums);
      conv_scale_and_store(block, sums, row, col);
    }
  restore_tiles(before);
}

// Functions that call kAvx512VnniProducts: its pointers would be copied when the library is loaded, by code that is
// compiled for AVX-512.
void gemm_qc8w(const ProductBlock& block) { kAvx512VnniProducts.gemm_qc8w(block); }
void gemm_qb8w(const ProductBlock& block) { kAvx512VnniProducts.gemm_qb8w(block); }
void gemm_qb4w(const ProductBlock& block) { kAvx512VnniProducts.gemm_qb4w(block); }
void gemm_qb2w(const ProductBlock& block) { kAvx512VnniProducts.gemm_qb2w(block); }
const char* name_of_form(const ProductBlock& block, int64_t bits) { return kAvx512VnniProducts.form_name(block, bits); }
void sum_columns_8bit(const ProductBlock& block, int32_t* sums) { kAvx512VnniProducts.sum_columns_8bit(block, sums); }
void sum_columns_4bit(const ProductBlock& block, int32_t* sums) { kAvx512VnniProducts.sum_columns_4bit(block, sums); }
void conv(const ConvBlock& block) { kAvx512VnniProducts.conv(block); }
void sum_conv_codes(const ConvBlock& block) { kAvx512VnniProducts.sum_conv_codes(block); }
void interleave_quads(const uint8_t* const (&rows)[kQuad], int64_t count, uint8_t flip, uint8_t* to) {
  kAvx512VnniProducts.interleave_quads(rows, count, flip, to);
}

constexpr ProductKernels product_kernels() {
  ProductKernels table = {};
  table.gemm_qc8w = gemm_qc8w;
  table.gemm_qb8w = gemm_qb8w;
  table.gemm_qb4w = gemm_qb4w;
  table.gemm_qb2w = gemm_qb2w;
  table.form_name = name_of_form;
  table.sum_columns_8bit = sum_columns_8bit;
  table.sum_columns_4bit = sum_columns_4bit;
  table.gemm_qc8w_tiles = gemm_qc8w_tiles;
  table.gemm_qb8w_tiles = gemm_groups_tiles<8>;
  table.gemm_qb4w_tiles = gemm_groups_tiles<4>;
  table.conv = conv;
  table.sum_conv_codes = sum_conv_codes;
  table.conv_tiles = conv_tiles;
  table.pack_conv_tiles = pack_conv_tiles;
  table.interleave_quads = interleave_quads;
  return table;
}

}  // namespace

extern const ProductKernels kAmxProducts;
constexpr ProductKernels kAmxProducts = product_kernels();

extern const CompressedKernels kAmxCompressed;
constexpr CompressedKernels kAmxCompressed = compressed_kernels();

}  // namespace dynq
