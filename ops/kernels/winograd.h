// The interface of the kernels of Winograd convolutions: stride 1, by F(4x4, 3x3) of integers, or F(4, 3) along rows if
// the kernel has one row. They return the bits of the direct convolution (convolutions.h), and have a fourth or a half
// of its products. docs/how-results-are-proved.md has the proof that the sums are exact.
//
// A tile is 4x4 positions of the output, and the 6x6 codes that they depend on; or 1x4 and 1x6. The transform of its
// codes and the transform of the weights have 36 or 6 elements, int16. The sums over the channels of their products,
// modulo 2^32, are transformed back to the sums of the positions.
//
// A larger kernel is cut into pieces of 3 rows and 3 columns: their products are added before they are transformed
// back.
#pragma once

#include <stdint.h>

#include "kernels/convolutions.h"

namespace dynq {

// Positions, codes and weights of a tile along an axis that is transformed.
constexpr int64_t kWinogradOut = 4, kWinogradIn = 6, kWinogradTaps = 3;
constexpr int64_t kWinogradElements = kWinogradIn * kWinogradIn;  // at most
// Input channels that are adjacent in the image.
constexpr int64_t kWinogradUnit = 16;
// Quads of input channels with weights that are transformed at once. They stay in the second-level cache.
constexpr int64_t kWinogradQuads = 32;

// Rows and columns of weights. Files of several instruction sets include the functions: they may not share one.
struct WinogradKernelSize {
  int64_t rows, cols;

  ORT_DYNQ_INLINE bool has_tile_rows() const { return rows > 1; }  // 4x4 positions, not 1x4
  ORT_DYNQ_INLINE int64_t elements() const { return has_tile_rows() ? kWinogradElements : kWinogradIn; }
  ORT_DYNQ_INLINE int64_t row_pieces() const { return (rows + kWinogradTaps - 1) / kWinogradTaps; }
  ORT_DYNQ_INLINE int64_t col_pieces() const { return (cols + kWinogradTaps - 1) / kWinogradTaps; }
  ORT_DYNQ_INLINE int64_t pieces() const { return row_pieces() * col_pieces(); }

  // 576 times a sum is known modulo 2^32, or 24 times with tiles of one row, so the sum has to be in [-2^25, 2^25) or
  // [-2^28, 2^28). It is at most 128 times the sum of the magnitudes of the weights of its output channel.
  ORT_DYNQ_INLINE int64_t most_magnitude() const { return (int64_t{1} << (has_tile_rows() ? 25 : 28)) / 128 - 1; }
  // Whether the weights of that many input channels may exceed it.
  ORT_DYNQ_INLINE bool has_limit(int64_t inputs) const { return inputs * rows * cols * 128 > most_magnitude(); }
};
static_assert(kWinogradQuads * kQuad * kWinogradTaps * kWinogradTaps * 128 <= (int64_t{1} << 25) / 128 - 1,
              "weights that are transformed at once fit");

struct WinogradTile {
  int64_t image;            // bytes from the image of a unit to the tile's first code
  int64_t plane, row, col;  // of the first position in the output
  int64_t rows, cols;       // positions that the output has, 1 to 4
};

struct WinogradInput {
  WinogradKernelSize kernel;
  const uint8_t* image;  // [units]; the codes of a unit are adjacent, and every piece of a tile has 6x6 of them
  int64_t units, unit_bytes;
  int64_t row_bytes, col_bytes;  // from a row or column of a tile to the next
  const WinogradTile* tiles;
  int64_t tile_count;

  ORT_DYNQ_INLINE int64_t channels() const { return kernel.pieces() * units * kWinogradUnit; }  // of transformed codes
};

struct WinogradOutput {
  float* dst;
  int64_t channel_stride, plane_stride, row_stride;  // in elements; columns are adjacent
  int64_t row_step, col_step;                        // from a row or column of a tile to the next
};

struct WinogradScratch {
  int16_t* codes;    // winograd_codes_size()
  int16_t* weights;  // kWinogradWeightsSize
  int32_t* sums;     // winograd_sums_size()
  int32_t* parts;    // winograd_parts_size(), if WinogradKernelSize::has_limit()
};

// Up to 16 output channels of one block of weights, [rows][cols][quads][16][4]. Pointers to channels point to the first
// one, which is number `first` of the block.
struct WinogradBlock {
  int64_t first, channels;
  WinogradInput input;
  const int8_t* packed;
  int64_t quads;
  const int8_t* zps;  // [channels]; null: every zero point is `zp`
  int32_t zp;
  // Of the codes that each position depends on, [planes][rows][cols] as in the output, for weights with zero points.
  const int32_t* code_sums;
  int64_t code_plane_stride, code_row_stride;
  ConvScaling scaling;
  WinogradOutput output;
  WinogradScratch scratch;
};

// The distance between elements, in int16: some more than needed, so that it is no multiple of 4096 bytes.
static inline int64_t winograd_codes_step(const WinogradInput& input) {
  return input.tile_count * input.channels() + 32;
}
constexpr int64_t kWinogradWeightsStep = kWinogradQuads * kQuad * kBlockColumns + 32;
static inline int64_t winograd_codes_size(const WinogradInput& input) {
  return input.kernel.elements() * winograd_codes_step(input);
}
constexpr int64_t kWinogradWeightsSize = kWinogradElements * kWinogradWeightsStep;
static inline int64_t winograd_sums_size(const WinogradInput& input) {
  return input.kernel.elements() * input.tile_count * kBlockColumns;
}
static inline int64_t winograd_parts_size(const WinogradInput& input) {
  return kWinogradOut * kWinogradOut * input.tile_count * kBlockColumns;
}

using WinogradKernel = void (*)(const WinogradBlock&);
// to[16 * i + j] = rows[j][i] ^ flip, for i < count.
using WinogradInterleave = void (*)(const uint8_t* const (&rows)[kWinogradUnit], int64_t count, uint8_t flip,
                                    uint8_t* to);

struct WinogradKernels {
  WinogradInterleave interleave;
  WinogradKernel transform_codes;  // writes scratch.codes
  WinogradKernel convolve;         // reads them, and writes the output
};

extern const WinogradKernels kPortableWinograd;

}  // namespace dynq
