// Products on the tiles of AMX-int8. simd/tile-*-inl.h: groups, convolutions, attention. Others: avx512vnni.cc.
// Compiler options for x86_64: -mavx512f -mavx512bw -mavx512vl -mavx512dq -mamx-tile -mamx-int8
//
// Tiles are used for products of 16 rows or more, except with long groups or with one group of 4-bit weights, and for
// convolutions with several channels in each group, unless a product is small.
//
// A tile is a register of 16 rows of 64 bytes. A tile of codes has 16 rows of 64 adjacent k; a tile of weights has 16
// quads of k for 16 columns, as weights are packed; their product is added to 16 x 16 sums of int32. The kernel holds
// 2 x 2 tiles of sums, stores them to a buffer, and converts them to floats from there.
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

inline bool are_equal(const TileConfiguration& a, const TileConfiguration& b) {
  return __builtin_memcmp(&a, &b, sizeof a) == 0;
}

// Returns the configuration before. LDTILECFG takes 204 cycles, STTILECFG 19, TILERELEASE 13 (Intel's optimization
// manual, Sapphire Rapids): so nothing is loaded if a caller of several kernels has configured the tiles.
// No RAII: a destructor would pull in unwinding symbols.
TileConfiguration configure_tiles(TileConfiguration configuration = kConfiguration) {
  TileConfiguration before = {};
  use_memory(&before);
  _tile_storeconfig(&before);
  use_memory(&before);
  if (are_equal(before, configuration)) return before;
  use_memory(&configuration);
  _tile_loadconfig(&configuration);
  return before;
}

// Other code of this thread, such as ONNX Runtime's, may have configured the tiles and rely on it.
void restore_tiles(TileConfiguration before, const TileConfiguration& configuration = kConfiguration) {
  if (are_equal(before, configuration)) return;
  if (before.palette == 0) return _tile_release();
  use_memory(&before);
  _tile_loadconfig(&before);
}

// Tiles of codes 4 and 5 with rows of so many bytes, and tiles of weights 6 and 7 with as many quads.
TileConfiguration configuration_of(int64_t tile_bytes) {
  TileConfiguration configuration = kConfiguration;
  configuration.row_bytes[4] = configuration.row_bytes[5] = static_cast<uint16_t>(tile_bytes);
  configuration.rows[6] = configuration.rows[7] = static_cast<uint8_t>(tile_bytes / kQuad);
  return configuration;
}

// For a caller of several kernels, which have one configuration.
void begin_tiles(TileState& state, int64_t tile_bytes) {
  const TileConfiguration before = configure_tiles(configuration_of(tile_bytes));
  __builtin_memcpy(state.before, &before, sizeof before);
  state.tile_bytes = tile_bytes;
}

void end_tiles(const TileState& state) {
  TileConfiguration before;
  __builtin_memcpy(&before, state.before, sizeof before);
  restore_tiles(before, configuration_of(state.tile_bytes));
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

// Converts 16 columns of rows [row, end) to floats, scales and stores them. `sums`: of the first one, [32] for each
// row.
template <ScaleOrder kOrder, Store kStore>
void scale_and_store(const ProductBlock& block, const uint32_t* sums, int64_t row, int64_t end, int64_t column) {
  const int64_t count = block.cols - column;
  const Floats column_scale = load_columns<Floats, kStore>(block.columns.scales + column, count);
  const Floats bias = load_columns<Floats, kStore>(block.columns.bias + column, count);
  const Sums column_sum = load_columns<Sums, kStore>(block.columns.sums + column, count);
  Sums weight_zp = Sums{} + static_cast<uint32_t>(block.weights.zp);
  if (block.weights.zps != nullptr) weight_zp = widen(load_columns<Bytes, kStore>(block.weights.zps + column, count));
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

using ScaleAndStore = void (*)(const ProductBlock&, const uint32_t*, int64_t, int64_t, int64_t);
constexpr ScaleAndStore kScaleAndStore[][3] = {
    {scale_and_store<kScalesFirst, kWhole>, scale_and_store<kScalesFirst, kPart>,
     scale_and_store<kScalesFirst, kStreamed>},
    {scale_and_store<kRowFirst, kWhole>, scale_and_store<kRowFirst, kPart>, scale_and_store<kRowFirst, kStreamed>},
    {scale_and_store<kColumnFirst, kWhole>, scale_and_store<kColumnFirst, kPart>,
     scale_and_store<kColumnFirst, kStreamed>},
};

// Converts the sums of up to 32 rows and up to 32 columns between the products of the next ones: a load from a tile
// that was just stored waits for all earlier instructions, and tdpbusd takes 16 cycles, in which 32 others can begin.
class Conversion {
 public:
  Conversion(const ProductBlock& block, bool stream) : block_(block), stream_(stream) {}

  // sums[32][32] of the block's rows and columns from these on.
  void begin(const uint32_t* sums, int64_t row, int64_t column) {
    sums_ = sums;
    row_ = row;
    end_ = block_.rows - row < kPair ? block_.rows : row + kPair;
    column_ = column;
  }

  // Up to `most` rows.
  void run(int64_t most) {
    const int64_t end = end_ - row_ < most ? end_ : row_ + most;
    if (row_ == end) return;
    for (int64_t i = 0; i < kPair && column_ + i < block_.cols; i += kBlockColumns) {
      const Store store = block_.cols - column_ - i < kBlockColumns ? kPart : stream_ ? kStreamed : kWhole;
      kScaleAndStore[block_.order][store](block_, sums_ + i, row_, end, column_ + i);
    }
    sums_ += (end - row_) * kPair;
    row_ = end;
  }

 private:
  const ProductBlock& block_;
  const bool stream_;
  const uint32_t* sums_ = nullptr;
  int64_t row_ = 0, end_ = 0, column_ = 0;
};

// Writes the sums of products of up to 32 rows and up to 32 columns to sums[32][32], and converts `other` ones.
template <int kRowTiles, int kColumnTiles>
void multiply_tiles(const uint8_t* codes, int64_t codes_stride, const Weights& weights, int64_t depth,
                    Conversion& other, uint32_t* sums) {
  zero_sums();
  const int64_t whole = depth / kTileBytes * kTile;
  const int64_t rows_of_step = kPair * kTileBytes / (depth + 1) + 1;
  for (int64_t at = 0; at < whole; at += kTile) {
    multiply_step<kRowTiles, kColumnTiles>(codes + at, codes_stride, weights.blocks[0] + at, weights.blocks[1] + at);
    for (const int8_t* next : weights.next)
      for (int64_t line = 0; next != nullptr && line < kTile; line += 64) __builtin_prefetch(next + at + line);
    other.run(rows_of_step);
  }
  if (depth % kTileBytes != 0)
    multiply_step<kRowTiles, kColumnTiles>(codes + whole, codes_stride, weights.tails[0], weights.tails[1]);
  other.run(kPair);
  store_sums<kRowTiles, kColumnTiles>(sums);
  use_memory(sums);
}

using Multiply = void (*)(const uint8_t*, int64_t, const Weights&, int64_t, Conversion&, uint32_t*);
constexpr Multiply kMultiply[2][2] = {{multiply_tiles<1, 1>, multiply_tiles<1, 2>},
                                      {multiply_tiles<2, 1>, multiply_tiles<2, 2>}};

// The weights of the block's columns from `column` on, up to 32. `tails` is memory for the last k.
Weights weights_of(const ProductBlock& block, int64_t column, int8_t (&tails)[2][kTile]) {
  const int64_t whole = block.depth / kTileBytes * kTile, tail = block.depth % kTileBytes * kBlockColumns;
  const int64_t count = block.cols - column;
  const int8_t* from = block.weights.packed + column / kBlockColumns * block.weights.stride;
  Weights weights = {{from, count > kBlockColumns ? from + block.weights.stride : from}, {tails[0], tails[1]}, {}};
  for (int64_t i = 0; i < 2; ++i) {
    if (tail > 0) __builtin_memcpy(tails[i], weights.blocks[i] + whole, static_cast<size_t>(tail));
    if (count > kPair + i * kBlockColumns) weights.next[i] = from + (2 + i) * block.weights.stride;
  }
  use_memory(tails);
  return weights;
}

void gemm_qc8w_tiles(const ProductBlock& block) {
  const uintptr_t row_bytes = static_cast<uintptr_t>(block.output.stride) * sizeof(float);
  const bool stream =
      block.output.stream && (reinterpret_cast<uintptr_t>(block.output.dst) | row_bytes) % sizeof(Floats) == 0;
  alignas(64) int8_t tails[2][kTile] = {};
  alignas(64) uint32_t sums[2][kPair * kPair];
  Conversion conversion(block, stream);
  const TileConfiguration before = configure_tiles();
  int64_t count = 0;
  for (int64_t column = 0; column < block.cols; column += kPair) {
    Weights weights = weights_of(block, column, tails);
    for (int64_t row = 0; row < block.rows; row += kPair, ++count) {
      const uint8_t* codes = block.codes.data + row / kTileRows * block.codes.stride;
      const Multiply multiply = kMultiply[block.rows - row > kTileRows][block.cols - column > kBlockColumns];
      multiply(codes, block.codes.stride, weights, block.depth, conversion, sums[count % 2]);
      conversion.begin(sums[count % 2], row, column);
      weights.next[0] = weights.next[1] = nullptr;
    }
  }
  conversion.run(kPair);
  restore_tiles(before);
#ifdef __AVX512F__
  if (stream) _mm_sfence();
#endif
}

#include "kernels/simd/tile-groups-inl.h"

// Uses the file before.
#include "kernels/simd/tile-compressed-inl.h"
#include "kernels/simd/tile-conv-inl.h"

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
  table.words = kWordsBesideVnni;
  table.sum_columns_8bit = sum_columns_8bit;
  table.sum_columns_4bit = sum_columns_4bit;
  table.begin_tiles = begin_tiles;
  table.end_tiles = end_tiles;
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
