// The patches of a convolution as a matrix: a row for each weight of an output channel, a column for each position.
#pragma once

#include <cstdint>
#include <vector>

#include "core/conv_image.h"

namespace dynq {

// Of adjacent output positions, row-major.
class ConvPatches {
 public:
  ConvPatches(const ConvAxis (&axes)[kSpatialAxes], int64_t first, int64_t count);

  // Writes rows [row, row + rows), `stride` elements apart. Row k is of weight k: those of a channel are row-major, the
  // channels one after the other. Padding is 0. `image` has the words of the channels.
  void write(const int16_t* image, int64_t row, int64_t rows, int16_t* to, int64_t stride) const;

 private:
  // Output positions that are adjacent along the last axis, and what the first weight of a channel reads for the first
  // of them, which may be padding.
  struct Run {
    int64_t from[kSpatialAxes], count;
  };

  void write_run(const int16_t* channel, const Run& run, const int64_t (&kernel)[kSpatialAxes], int16_t* to) const;

  const ConvAxis (&axes_)[kSpatialAxes];
  std::vector<Run> runs_;
};

}  // namespace dynq
