// Convolutions as matrix products: the codes that an output position depends on become a row, in the order of the
// packed weights, which are those of a product of as many columns as there are output channels.
#pragma once

#include <cstdint>
#include <vector>

#include "core/conv_image.h"
#include "kernels/products.h"

namespace dynq {

// A convolution as the choice sees it.
struct ConvShape {
  const ConvAxis (&axes)[kSpatialAxes];
  int64_t samples;
  bool has_samples_apart;          // scales or zero points differ, so a call of a kernel of convolutions has one sample
  int64_t groups, outputs, quads;  // outputs and quads of weights of a group
  bool fits_tiles;                 // of AMX, which the direct form would use
};

// Whether the instruction set in use computes a convolution by rows.
bool takes_conv_rows(const ConvShape& shape);

// The most rows of a product, and the most columns that are computed at once: they stay in the second-level cache.
constexpr int64_t kConvRows = 256, kConvColumns = 128;

// Writes the rows of all positions of an image's tile, quads * kQuad bytes each. `offsets`: form.offsets().
void write_conv_rows(const ConvImage& form, const ConvTile& tile, const std::vector<int64_t>& offsets,
                     const uint8_t* image, uint8_t* rows);

// sums[row] = the sum of the codes that are multiplied by weights. `ones`: form.ones().
void sum_conv_rows(const uint8_t* rows, int64_t count, const std::vector<int8_t>& ones, int32_t* sums);

// to[col * to_stride + row] = from[row * from_stride + col], clipped. NaN and zeros stay as they are.
void transpose_clipped(const float* from, int64_t from_stride, int64_t rows, int64_t cols, float lowest, float highest,
                       float* to, int64_t to_stride);

}  // namespace dynq
