// Which matrix products and convolutions are computed by Strassen's algorithm, and how their rows are cut.
#pragma once

#include <cstdint>

#include "kernels/strassen.h"

namespace dynq {

// A product of codes with weights of 8 bits and one group, as the choice sees it.
struct StrassenShape {
  int64_t rows, depth, columns;
};

// Whether the instruction set in use computes the product by Strassen's algorithm.
bool takes_strassen(const StrassenShape& shape);

// A convolution of one group, with channels as rows: `depth` is the number of codes that an output depends on.
struct StrassenConvShape {
  int64_t channels, depth, positions;
};

// Likewise. The kernels read an image with quads 4 bytes apart, and write to adjacent outputs.
bool takes_strassen_conv(const StrassenConvShape& shape);

// The channels of each part but the last one: whole blocks, and up to kStrassenRows.
int64_t choose_strassen_channels(int64_t channels);

// The rows of each part but the last one: an even number, and up to kStrassenRows. `tasks` parts and strips of
// kStrassenColumns columns occupy all threads, where the rows are many enough.
int64_t choose_strassen_rows(const StrassenShape& shape, int64_t tasks);

}  // namespace dynq
