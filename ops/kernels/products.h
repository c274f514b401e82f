// The interface of the kernels of matrix products: codes of rows times packed weights, to floats. portable_products.cc
// defines the correct results; every other kernel returns the same bits.
#pragma once

#include <stdint.h>

#include "core/encodings.h"
#include "core/sums.h"
#include "kernels/convolutions.h"
#include "kernels/strassen.h"
#include "kernels/winograd.h"

namespace dynq {

// Weights of 8 bits are [columns / 16][depth / 4][16][4]. A byte of 4-bit weights has two codes, [columns / 16][depth /
// 8][16][4]: the low half is one of the first four k, the high half is the k four later. A byte of 2-bit weights is two
// of these with codes below 4, [columns / 16][depth / 16][16][4]: the first + 4 * the second. So its bits 0 and 1,
// 4 and 5, 2 and 3, 6 and 7 are codes of four k that are four apart. Codes for AMX are in tiles, [rows / 16][depth /
// 64][16][64].

// A group of weights has a multiple of kGroupUnit k. Kernels on tiles take groups of up to kMaxTileGroup k: their
// sums are exact as floats.
constexpr int64_t kGroupUnit = 16, kMaxTileGroup = 512, kMaxSummedRows = 5;
constexpr int64_t kMax2BitRows = 2, kMax2BitGroup = 512;  // of gemm_qb2w
constexpr int64_t kMaxSummedGroup = 4096, kMinSummingRows = 12;
static_assert(int64_t{255} * 128 * kMaxTileGroup <= 1 << 24, "sums are exact as floats");

// Multiply-adds of a product from which on tiles pay for packing the codes and configuring the tiles. By count of
// instructions (decisions.md), not measured.
constexpr int64_t kMinTileProducts = 1 << 18;

// The sum of such a group minus the zero point times the sum of the column fits int32 within this bound.
constexpr uint32_t kColumnSumBound = 1 << 22;
static_assert(int64_t{255} * kColumnSumBound + int64_t{255} * 128 * kMaxTileGroup <= INT32_MAX, "they fit int32");

// The codes of rows.
struct ProductCodes {
  const uint8_t* data;
  int64_t stride;        // from row to row; for tiles, from 16 rows to the next 16
  const float* scales;   // [rows][scale_groups]
  const int32_t* zps;    // [rows][scale_groups], 0 to 255
  int64_t scale_groups;  // 1, or the number of groups
  // [rows][groups]; may be null for weights without zero points, and for 4-bit weights if the block has no row of ones:
  // kernels with sums_codes_4bit are faster with them, kernels on tiles need null
  const int32_t* sums;
  // The last row has codes 1: its products are the sums of the columns, and it is no row of the output. Such a block
  // has scales that vary with the group, and up to kMaxSummedRows rows of output.
  bool has_ones;
  bool has_one_zp = false;  // all zps are equal; not for a block with a row of ones
};

struct ProductWeights {
  const int8_t* packed;
  int64_t stride;      // from a block of 16 columns to the next
  const int8_t* zps;   // [groups][columns]; null: every zero point is `zp`
  int64_t zps_stride;  // from a group to the next
  int32_t zp;          // For weights of 4 and 2 bits, the low 4 bits of zero points count: differences fit 5 bits.
};

// Pointers to columns point to the first column of the block. A stride is the distance from a group to the next.
struct ProductColumns {
  const float* scales;     // [scale_groups][columns]
  const uint16_t* halves;  // float16, in place of scales; null if the block has no row of ones
  int64_t scales_stride;
  int64_t scale_groups;  // 1, or the number of groups
  // [groups][columns], of the weights minus zero points; null if the block has a row of ones or the kernel makes them
  const int32_t* sums;
  int64_t sums_stride;
  const float* bias;  // [columns]
};

struct ProductOutput {
  float* dst;
  int64_t stride;  // from row to row
  bool stream;     // as for elementwise kernels; kernels may ignore it
};

// rows x cols elements of the output. The first column is the first one of a block of weights. Weights, output and
// arrays of columns may be unaligned.
struct ProductBlock {
  int64_t rows, cols;
  int64_t depth;  // bytes of a row of codes: a multiple of 4; of 8 for 4-bit weights. Padding of weights or codes is 0.
  int64_t groups;  // of depth / groups k: a multiple of kGroupUnit if there are several
  ProductOutput output;
  ProductCodes codes;
  ProductWeights weights;
  ProductColumns columns;
  ScaleOrder order;
  bool is_bounded;  // has_bounded_groups() was true
  // Rows 2 * r and 2 * r + 1 are the terms of a row: exact[g] of the first one is kTermRatio * its sum + that of the
  // second one, which has no output: the second row of dst may be anything. Not for gemm_qc8w.
  bool joins_terms = false;
};

// Whether the sums of groups minus zero points times sums of columns may be computed in floats: then a fused
// multiply-add rounds them as a conversion from int32 does. Also false if weights of 8 bits have zero points.
bool has_bounded_groups(const ProductBlock& all, int64_t bits) noexcept;

using ProductKernel = void (*)(const ProductBlock&);

// The rows from which on words of 16 bits (core/product_words.cc) are faster than joined terms, by the bits of weights,
// and the largest group for which they are. Without products of bytes, words take half of the multiplications.
struct WordUse {
  int64_t min_rows_8bit, min_rows_4bit, max_group;
};
constexpr WordUse kWordsWithoutBytes = {1, 3, kMaxJoinedLength}, kWordsBesideVnni = {64, 64, 32};

// A way to compute blocks. In a list of ways, best first, each takes some blocks.
struct ProductForm {
  const char* name;
  bool (*takes)(const ProductBlock&);  // null: all
  ProductKernel run;
};
using ProductFormName = const char* (*)(const ProductBlock&, int64_t bits);

// Writes the sums of the columns of a block, [groups][block.cols]. The block's codes are one row of ones, with
// their sums.
using ColumnSumKernel = void (*)(const ProductBlock&, int32_t* sums);

// The bytes of a row of codes in a tile that multiplies groups of so many k, a multiple of 16: no tile has k of two
// groups.
constexpr int64_t tile_bytes_of_groups(int64_t group_size) {
  return group_size % kTileBytes == 0 ? kTileBytes : group_size % 32 == 0 ? 32 : 16;
}

// What the tiles were before begin_tiles(), and the bytes of a row of codes since.
struct TileState {
  alignas(64) uint8_t before[64];
  int64_t tile_bytes;
};

// The products and convolutions of one instruction set. Matrix products are named as in XNNPACK: qc8w are 8-bit weights
// with one scale for each column; qb8w, qb4w and qb2w are weights of 8, 4 and 2 bits with one scale for each group of
// k.
struct ProductKernels {
  ProductKernel gemm_qc8w;
  ProductKernel gemm_qb8w;
  ProductKernel gemm_qb4w;  // one group or more
  // For blocks with a row of ones, up to kMax2BitRows others and groups of up to kMax2BitGroup k. In all other
  // blocks, 2-bit weights become 4-bit weights first.
  ProductKernel gemm_qb2w;
  ProductFormName form_name;  // of the form in which the first three compute a block; null: they have one form
  ColumnSumKernel sum_columns_8bit, sum_columns_4bit;
  WordUse words;         // no rows: not at all
  bool sums_codes_4bit;  // gemm_qb4w uses sums of codes for zero points other than 8
  // gemm_qb4w makes the sums of columns itself if the block has none, neither a row of ones nor padding, and groups of
  // up to kMaxSummedGroup k. That is fast from kMinSummingRows rows on.
  bool makes_sums_4bit;
  // Kernels that run between these calls, on one thread, find the tiles configured. Null: there are no tiles.
  void (*begin_tiles)(TileState&, int64_t tile_bytes);
  void (*end_tiles)(const TileState&);
  // The same for 16 rows or more, with codes in tiles; several groups have up to kMaxTileGroup k. Null: not there.
  ProductKernel gemm_qc8w_tiles;
  ProductKernel gemm_qb8w_tiles;
  ProductKernel gemm_qb4w_tiles;
  ConvKernel conv;
  int64_t conv_quad_bytes;     // of ConvScratch::weights, which only conv uses
  ConvKernel sum_conv_codes;   // code_sums[i] = the sum of the codes of position i of the image
  ConvKernel conv_tiles;       // as conv, for quads 4 bytes apart, from ConvScratch::tiles. Null: not there.
  ConvKernel pack_conv_tiles;  // writes ConvScratch::tiles
  InterleaveKernel interleave_quads;
  const WinogradKernels* winograd;  // null: not there
  const StrassenKernels* strassen;  // null: not there
};

extern const ProductKernels kPortableProducts;

}  // namespace dynq
