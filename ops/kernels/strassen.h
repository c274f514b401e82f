// The interface of matrix products and convolutions by Strassen's algorithm, in Winograd's form: 7 products of halves
// in place of 8. ort_dynq/docs/how-results-are-proved.md has the proof that their sums are exact.
#pragma once

#include <stdint.h>

#include "kernels/convolutions.h"

namespace dynq {

struct ProductBlock;

// A block has up to kStrassenRows rows and kStrassenColumns columns. Its k are cut into pieces. Rows, columns and k of
// a piece are cut into halves; half of the k of a piece is a multiple of kStrassenUnit, and at most kStrassenDepth.
constexpr int64_t kStrassenRows = 192, kStrassenColumns = 4 * kBlockColumns;
constexpr int64_t kStrassenUnit = 32, kStrassenDepth = 256;
constexpr int64_t kStrassenProducts = 7;

constexpr int64_t strassen_pieces(int64_t depth) { return (depth + 2 * kStrassenDepth - 1) / (2 * kStrassenDepth); }
// Half of the k of a piece, with padding.
constexpr int64_t strassen_half_depth(int64_t depth) {
  const int64_t halves = 2 * strassen_pieces(depth);
  return halves == 0 ? 0 : ((depth + halves - 1) / halves + kStrassenUnit - 1) / kStrassenUnit * kStrassenUnit;
}
constexpr int64_t strassen_half_rows(int64_t rows) { return (rows + 1) / 2; }

// The operands that are formed from the rows of a block, in int16: [pieces][7][half of the rows][half of the k of a
// piece], and 32 more from an operand to the next: a power of two would share cache sets.
constexpr int64_t strassen_operand_size(int64_t rows, int64_t depth) {
  return strassen_half_rows(rows) * strassen_half_depth(depth) + 32;
}
constexpr int64_t strassen_codes_size(int64_t rows, int64_t depth) {
  return strassen_pieces(depth) * kStrassenProducts * strassen_operand_size(rows, depth);
}

struct StrassenKernels {
  // Writes row `row` of the operands of a block of `rows` rows, which has half as many. `stride` is the distance from
  // row to row of the codes.
  void (*form_codes)(const uint8_t* codes, int64_t stride, int64_t rows, int64_t depth, int64_t row, int16_t* to);
  // As gemm_qc8w, for a block of kStrassenColumns columns and up to kStrassenRows rows: the codes are their operands.
  void (*gemm_qc8w)(const ProductBlock& block);
  // As form_codes, of packed weights: channels are rows. `stride` is the distance from a block of 16 channels to the
  // next.
  void (*form_channel)(const int8_t* packed, int64_t stride, int64_t channels, int64_t depth, int64_t row, int16_t* to);
  // As ProductKernels::conv, for a row of kStrassenColumns positions with quads 4 bytes apart, and up to kStrassenRows
  // channels: the weights are their operands.
  void (*conv)(const ConvBlock& block, const int16_t* operands);
};

}  // namespace dynq
