// The interface of the kernels of Winograd convolutions: 3x3, stride 1, by F(4x4, 3x3) of integers. They return the
// bits of the direct convolution (convolutions.h), whose products they replace by a fourth as many. docs/numerics.md
// has the proof that the sums are exact.
//
// A tile is 4x4 positions of the output, and the 6x6 codes that they depend on. The transform of its codes and the
// transform of the weights have 36 elements, int16. The sums over the channels of their products, modulo 2^32, are
// transformed back to 4x4 sums.
#pragma once

#include <stdint.h>

#include "kernels/convolutions.h"

namespace dynq {

constexpr int64_t kWinogradOut = 4, kWinogradIn = 6, kWinogradElements = kWinogradIn * kWinogradIn;
// Input channels that are adjacent in the image.
constexpr int64_t kWinogradUnit = 16;
// Quads of input channels whose weights are transformed at once. They stay in the second-level cache.
constexpr int64_t kWinogradQuads = 32;

// 576 times a sum is known modulo 2^32, so the sum has to be in [-2^25, 2^25). It is at most 128 times the sum of the
// magnitudes of the weights of its output channel.
constexpr int64_t kMostWinogradMagnitude = (int64_t{1} << 25) / 128 - 1;
static_assert(kWinogradQuads * kQuad * 9 * 128 <= kMostWinogradMagnitude, "weights that are transformed at once fit");

// Input channels whose weights fit, whatever they are.
constexpr int64_t kSafeWinogradInputs = kMostWinogradMagnitude / 9 / 128;

struct WinogradTile {
  int64_t image;            // bytes from the image of a unit to the tile's first code
  int64_t plane, row, col;  // of the first position in the output
  int64_t rows, cols;       // positions that the output has, 1 to 4
};

struct WinogradInput {
  const uint8_t* image;  // [units]; the codes of a unit are adjacent, and every tile has 6x6 of them
  int64_t units, unit_bytes;
  int64_t row_bytes, col_bytes;  // from a row or column of a tile to the next
  const WinogradTile* tiles;
  int64_t tile_count;
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
  int32_t* parts;    // winograd_parts_size(), where there are more than kSafeWinogradInputs
};

// Up to 16 output channels of one block of weights, [9][quads][16][4]. Pointers to channels point to the first one,
// which is number `first` of the block.
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
static constexpr int64_t winograd_codes_step(int64_t tiles, int64_t units) {
  return tiles * units * kWinogradUnit + 32;
}
constexpr int64_t kWinogradWeightsStep = kWinogradQuads * kQuad * kBlockColumns + 32;
static constexpr int64_t winograd_codes_size(int64_t tiles, int64_t units) {
  return kWinogradElements * winograd_codes_step(tiles, units);
}
constexpr int64_t kWinogradWeightsSize = kWinogradElements * kWinogradWeightsStep;
static constexpr int64_t winograd_sums_size(int64_t tiles) { return kWinogradElements * tiles * kBlockColumns; }
static constexpr int64_t winograd_parts_size(int64_t tiles) {
  return kWinogradOut * kWinogradOut * tiles * kBlockColumns;
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
