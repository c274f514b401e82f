// Checks convolutions and interleaved rows as products_check.cc checks products.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "check.h"
#include "kernels/products.h"
#include "kernels/strassen.h"
#include "random.h"

namespace conv_check {

using dynq::kBlockColumns;
using dynq::kConvSlack;
using dynq::kQuad;

// What becomes of an exact sum of the output channel `c`.
template <class Problem>
float output_of(const Problem& problem, size_t c, int64_t exact) {
  float real = static_cast<float>(static_cast<int32_t>(static_cast<uint32_t>(exact)));
  const float scale = problem.scale, channel_scale = problem.channel_scales[c];
  if (problem.order == dynq::kScalesFirst) {
    real = real * (scale * channel_scale);
  } else {
    real = real * (problem.order == dynq::kRowFirst ? scale : channel_scale);
    real = real * (problem.order == dynq::kRowFirst ? channel_scale : scale);
  }
  real = real + problem.bias[c];
  const float clipped = real < problem.lowest ? problem.lowest : real;
  return clipped > problem.highest ? problem.highest : clipped;
}

// A convolution. Arrays have the layouts of ConvBlock; the weights begin with `first` other channels.
struct Problem {
  int64_t channels = 0, first = 0, rows = 0, cols = 0, image_row = 0, dst_row = 0, dst_stride = 0;
  int64_t position_bytes = kQuad, quads = 0, kernel_rows = 0, run = 0, run_bytes = 0;  // run 0: not for tiles
  enum { kNoZeroPoints, kOneZeroPoint, kZeroPointPerChannel } zero_points = kNoZeroPoints;
  dynq::ScaleOrder order = dynq::kScalesFirst;
  int32_t zp = 0, weight_zp = 0;
  float scale = 1, lowest = -INFINITY, highest = INFINITY;
  std::vector<int64_t> offsets;
  std::vector<uint8_t> image;
  std::vector<int8_t> weights, weight_zps, ones;
  std::vector<float> channel_scales, bias;
  std::vector<int32_t> channel_sums;

  std::string text() const {
    return std::to_string(channels) + " channels from " + std::to_string(first) + ", " + std::to_string(rows) + "x" +
           std::to_string(cols) + " positions of " + std::to_string(position_bytes) + " bytes, " +
           std::to_string(kernel_rows) + " kernel rows, " + std::to_string(quads) + " quads in runs of " +
           std::to_string(run) + ", order " + std::to_string(order);
  }

  // From the first position of the image to the last one.
  int64_t positions() const { return rows == 0 || cols == 0 ? 0 : (rows - 1) * image_row + cols; }

  int64_t weights_stride() const { return quads * kBlockColumns * kQuad; }

  // The sum of the codes of a position, each times its weight: weights[quad * step + i].
  int64_t sum(int64_t position, const int8_t* weights_of, int64_t step) const {
    int64_t result = 0;
    for (int64_t quad = 0; quad < quads; ++quad)
      for (int64_t i = 0; i < kQuad; ++i) {
        const int64_t at = offsets[static_cast<size_t>(quad)] + position * position_bytes + i;
        result += image[static_cast<size_t>(at)] * weights_of[quad * step + i];
      }
    return result;
  }

  // All kernels are compared with the same results.
  mutable std::map<int64_t, float> results;
  float expected(int64_t channel, int64_t position) const {
    const auto [found, is_new] = results.try_emplace(channel * positions() + position);
    if (is_new) found->second = compute(channel, position);
    return found->second;
  }

  float compute(int64_t channel, int64_t position) const {
    const auto c = static_cast<size_t>(channel);
    const int64_t block = (first + channel) / kBlockColumns, in_block = (first + channel) % kBlockColumns;
    const int64_t products =
        sum(position, weights.data() + block * weights_stride() + in_block * kQuad, kBlockColumns * kQuad);
    int64_t exact = products - int64_t{zp} * channel_sums[c];
    if (zero_points == kOneZeroPoint) exact -= weight_zp * sum(position, ones.data(), kQuad);
    if (zero_points == kZeroPointPerChannel) exact -= weight_zps[c] * sum(position, ones.data(), kQuad);
    return output_of(*this, c, exact);
  }
};

inline Problem make_problem(Random& random) {
  Problem problem;
  problem.channels = random.one_in(2) ? kBlockColumns : random.integer(0, kBlockColumns);
  problem.first = random.integer(0, kBlockColumns - problem.channels);
  problem.rows = random.one_in(2) ? 1 : random.integer(0, 12);
  problem.cols = random.integer(0, problem.rows == 1 ? 200 : 40);
  problem.image_row = problem.cols + random.integer(0, 5);
  problem.dst_row = problem.cols + (random.one_in(2) ? 0 : random.integer(1, 5));
  problem.quads = random.one_in(8) ? 0 : random.integer(1, 40);
  problem.dst_stride = problem.rows * problem.dst_row + (random.one_in(2) ? 0 : random.integer(1, 20));
  problem.position_bytes = random.one_in(3) ? kQuad : random.integer(1, 2);
  if (problem.position_bytes < kQuad && random.one_in(2)) {
    problem.kernel_rows = random.of<int64_t>({1, 2, 3, 5, 7});
    problem.quads = problem.kernel_rows * random.integer(1, 3);
  }
  if (problem.position_bytes == kQuad && !random.one_in(3)) {
    problem.run = random.integer(1, 50);
    problem.quads = problem.run * random.integer(1, 4);
    problem.channels = random.integer(0, 2 * kBlockColumns);
    problem.first = 0;
    problem.run_bytes = (problem.positions() + random.integer(0, 50)) * kQuad;
  }
  problem.zero_points = static_cast<decltype(problem.zero_points)>(random.integer(0, 2));
  problem.order = static_cast<dynq::ScaleOrder>(random.integer(0, 2));
  problem.zp = static_cast<int32_t>(random.integer(0, 255));
  if (random.one_in(2)) problem.lowest = random.of({0.0f, 0.0f, -0.0f, 5.0f});
  if (random.one_in(4)) problem.highest = random.of({6.0f, 6.0f, -0.0f, -5.0f});  // maybe below the lowest one
  if (problem.zero_points == Problem::kOneZeroPoint)
    problem.weight_zp = static_cast<int32_t>(random.integer(-128, 127));
  const bool special = random.one_in(3), extreme = random.one_in(3);  // sums of pairs beyond 16 bits
  const auto weight = [&] {
    return static_cast<int8_t>(!extreme ? random.integer(-128, 127) : random.one_in(3) ? 127 : -128);
  };
  const auto code = [&] { return static_cast<uint8_t>(extreme ? 255 * random.integer(0, 1) : random.next()); };
  const auto scale = [&] { return special && random.one_in(4) ? random.of(kSpecials) : random.of(kScales); };
  problem.scale = scale();
  int64_t last = 0;
  for (int64_t quad = 0; quad < problem.quads; ++quad) {
    const int64_t row_quads = problem.quads / std::max(problem.kernel_rows, int64_t{1});
    const int64_t in_rows = quad / row_quads * problem.image_row * problem.position_bytes + quad % row_quads * kQuad;
    const int64_t at = problem.run > 0 ? quad % problem.run : 0;  // in its run
    problem.offsets.push_back(problem.kernel_rows > 0 ? in_rows
                              : problem.run == 0      ? random.integer(0, 1000)
                              : at > 0 ? problem.offsets[static_cast<size_t>(quad - at)] + at * problem.run_bytes
                                       : random.integer(0, problem.run_bytes / kQuad - problem.positions()) * kQuad);
    last = std::max(last, problem.offsets.back());
    const int64_t used = random.one_in(4) ? random.integer(1, kQuad) : kQuad;
    for (int64_t i = 0; i < kQuad; ++i) problem.ones.push_back(i < used ? 1 : 0);
  }
  for (int64_t block = 0; block * kBlockColumns < std::max(problem.channels, int64_t{1}); ++block)
    for (size_t i = 0; i < problem.ones.size() * kBlockColumns; ++i)
      problem.weights.push_back(problem.ones[i / (kBlockColumns * kQuad) * kQuad + i % kQuad] != 0 ? weight()
                                                                                                   : int8_t{0});
  // All that kernels may read.
  const int64_t bytes = std::max(last + problem.positions() * problem.position_bytes, problem.run * problem.run_bytes) +
                        kConvSlack * kQuad;
  for (int64_t i = 0; i < bytes; ++i) problem.image.push_back(code());
  for (int64_t channel = 0; channel < problem.channels; ++channel) {
    problem.weight_zps.push_back(weight());
    problem.channel_scales.push_back(scale());
    problem.bias.push_back(scale());
    problem.channel_sums.push_back(
        static_cast<int32_t>(special ? static_cast<int64_t>(random.next()) : random.integer(-20000, 20000)));
  }
  return problem;
}

// The longest sum of the operator, of codes 255: close to the ends of int32.
inline Problem make_long_problem(Random& random, int8_t weight) {
  Problem problem = make_problem(random);
  problem.channels = kBlockColumns - 1;
  problem.first = 0;
  problem.rows = 1;
  problem.cols = problem.image_row = problem.dst_row = problem.dst_stride = 21;
  problem.position_bytes = kQuad;
  problem.zero_points = Problem::kNoZeroPoints;
  problem.zp = problem.weight_zp = 0;
  problem.kernel_rows = 0;
  problem.quads = INT32_MAX / (255 * 128) / kQuad;
  problem.run = 1;
  problem.run_bytes = problem.cols * kQuad;
  const auto count = static_cast<size_t>(problem.quads * kQuad), channels = static_cast<size_t>(problem.channels);
  problem.offsets.assign(count / kQuad, 0);
  problem.image.assign(static_cast<size_t>((21 + kConvSlack) * kQuad), 255);
  problem.weights.assign(count * kBlockColumns, weight);
  problem.ones.assign(count, 1);
  problem.channel_scales.assign(channels, 0.5f);
  problem.bias.assign(channels, 0.25f);
  problem.channel_sums.assign(channels, 0);
  return problem;
}

enum Form { kDirect, kTiles, kGatheredTiles, kStrassen };

// The form of conv by Strassen's algorithm, as quantized_conv.cc runs it: positions that do not fill a strip take the
// direct form.
inline void run_strassen(const dynq::ConvBlock& block, const dynq::ProductKernels& kernels) {
  static Arena arena;
  const int64_t depth = block.input.quads * kQuad;
  const auto size = static_cast<size_t>(dynq::strassen_codes_size(block.channels, depth));
  int16_t* operands = arena.place(std::vector<int16_t>(size), true, 0);
  for (int64_t row = 0; row < dynq::strassen_half_rows(block.channels); ++row)
    kernels.strassen->form_channel(block.weights.packed, block.weights.stride, block.channels, depth, row, operands);
  dynq::ConvBlock strip = block;
  strip.cols = dynq::kStrassenColumns;
  kernels.strassen->conv(strip, operands);
  for (int64_t channel = 0; channel < block.channels && block.cols > strip.cols; channel += kBlockColumns) {
    dynq::ConvBlock rest = block;
    rest.channels = std::min(kBlockColumns, block.channels - channel);
    rest.cols -= strip.cols;
    rest.input.image += strip.cols * kQuad;
    if (rest.scratch.code_sums != nullptr) rest.scratch.code_sums += strip.cols;
    rest.weights.packed += channel / kBlockColumns * block.weights.stride;
    if (rest.weights.zps != nullptr) rest.weights.zps += channel;
    rest.scaling.channel_scales += channel, rest.scaling.channel_sums += channel, rest.scaling.bias += channel;
    rest.output.dst += channel * block.output.channel_stride + strip.cols;
    kernels.conv(rest);
  }
}

inline bool can_take_strassen(const Problem& problem) {
  return problem.channels > 0 && problem.first == 0 && problem.rows == 1 && problem.cols >= dynq::kStrassenColumns &&
         problem.quads > 0 && problem.position_bytes == kQuad;
}

inline void check(const std::string& name, const Problem& problem, const dynq::ProductKernels& kernels, Form form,
                  Random& random) {
  static Arena arenas[12];
  const bool at_end = !random.one_in(3);
  // Maybe at an address that is no multiple of the size of an element.
  const auto place = [&](Arena& arena, const auto& values) {
    return arena.place(values, at_end, random.one_in(2) ? 0 : static_cast<size_t>(random.integer(0, 3)));
  };
  constexpr float kUntouched = 12345.0f;
  const int64_t floats =
      problem.channels == 0 || problem.positions() == 0
          ? 0
          : (problem.channels - 1) * problem.dst_stride + (problem.rows - 1) * problem.dst_row + problem.cols;
  dynq::ConvBlock block = {};
  block.channels = problem.channels;
  block.rows = problem.rows;
  block.cols = problem.cols;
  block.input.row_stride = problem.image_row;
  block.output.row_stride = problem.dst_row;
  block.input.position_bytes = problem.position_bytes;
  block.input.kernel_rows = problem.kernel_rows;
  block.input.image = place(arenas[0], problem.image);
  block.input.offsets = arenas[1].place(problem.offsets, at_end, 0);
  block.input.quads = problem.quads;
  block.weights.packed = place(arenas[2], problem.weights) + problem.first * kQuad;
  block.weights.stride = problem.weights_stride();
  block.output.dst = place(arenas[3], std::vector<float>(static_cast<size_t>(floats), kUntouched));
  block.output.channel_stride = problem.dst_stride;
  block.scaling.scale = problem.scale;
  block.scaling.zp = problem.zp;
  if (problem.zero_points == Problem::kZeroPointPerChannel) block.weights.zps = place(arenas[4], problem.weight_zps);
  block.weights.zp = problem.weight_zp;
  block.scaling.channel_scales = place(arenas[6], problem.channel_scales);
  block.scaling.channel_sums = place(arenas[7], problem.channel_sums);
  block.scaling.bias = place(arenas[8], problem.bias);
  block.scaling.order = problem.order;
  block.scaling.lowest = problem.lowest;
  block.scaling.highest = problem.highest;
  if (problem.zero_points != Problem::kNoZeroPoints) {
    block.weights.ones = place(arenas[5], problem.ones);
    block.scratch.code_sums =
        arenas[9].place(std::vector<int32_t>(static_cast<size_t>(problem.positions() + kConvSlack)), at_end, 0);
    kernels.sum_conv_codes(block);
    for (int64_t i = 0; i < problem.positions(); ++i)
      if (const int64_t right = problem.sum(i, problem.ones.data(), kQuad); block.scratch.code_sums[i] != right)
        fail(name + " sum_conv_codes, " + problem.text() + ": element " + std::to_string(i) + " is " +
             std::to_string(block.scratch.code_sums[i]) + ", expected " + std::to_string(right));
  }
  const std::vector<uint8_t> wide_weights(static_cast<size_t>(problem.quads * kernels.conv_quad_bytes));
  block.scratch.weights = arenas[11].place(wide_weights, at_end, 0);
  const bool in_tiles = form == kTiles || form == kGatheredTiles;
  if (in_tiles) {
    block.input.gathers = form == kGatheredTiles;
    block.input.run = form == kTiles ? problem.run : problem.quads;
    block.input.run_bytes = form == kTiles ? problem.run_bytes : problem.positions() * kQuad;
    const auto bytes = static_cast<size_t>(dynq::conv_tiles_bytes(block.input.run, block.input.run_bytes));
    block.scratch.tiles = arenas[10].place(std::vector<uint8_t>(bytes), at_end, 0);
    if (problem.positions() > 0) kernels.pack_conv_tiles(block);
  }
  if (form == kStrassen)
    run_strassen(block, kernels);
  else
    (in_tiles ? kernels.conv_tiles : kernels.conv)(block);
  for (int64_t i = 0; i < floats; ++i) {
    const int64_t channel = i / problem.dst_stride, row = i % problem.dst_stride / problem.dst_row;
    const int64_t col = i % problem.dst_stride % problem.dst_row;
    const float actual = dynq::load(block.output.dst + i);
    const float right = row < problem.rows && col < problem.cols
                            ? problem.expected(channel, row * problem.image_row + col)
                            : kUntouched;
    if (bits_of(actual) != bits_of(right))
      fail(name + " conv, " + problem.text() + ": element [" + std::to_string(channel) + ", " + std::to_string(row) +
           ", " + std::to_string(col) + "] is " + std::to_string(actual) + ", expected " + std::to_string(right));
  }
}

inline void check_interleave(const std::string& name, dynq::InterleaveKernel kernel, Random& random) {
  static Arena arenas[kQuad + 1];
  const int64_t count = random.integer(0, 100);
  const auto size = static_cast<size_t>(count);
  const auto flip = static_cast<uint8_t>(random.one_in(2) ? 0x80 * random.integer(0, 1) : random.next());
  const auto offset = [&] { return random.one_in(2) ? 0 : static_cast<size_t>(random.integer(0, 3)); };
  std::vector<uint8_t> values[kQuad];
  const uint8_t* rows[kQuad];
  for (int j = 0; j < kQuad; ++j) {
    for (size_t i = 0; i < size; ++i) values[j].push_back(static_cast<uint8_t>(random.next()));
    rows[j] = arenas[j].place(values[j], !random.one_in(3), offset());
  }
  constexpr size_t kAround = 64;  // bytes around the result, which stay as they are
  constexpr uint8_t kUntouched = 0xa5;
  const bool at_end = random.one_in(2);
  uint8_t* all = arenas[kQuad].place(std::vector<uint8_t>(size * kQuad + kAround, kUntouched), at_end, offset());
  uint8_t* to = all + (at_end ? kAround : 0);
  kernel(rows, count, flip, to);
  for (size_t i = 0; i < size * kQuad + kAround; ++i) {
    const size_t at = i - (at_end ? kAround : 0);  // wraps before the result
    const uint8_t right = at < size * kQuad ? static_cast<uint8_t>(values[at % kQuad][at / kQuad] ^ flip) : kUntouched;
    if (all[i] != right)
      fail(name + ", " + std::to_string(count) + " codes, flip " + std::to_string(flip) + ": byte " +
           std::to_string(static_cast<int64_t>(at)) + " is " + std::to_string(all[i]) + ", expected " +
           std::to_string(right));
  }
}

}  // namespace conv_check
