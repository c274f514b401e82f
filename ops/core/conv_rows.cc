#include "core/conv_rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "core/algorithm_use.h"
#include "core/rounding.h"
#include "kernels/dispatch.h"
#include "kernels/numbers.h"

namespace dynq {
namespace {

// Positions with quads that are copied together: they share cache lines of the image.
constexpr int64_t kPositions = 8;
// The direct form multiplies vectors of positions: samples of fewer positions leave lanes empty. With VNNI, rows take
// 0.17 to 0.98 of its time up to there, 0.6 to 1.05 with 16 to 20 positions (AMD EPYC, Zen 5, family 26, model 2). With
// one sample they take 0.39 to 0.76 with one position, 0.6 to 1.02 with up to 15; without VNNI 0.25 to 0.55 and 0.48
// to 1. Those of the portable kernels take 0.04 to 0.9 with any number of positions: only products of rows have vectors
// there.
constexpr int64_t kFewPositions = 16;
// Sums of fewer quads, or for fewer channels, do not pay for the copies.
constexpr int64_t kMinQuads = 16, kMinOutputs = 16;
// Sums of so many take less time than the direct form's with any number of positions: 0.7 to 1.0 of it on AMD EPYC,
// Zen 3 (family 25, model 1). With half as many they take 0.95 to 1.15, but 0.83 to 1.0 where the positions of a sample
// leave more than a fifth of the lanes of the direct form empty, which has pairs of vectors.
constexpr int64_t kManyQuads = 128, kPairLanes = 16;

// Elements of a square that is transposed at once.
constexpr int64_t kSquare = 8;

void transpose_square(const float* from, int64_t from_stride, float* __restrict to, int64_t to_stride) {
  float square[kSquare][kSquare];
  for (int64_t i = 0; i < kSquare; ++i)
    for (int64_t j = 0; j < kSquare; ++j) square[j][i] = from[i * from_stride + j];
  for (int64_t j = 0; j < kSquare; ++j)
    std::memcpy(static_cast<void*>(to + j * to_stride), square[j], sizeof square[j]);
}

void clip(float* values, int64_t count, float lowest, float highest) {
  for (int64_t i = 0; i < count; ++i) {
    float value = load(values + i);
    value = value < lowest ? lowest : value;
    store(values + i, value > highest ? highest : value);
  }
}

}  // namespace

bool takes_conv_rows(const ConvShape& shape) {
  const AlgorithmUse use = conv_rows_use;
  if (use != AlgorithmUse::kByRule) return use == AlgorithmUse::kAlways && shape.groups == 1;
  if (shape.groups > 1 || shape.outputs < kMinOutputs || shape.quads < kMinQuads) return false;
  const ConvAxis(&axes)[kSpatialAxes] = shape.axes;
  const bool is_one_sample = shape.samples == 1 || shape.has_samples_apart;  // in each call of a kernel
  const int64_t positions = axes[0].out * axes[1].out * axes[2].out;
  if (is_one_sample && positions == 1) return true;  // the direct form's other lanes are empty, on any CPU
  const std::string isa = active_isa().name;
  if (isa == "portable") return true;
  const bool is_measured = isa == "avx2" || isa == "avx512" || isa == "avxvnni" || isa == "avx512vnni";
  // With AMX, both forms have the kernels of VNNI unless the direct form takes tiles. By count, these take 16 cycles
  // for up to 16 positions of 16 quads and channels, and rows 8 for each position.
  if (!is_measured && (isa != "amx" || shape.fits_tiles)) return false;
  if (isa == "avx2" && shape.quads >= kManyQuads) return true;
  if (isa == "avx2" && shape.quads >= kManyQuads / 2 && is_one_sample &&
      5 * positions < 4 * round_up(positions, kPairLanes))
    return true;
  return is_one_sample && positions < kFewPositions;
}

void write_conv_rows(const ConvImage& form, const ConvTile& tile, const std::vector<int64_t>& offsets,
                     const uint8_t* image, uint8_t* rows) {
  const auto quads = static_cast<int64_t>(offsets.size());
  const int64_t row_bytes = quads * kQuad, step = form.position_bytes();
  for (int64_t i0 = 0; i0 < tile.count[0]; ++i0)
    for (int64_t i1 = 0; i1 < tile.count[1]; ++i1)
      for (int64_t i2 = 0; i2 < tile.count[2]; i2 += kPositions) {
        const int64_t count = std::min(kPositions, tile.count[2] - i2);
        const uint8_t* from = image + (form.position(i0, i1) + i2) * step;
        for (int64_t quad = 0; quad < quads; ++quad) {
          const uint8_t* codes = from + offsets[static_cast<size_t>(quad)];
          for (int64_t i = 0; i < count; ++i) std::memcpy(rows + i * row_bytes + quad * kQuad, codes + i * step, kQuad);
        }
        rows += count * row_bytes;
      }
}

void sum_conv_rows(const uint8_t* rows, int64_t count, const std::vector<int8_t>& ones, int32_t* sums) {
  const auto depth = static_cast<int64_t>(ones.size());
  for (int64_t row = 0; row < count; ++row, rows += depth) {
    int32_t sum = 0;
    for (int64_t i = 0; i < depth; ++i) sum += rows[i] * ones[static_cast<size_t>(i)];
    sums[row] = sum;
  }
}

void transpose_clipped(const float* from, int64_t from_stride, int64_t rows, int64_t cols, float lowest, float highest,
                       float* to, int64_t to_stride) {
  for (int64_t col = 0; col < cols; col += kSquare) {
    const int64_t count = std::min(kSquare, cols - col);
    for (int64_t row = 0; row < rows; row += kSquare) {
      const float* square = from + row * from_stride + col;
      float* transposed = to + col * to_stride + row;
      if (count == kSquare && rows - row >= kSquare) {
        transpose_square(square, from_stride, transposed, to_stride);
        continue;
      }
      for (int64_t i = 0; i < std::min(kSquare, rows - row); ++i)
        for (int64_t j = 0; j < count; ++j) store(transposed + j * to_stride + i, square[i * from_stride + j]);
    }
    if (lowest > -INFINITY || highest < INFINITY)
      for (int64_t j = 0; j < count; ++j) clip(to + (col + j) * to_stride, rows, lowest, highest);
  }
}

}  // namespace dynq
