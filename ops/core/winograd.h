// Which convolutions are computed by Winograd's algorithm, how their outputs are cut into boxes, and the image of a box
// that the kernels read.
#pragma once

#include <cstdint>
#include <vector>

#include "core/conv_image.h"
#include "core/encodings.h"
#include "kernels/winograd.h"

namespace dynq {

// A convolution as the choice sees it.
struct WinogradShape {
  const ConvAxis (&axes)[kSpatialAxes];
  QuadAxis quad_axis;
  int64_t samples;
  int64_t inputs, outputs;  // of a group
};

// Whether the instruction set in use computes the convolution by Winograd's algorithm.
bool takes_winograd(const WinogradShape& shape);

// Sets the sizes of boxes: as many tiles as fit the caches, in equal parts.
void choose_winograd_box(const ConvAxis (&axes)[kSpatialAxes], int64_t inputs, int64_t (&box)[kSpatialAxes]);

// The image of the codes that a box of positions depends on, and its tiles. Dimensions:
// [units][planes][rows][cols][16]. With dilations, a tile has positions that are so far apart.
class WinogradImage {
 public:
  WinogradImage(const ConvAxis (&axes)[kSpatialAxes], int64_t channels, const ConvTile& box);

  int64_t bytes() const { return units_ * unit_bytes_; }
  const std::vector<WinogradTile>& tiles() const { return tiles_; }
  // Sets the fields but the image.
  void describe(WinogradInput& input) const;

  // Writes bytes() bytes.
  void write(const ConvSource& source, const WinogradKernels& kernels, uint8_t* image) const;

  // The sums of the codes that each position depends on: [planes][rows][cols] of the box.
  void sum_codes(const uint8_t* image, int32_t* sums) const;

 private:
  void write_plane(const ConvSource& source, const WinogradKernels& kernels, int64_t unit, int64_t plane,
                   uint8_t* to) const;

  const ConvAxis (&axes_)[kSpatialAxes];
  int64_t channels_, units_;
  ConvTile box_;
  int64_t rows_, cols_;  // of the image
  int64_t plane_bytes_, unit_bytes_;
  std::vector<WinogradTile> tiles_;
};

}  // namespace dynq
