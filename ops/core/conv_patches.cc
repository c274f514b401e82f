#include "core/conv_patches.h"

#include <algorithm>
#include <cstring>

#include "core/rounding.h"

namespace dynq {

ConvPatches::ConvPatches(const ConvAxis (&axes)[kSpatialAxes], int64_t first, int64_t count) : axes_(axes) {
  const auto& [axis0, axis1, axis2] = axes;
  for (int64_t at = first; at < first + count;) {
    const int64_t column = at % axis2.out, row = at / axis2.out;
    Run run = {{row / axis1.out, row % axis1.out, column}, std::min(axis2.out - column, first + count - at)};
    for (int i = 0; i < kSpatialAxes; ++i) run.from[i] = run.from[i] * axes[i].stride - axes[i].pad;
    runs_.push_back(run);
    at += run.count;
  }
}

void ConvPatches::write(const int16_t* image, int64_t row, int64_t rows, int16_t* to, int64_t stride) const {
  const int64_t in = axes_[0].in * axes_[1].in * axes_[2].in;
  for (int64_t k = row; k < row + rows; ++k, to += stride) {
    int64_t kernel[kSpatialAxes], rest = k;
    for (int i = kSpatialAxes - 1; i >= 0; --i) {
      kernel[i] = rest % axes_[i].kernel * axes_[i].dilation;
      rest /= axes_[i].kernel;
    }
    int16_t* of_run = to;
    for (const Run& run : runs_) {
      write_run(image + rest * in, run, kernel, of_run);
      of_run += run.count;
    }
  }
}

void ConvPatches::write_run(const int16_t* channel, const Run& run, const int64_t (&kernel)[kSpatialAxes],
                            int16_t* to) const {
  int64_t at = 0;
  for (int i = 0; i < kSpatialAxes - 1; ++i) {
    const int64_t from = run.from[i] + kernel[i];
    if (from < 0 || from >= axes_[i].in) {
      std::fill_n(to, run.count, int16_t{0});
      return;
    }
    at = at * axes_[i].in + from;
  }
  const ConvAxis& axis = axes_[kSpatialAxes - 1];
  const int64_t from = run.from[kSpatialAxes - 1] + kernel[kSpatialAxes - 1];
  const int64_t first = std::clamp(divide_up(std::max<int64_t>(-from, 0), axis.stride), int64_t{0}, run.count);
  const int64_t end = std::clamp(divide_up(std::max<int64_t>(axis.in - from, 0), axis.stride), first, run.count);
  std::fill_n(to, first, int16_t{0});
  if (end > first) {
    const int16_t* const row = channel + at * axis.in + from + first * axis.stride;
    if (axis.stride == 1)
      std::memcpy(to + first, row, static_cast<size_t>(end - first) * sizeof(int16_t));
    else
      for (int64_t i = 0; i < end - first; ++i) to[first + i] = row[i * axis.stride];
  }
  std::fill_n(to + end, run.count - end, int16_t{0});
}

}  // namespace dynq
