// Checks Winograd convolutions as conv_check.h checks the direct form, with loops over the definition of a convolution.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "check.h"
#include "conv_check.h"
#include "kernels/winograd.h"
#include "random.h"

namespace winograd_check {

using dynq::kBlockColumns;
using dynq::kQuad;
using dynq::kWinogradOut;
using dynq::kWinogradUnit;

// Tiles of one plane, row after row, and up to 16 output channels. Steps are the dilations.
struct Problem {
  int64_t first, channels, inputs, rows, cols, row_step, col_step, image_rows, image_cols;
  dynq::WinogradKernelSize kernel;
  dynq::ScaleOrder order;
  int32_t zp, weight_zp;
  bool has_zps;
  float scale, lowest = -INFINITY, highest = INFINITY;
  std::vector<dynq::WinogradTile> tiles;
  std::vector<uint8_t> image;   // [units][image_rows][image_cols][16]
  std::vector<int8_t> weights;  // [kernel][quads][16][4]
  std::vector<int8_t> zps;
  std::vector<float> channel_scales, bias;
  std::vector<int32_t> channel_sums;

  int64_t units() const { return (inputs + kWinogradUnit - 1) / kWinogradUnit; }
  int64_t quads() const { return (inputs + kQuad - 1) / kQuad; }
  std::string text() const {
    return std::to_string(inputs) + " to " + std::to_string(channels) + " channels from " + std::to_string(first) +
           ", kernel " + std::to_string(kernel.rows) + "x" + std::to_string(kernel.cols) + ", " + std::to_string(rows) +
           "x" + std::to_string(cols) + " positions, steps " + std::to_string(row_step) + " and " +
           std::to_string(col_step);
  }

  int64_t sum(int64_t row, int64_t col, int64_t column) const {  // column -1: weights of 1
    int64_t result = 0;
    for (int64_t k = 0; k < inputs; ++k)
      for (int64_t a = 0; a < kernel.rows; ++a)
        for (int64_t b = 0; b < kernel.cols; ++b) {
          const int64_t at = ((k / kWinogradUnit * image_rows + row + a * row_step) * image_cols + col + b * col_step);
          const int64_t weight =
              (((a * kernel.cols + b) * quads() + k / kQuad) * kBlockColumns + column) * kQuad + k % kQuad;
          result += image[static_cast<size_t>(at * kWinogradUnit + k % kWinogradUnit)] *
                    (column < 0 ? 1 : weights[static_cast<size_t>(weight)]);
        }
    return result;
  }

  float expected(int64_t channel, int64_t row, int64_t col) const {
    const auto c = static_cast<size_t>(channel);
    const int64_t weight_zero_point = has_zps ? zps[c] : weight_zp;
    const int64_t exact =
        sum(row, col, first + channel) - int64_t{zp} * channel_sums[c] - weight_zero_point * sum(row, col, -1);
    return conv_check::output_of(*this, c, exact);
  }
};

inline Problem make_problem(Random& random) {
  Problem problem = {};
  problem.channels = random.one_in(2) ? kBlockColumns : random.integer(1, kBlockColumns);
  problem.first = random.integer(0, kBlockColumns - problem.channels);
  problem.inputs = random.one_in(8) ? random.integer(200, 600) : random.integer(1, 70);
  problem.kernel = random.one_in(2) ? dynq::WinogradKernelSize{3, 3}
                                    : dynq::WinogradKernelSize{random.one_in(2) ? 1 : random.integer(2, 5),
                                                               random.integer(2, random.one_in(3) ? 10 : 5)};
  const int64_t tile_size = problem.kernel.has_tile_rows() ? kWinogradOut : 1;
  problem.row_step = random.one_in(2) ? 1 : random.integer(1, 3);
  problem.col_step = random.one_in(2) ? 1 : random.integer(1, 3);
  const int64_t tile_rows = random.integer(1, 2), tile_cols = random.integer(1, 5);
  for (int64_t i = 0; i < tile_rows; ++i)
    for (int64_t j = 0; j < tile_cols; ++j) {
      dynq::WinogradTile tile = {};
      tile.row = i * tile_size * problem.row_step;
      tile.col = j * kWinogradOut * problem.col_step;
      tile.rows = i + 1 < tile_rows ? tile_size : random.integer(1, tile_size);
      tile.cols = j + 1 < tile_cols ? kWinogradOut : random.integer(1, kWinogradOut);
      problem.rows = std::max(problem.rows, tile.row + (tile.rows - 1) * problem.row_step + 1);
      problem.cols = std::max(problem.cols, tile.col + (tile.cols - 1) * problem.col_step + 1);
      problem.tiles.push_back(tile);
    }
  // From the first code of a tile to the last one that its pieces depend on.
  const auto span = [](int64_t tile, int64_t weights) {
    return weights == 1 ? tile
                        : tile + (weights + dynq::kWinogradTaps - 1) / dynq::kWinogradTaps * dynq::kWinogradTaps - 1;
  };
  problem.image_rows = (span(tile_rows * tile_size, problem.kernel.rows) - 1) * problem.row_step + 1;
  problem.image_cols = (span(tile_cols * kWinogradOut, problem.kernel.cols) - 1) * problem.col_step + 1;
  for (dynq::WinogradTile& tile : problem.tiles)
    tile.image = (tile.row * problem.image_cols + tile.col) * kWinogradUnit;
  problem.order = static_cast<dynq::ScaleOrder>(random.integer(0, 2));
  problem.zp = static_cast<int32_t>(random.integer(0, 255));
  problem.has_zps = random.one_in(3);
  problem.weight_zp = random.one_in(2) ? 0 : static_cast<int32_t>(random.integer(-128, 127));
  if (random.one_in(2)) problem.lowest = random.of({0.0f, 0.0f, -0.0f, 5.0f});
  if (random.one_in(4)) problem.highest = random.of({6.0f, 6.0f, -0.0f, -5.0f});
  const int64_t extreme = random.one_in(2) ? random.integer(0, 2) : 3;  // weights: lowest, highest, both, any
  const auto weight = [&] {
    return static_cast<int8_t>(extreme == 3                                         ? random.integer(-128, 127)
                               : extreme == 0 || (extreme == 2 && random.one_in(2)) ? -128
                                                                                    : 127);
  };
  const int64_t code = random.one_in(2) ? random.integer(0, 2) : 3;
  for (int64_t i = 0; i < problem.units() * problem.image_rows * problem.image_cols * kWinogradUnit; ++i)
    problem.image.push_back(static_cast<uint8_t>(code == 3   ? random.next()
                                                 : code == 2 ? 255 * random.integer(0, 1)
                                                             : 255 * code));
  for (int64_t i = 0; i < problem.kernel.rows * problem.kernel.cols * problem.quads() * kBlockColumns * kQuad; ++i) {
    const int64_t input = i / (kBlockColumns * kQuad) % problem.quads() * kQuad + i % kQuad;
    problem.weights.push_back(input < problem.inputs ? weight() : int8_t{0});
  }
  problem.scale = random.of(kScales);
  for (int64_t channel = 0; channel < problem.channels; ++channel) {
    problem.zps.push_back(weight());
    problem.channel_scales.push_back(random.one_in(8) ? random.of(kSpecials) : random.of(kScales));
    problem.bias.push_back(random.one_in(8) ? random.of(kSpecials) : random.of(kScales));
    problem.channel_sums.push_back(static_cast<int32_t>(random.integer(-20000, 20000)));
  }
  return problem;
}

inline void check(const std::string& name, const Problem& problem, const dynq::WinogradKernels& kernels,
                  Random& random) {
  static Arena arenas[12];
  const bool at_end = !random.one_in(3);
  const auto offset = [&] { return random.one_in(2) ? 0 : static_cast<size_t>(random.integer(0, 3)); };
  const auto size = [](int64_t count) { return static_cast<size_t>(count); };
  constexpr float kUntouched = 12345.0f;
  const int64_t positions = problem.rows * problem.cols, tiles = static_cast<int64_t>(problem.tiles.size());
  std::vector<int32_t> code_sums;
  for (int64_t i = 0; i < positions; ++i)
    code_sums.push_back(static_cast<int32_t>(problem.sum(i / problem.cols, i % problem.cols, -1)));
  dynq::WinogradBlock block = {};
  block.first = problem.first;
  block.channels = problem.channels;
  block.input = {problem.kernel,
                 arenas[0].place(problem.image, at_end, offset()),
                 problem.units(),
                 problem.image_rows * problem.image_cols * kWinogradUnit,
                 problem.row_step * problem.image_cols * kWinogradUnit,
                 problem.col_step * kWinogradUnit,
                 arenas[1].place(problem.tiles, at_end, 0),
                 tiles};
  block.packed = arenas[2].place(problem.weights, at_end, offset());
  block.quads = problem.quads();
  block.zps = problem.has_zps ? arenas[3].place(problem.zps, at_end, offset()) : nullptr;
  block.zp = problem.weight_zp;
  block.code_sums = arenas[4].place(code_sums, at_end, 0);
  block.code_row_stride = problem.cols;
  block.scaling.scale = problem.scale;
  block.scaling.zp = problem.zp;
  block.scaling.channel_scales = arenas[5].place(problem.channel_scales, at_end, offset());
  block.scaling.channel_sums = arenas[6].place(problem.channel_sums, at_end, offset());
  block.scaling.bias = arenas[7].place(problem.bias, at_end, offset());
  block.scaling.order = problem.order;
  block.scaling.lowest = problem.lowest;
  block.scaling.highest = problem.highest;
  block.output = {arenas[8].place(std::vector<float>(size(problem.channels * positions), kUntouched), at_end, offset()),
                  positions,
                  positions,
                  problem.cols,
                  problem.row_step,
                  problem.col_step};
  static Arena codes, weights, sums, parts;
  block.scratch = {codes.place(std::vector<int16_t>(size(dynq::winograd_codes_size(block.input))), at_end, 0),
                   weights.place(std::vector<int16_t>(size(dynq::kWinogradWeightsSize)), at_end, 0),
                   sums.place(std::vector<int32_t>(size(dynq::winograd_sums_size(block.input))), at_end, 0),
                   parts.place(std::vector<int32_t>(size(dynq::winograd_parts_size(block.input))), at_end, 0)};
  kernels.transform_codes(block);
  kernels.convolve(block);
  std::vector<bool> is_computed(size(positions));
  for (const dynq::WinogradTile& tile : problem.tiles)
    for (int64_t i = 0; i < tile.rows; ++i)
      for (int64_t j = 0; j < tile.cols; ++j)
        is_computed[size((tile.row + i * problem.row_step) * problem.cols + tile.col + j * problem.col_step)] = true;
  for (int64_t i = 0; i < problem.channels * positions; ++i) {
    const int64_t channel = i / positions, row = i % positions / problem.cols, col = i % problem.cols;
    const float actual = dynq::load(block.output.dst + i);
    const float right = is_computed[size(i % positions)] ? problem.expected(channel, row, col) : kUntouched;
    if (bits_of(actual) != bits_of(right))
      fail(name + " winograd, " + problem.text() + ": element [" + std::to_string(channel) + ", " +
           std::to_string(row) + ", " + std::to_string(col) + "] is " + std::to_string(actual) + ", expected " +
           std::to_string(right));
  }
}

inline void check_interleave(const std::string& name, dynq::WinogradInterleave kernel, Random& random) {
  static Arena arenas[kWinogradUnit + 1];
  const int64_t count = random.integer(0, 50);
  const auto flip = static_cast<uint8_t>(random.next());
  std::vector<uint8_t> values[kWinogradUnit];
  const uint8_t* rows[kWinogradUnit];
  for (int64_t j = 0; j < kWinogradUnit; ++j) {
    for (int64_t i = 0; i < count; ++i) values[j].push_back(static_cast<uint8_t>(random.next()));
    rows[j] = arenas[j].place(values[j], !random.one_in(3), 0);
  }
  uint8_t* to = arenas[kWinogradUnit].place(std::vector<uint8_t>(static_cast<size_t>(count * kWinogradUnit)),
                                            random.one_in(2), 0);
  kernel(rows, count, flip, to);
  for (int64_t i = 0; i < count * kWinogradUnit; ++i)
    if (to[i] != (values[i % kWinogradUnit][static_cast<size_t>(i / kWinogradUnit)] ^ flip))
      fail(name + " winograd interleave, " + std::to_string(count) + " codes: byte " + std::to_string(i) + " is wrong");
}

}  // namespace winograd_check
