// Products on the tiles of AMX-int8: 8-bit weights in one group, 16 rows or more. Other products are avx512vnni's.
// Compiler options for x86_64: -mavx512f -mavx512bw -mavx512vl -mavx512dq -mamx-tile -mamx-int8
//
// A tile is a register of 16 rows of 64 bytes. A tile of codes has 16 rows of 64 adjacent k; a tile of weights has 16
// quads of k for 16 columns, as weights are packed; their product adds to 16 x 16 sums of int32. The kernel holds 2 x 2
// tiles of sums, stores them to a buffer, and makes floats from there.
//
// Tests replace the tile instructions by functions (tests/native/tile_stand_in.h), because few machines have them.
// Hence the floats are vectors of the compiler, which it can build for every processor.
#ifdef ORT_DYNQ_TILE_STAND_IN
#include ORT_DYNQ_TILE_STAND_IN
#else
#include <immintrin.h>
#endif

#include "kernels/kernels.h"

namespace dynq {

extern const ProductKernels kAvx512VnniProducts;

namespace {

using Floats = float __attribute__((vector_size(64)));
using Ints = int32_t __attribute__((vector_size(64)));
using Sums = uint32_t __attribute__((vector_size(64)));  // they may wrap
using Bytes = int8_t __attribute__((vector_size(16)));

constexpr int64_t kTile = kTileRows * kTileBytes;  // bytes of a tile
constexpr int64_t kPair = 2 * kBlockColumns;       // columns, and rows, of two tiles of sums
constexpr int64_t kSumsStride = kPair * static_cast<int64_t>(sizeof(int32_t));
static_assert(kTileRows == kBlockColumns && kTileBytes == kBlockColumns * kQuad && kTileBytes == sizeof(Sums));

// Makes the compiler assume that memory is read and written here. GCC's tile intrinsics do not say so: without this it
// may leave out or move the stores to an array that only they read.
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

// One or two blocks of 16 columns.
struct Weights {
  const int8_t* blocks[2];
  const int8_t* tails[2];  // the last k, padded to a tile
  const int8_t* next[2];   // the blocks to be multiplied next, or null
};

// One step of 64 k. Tiles 0 to 3 are sums, 4 and 5 codes, 6 and 7 weights.
template <int kRowTiles, int kColumnTiles>
inline void step(const uint8_t* codes, int64_t codes_stride, const int8_t* first, const int8_t* second) {
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

// Writes the sums of products of up to 32 rows and up to 32 columns to sums[32][32].
template <int kRowTiles, int kColumnTiles>
void multiply(const uint8_t* codes, int64_t codes_stride, const Weights& weights, int64_t depth, uint32_t* sums) {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  const int64_t whole = depth / kTileBytes * kTile;
  for (int64_t at = 0; at < whole; at += kTile) {
    step<kRowTiles, kColumnTiles>(codes + at, codes_stride, weights.blocks[0] + at, weights.blocks[1] + at);
    for (const int8_t* next : weights.next)
      for (int64_t line = 0; next != nullptr && line < kTile; line += 64) __builtin_prefetch(next + at + line);
  }
  if (depth % kTileBytes != 0)
    step<kRowTiles, kColumnTiles>(codes + whole, codes_stride, weights.tails[0], weights.tails[1]);
  _tile_stored(0, sums, kSumsStride);
  if (kColumnTiles > 1) _tile_stored(1, sums + kBlockColumns, kSumsStride);
  if (kRowTiles > 1) _tile_stored(2, sums + kTileRows * kPair, kSumsStride);
  if (kRowTiles > 1 && kColumnTiles > 1) _tile_stored(3, sums + kTileRows * kPair + kBlockColumns, kSumsStride);
}

enum Store { kWhole, kPart, kStreamed };  // kPart: fewer than 16 columns

// 16 elements, of which kPart reads the first `count`; the others are 0.
template <class Vector, Store kStore, class T>
inline Vector load_columns(const T* from, int64_t count) {
  Vector vector = {};
  __builtin_memcpy(&vector, from, kStore == kPart ? static_cast<size_t>(count) * sizeof(T) : sizeof vector);
  return vector;
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

// Makes floats of up to 32 rows of 16 columns of sums[32][32]. The first one is block's element [row, column].
template <ScaleOrder kOrder, Store kStore>
void to_floats(const ProductBlock& block, const uint32_t* sums, int64_t row, int64_t column) {
  const int64_t count = block.cols - column;
  const Floats column_scale = load_columns<Floats, kStore>(block.column_scales + column, count);
  const Floats bias = load_columns<Floats, kStore>(block.bias + column, count);
  const Sums column_sum = load_columns<Sums, kStore>(block.column_sums + column, count);
  Sums weight_zp = Sums{} + static_cast<uint32_t>(block.weight_zp);
  if (block.weight_zps != nullptr)
    weight_zp = __builtin_convertvector(load_columns<Bytes, kStore>(block.weight_zps + column, count), Sums);
  const int64_t end = block.rows - row < kPair ? block.rows : row + kPair;
  const int32_t* row_sums = block.row_sums;
  float* dst = block.dst + row * block.dst_stride + column;
  for (; row < end; ++row, sums += kPair, dst += block.dst_stride) {
    Sums exact = load_columns<Sums, kWhole>(sums, kBlockColumns) - static_cast<uint32_t>(block.zps[row]) * column_sum;
    if (row_sums != nullptr) exact -= static_cast<uint32_t>(row_sums[row]) * weight_zp;
    const Floats real = __builtin_convertvector(reinterpret_cast<Ints>(exact), Floats);
    const float scale = block.scales[row];
    const Floats scaled = kOrder == kScalesFirst ? real * (scale * column_scale)
                          : kOrder == kRowFirst  ? real * scale * column_scale
                                                 : real * column_scale * scale;
    store_columns<kStore>(dst, scaled + bias, count);
  }
}

using Multiply = void (*)(const uint8_t*, int64_t, const Weights&, int64_t, uint32_t*);
constexpr Multiply kMultiply[2][2] = {{multiply<1, 1>, multiply<1, 2>}, {multiply<2, 1>, multiply<2, 2>}};

using ToFloats = void (*)(const ProductBlock&, const uint32_t*, int64_t, int64_t);
constexpr ToFloats kToFloats[][3] = {
    {to_floats<kScalesFirst, kWhole>, to_floats<kScalesFirst, kPart>, to_floats<kScalesFirst, kStreamed>},
    {to_floats<kRowFirst, kWhole>, to_floats<kRowFirst, kPart>, to_floats<kRowFirst, kStreamed>},
    {to_floats<kColumnFirst, kWhole>, to_floats<kColumnFirst, kPart>, to_floats<kColumnFirst, kStreamed>},
};

void tiles(const ProductBlock& block) {
  const uintptr_t row_bytes = static_cast<uintptr_t>(block.dst_stride) * sizeof(float);
  const bool stream = block.stream && (reinterpret_cast<uintptr_t>(block.dst) | row_bytes) % sizeof(Floats) == 0;
  const int64_t whole = block.depth / kTileBytes * kTile, tail = block.depth % kTileBytes * kBlockColumns;
  alignas(64) int8_t tails[2][kTile] = {};
  alignas(64) uint32_t sums[kPair * kPair];

  // Other code of this thread, such as ONNX Runtime's, may have configured the tiles once for all.
  TileConfiguration before = {};
  use_memory(&before);
  _tile_storeconfig(&before);
  use_memory(&before);
  _tile_loadconfig(&kConfiguration);
  for (int64_t column = 0; column < block.cols; column += kPair) {
    const int64_t count = block.cols - column;
    const bool is_pair = count > kBlockColumns;
    const int8_t* from = block.weights + column / kBlockColumns * block.weights_stride;
    Weights weights = {{from, is_pair ? from + block.weights_stride : from}, {tails[0], tails[1]}, {}};
    for (int64_t i = 0; i < 2; ++i) {
      if (tail > 0) __builtin_memcpy(tails[i], weights.blocks[i] + whole, static_cast<size_t>(tail));
      if (count > kPair + i * kBlockColumns) weights.next[i] = from + (2 + i) * block.weights_stride;
    }
    use_memory(tails);
    for (int64_t row = 0; row < block.rows; row += kPair) {
      const uint8_t* codes = block.codes + row / kTileRows * block.codes_stride;
      kMultiply[block.rows - row > kTileRows][is_pair](codes, block.codes_stride, weights, block.depth, sums);
      for (int64_t i = 0; i < (is_pair ? 2 : 1); ++i) {
        const Store store = count < (i + 1) * kBlockColumns ? kPart : stream ? kStreamed : kWhole;
        kToFloats[block.order][store](block, sums + i * kBlockColumns, row, column + i * kBlockColumns);
      }
      weights.next[0] = weights.next[1] = nullptr;
    }
  }
  use_memory(&before);
  _tile_loadconfig(&before);  // releases the tiles if they were not configured
#ifdef __AVX512F__
  if (stream) _mm_sfence();
#endif
}

void one_group(const ProductBlock& block) { kAvx512VnniProducts.one_group(block); }
void groups8(const ProductBlock& block) { kAvx512VnniProducts.groups8(block); }
void groups4(const ProductBlock& block) { kAvx512VnniProducts.groups4(block); }
void conv(const ConvBlock& block) { kAvx512VnniProducts.conv(block); }
void sum_codes(const ConvBlock& block) { kAvx512VnniProducts.sum_codes(block); }
void interleave(const uint8_t* const (&rows)[kQuad], int64_t count, uint8_t flip, uint8_t* to) {
  kAvx512VnniProducts.interleave(rows, count, flip, to);
}

}  // namespace

// Functions and not the pointers of kAvx512VnniProducts: those would be copied when the library is loaded, by code that
// is compiled for AVX-512.
extern const ProductKernels kAmxProducts = {one_group, groups8, groups4, tiles, conv, sum_codes, interleave};

}  // namespace dynq
