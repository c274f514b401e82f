// The interface of the kernels of convolutions: codes times packed weights, to floats. portable_products.cc defines the
// correct results; every other kernel returns the same bits.
#pragma once

#include <stdint.h>

#include "core/compiler.h"
#include "core/encodings.h"
#include "kernels/numbers.h"

namespace dynq {

// Weights are [channels / 16][quads][16][4]: 16 output channels form a block, and 4 adjacent k form a quad.
constexpr int64_t kBlockColumns = 16;
constexpr int64_t kQuad = 4;

// The rows of a tile of AMX, and the bytes of a row.
constexpr int64_t kTileRows = 16;
constexpr int64_t kTileBytes = 64;

// The image holds a quad of codes for each position. The quads of adjacent positions are `position_bytes` apart: 4, or
// if they overlap 1 or 2.
//
// Everything from the first quad of the first position to the end of the last quad of the last position, and kConvSlack
// * 4 bytes more, is readable. Kernels load whole vectors and ignore the codes beyond the last position.
struct ConvInput {
  const uint8_t* image;
  int64_t row_stride;  // from a row to the next, in positions
  int64_t position_bytes;
  const int64_t* offsets;  // [quads]: bytes from `image` to the quads of the first position
  int64_t quads;
  // For conv_tiles: quads are [quads / run][run]; within a run they are run_bytes apart in the image. Or `gathers` is
  // set: the run is all quads, which pack_conv_tiles takes from their offsets, and run_bytes those of the positions.
  int64_t run, run_bytes;
  bool gathers;
  int64_t
      kernel_rows;  // 0, or quads are [kernel_rows][quads / kernel_rows]: rows of the image, and quads 4 bytes apart
};

// Pointers to channels point to the first channel of the block.
struct ConvWeights {
  const int8_t* packed;  // [quads][16][4]
  int64_t stride;        // from a block of 16 channels to the next
  const int8_t* zps;     // [channels]; null: every zero point is `zp`
  int32_t zp;
  const int8_t* ones;  // [quads][4]: 1 for each weight, 0 for padding; read by sum_conv_codes
};

// How an exact sum of products becomes an output.
struct ConvScaling {
  float scale;  // of the codes
  int32_t zp;
  const float* channel_scales;
  const int32_t* channel_sums;
  const float* bias;
  ScaleOrder order;
  float lowest, highest;  // clip the output; NaN and zeros stay as they are
};

// The factors of an exact sum, one after the other.
struct ConvFactors {
  float first, second;
};

static inline ConvFactors factors_of(const ConvScaling& scaling, int64_t channel) {
  const float scale = scaling.scale, channel_scale = load(scaling.channel_scales + channel);
  if (scaling.order == kScalesFirst) return {scale * channel_scale, 1.0f};
  return scaling.order == kRowFirst ? ConvFactors{scale, channel_scale} : ConvFactors{channel_scale, scale};
}

struct ConvOutput {
  float* dst;
  int64_t row_stride;      // from a row to the next, in elements
  int64_t channel_stride;  // from a channel to the next
};

// Memory for values that several kernels share.
struct ConvScratch {
  int32_t* code_sums;  // of the image's positions and kConvSlack more: for weights with zero points; see sum_conv_codes
  uint8_t* tiles;      // conv_tiles_bytes() at a multiple of 64; see pack_conv_tiles
  uint8_t* weights;    // ProductKernels::conv_quad_bytes for each quad: conv may widen the weights to it
};

// Output channels x output positions. The positions of a row are adjacent. Image, weights, output and arrays of
// channels may be unaligned.
struct ConvBlock {
  int64_t channels;  // up to 16 of one block of weights; for conv_tiles up to 32, from the first channel of a block on
  int64_t rows, cols;
  ConvInput input;
  ConvWeights weights;
  ConvScaling scaling;
  ConvOutput output;
  ConvScratch scratch;
};

constexpr int64_t kConvSlack = 128;

// The bytes of ConvScratch::tiles: 64 for each 16 quads of a run and each quad of the image, and slack.
static constexpr int64_t conv_tiles_bytes(int64_t run, int64_t run_bytes) {
  return ((run + kTileRows - 1) / kTileRows * (run_bytes / kQuad) + 2 * kTileRows) * kTileBytes;
}

static inline bool has_zero_points(const ConvWeights& weights) { return weights.zps != nullptr || weights.zp != 0; }

using ConvKernel = void (*)(const ConvBlock&);

// to[4 * i + j] = rows[j][i] ^ flip, for i < count.
using InterleaveKernel = void (*)(const uint8_t* const (&rows)[kQuad], int64_t count, uint8_t flip, uint8_t* to);

}  // namespace dynq
