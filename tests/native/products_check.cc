// Compares every product kernel that this machine can run with loops over the definition in portable_products.cc, bit
// for bit, and prints how many blocks each of them computed. Kernels that the CPU lacks run with functions in place of
// their instructions, as far as the build has them (tests/packaging/test_product_kernels.py builds it).
//
//   products_check BLOCKS     the number of random blocks
//
// conv_check.h checks convolutions. Arrays end directly before a protected page or begin directly after one; columns
// and results may be unaligned.
//
// More than 450 lines: all kernels of products are checked on the same random blocks.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "check.h"
#include "conv_check.h"
#include "kernels/dispatch.h"
#include "kernels/numbers.h"
#include "random.h"
#include "tile_stand_in.h"
#include "winograd_check.h"
#ifdef ORT_DYNQ_AMX_EMULATED
#include "tile_emulator.h"
#endif

namespace dynq {

extern const ProductKernels kAmxProducts, kAmxStandIn;

#ifdef ORT_DYNQ_X86
// dispatch.cc names these; the files of products do not have them.
extern const ElementwiseKernels kAvx2Kernels, kAvx512Kernels;
extern const CompressedKernels kAvx2Compressed, kAvxVnniCompressed, kAvx512Compressed, kAvx512VnniCompressed;
const ElementwiseKernels kAvx2Kernels = {}, kAvx512Kernels = {};
const CompressedKernels kAvx2Compressed = {}, kAvxVnniCompressed = {}, kAvx512Compressed = {},
                        kAvx512VnniCompressed = {};
#endif

}  // namespace dynq

namespace {

using dynq::kBlockColumns;
using dynq::kQuad;
using dynq::kTileBytes;
using dynq::kTileRows;
using dynq::ProductBlock;

int64_t round_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

constexpr int64_t kRows[] = {0, 1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 32, 33, 48, 65};
constexpr int64_t kColumns[] = {0, 1, 7, 8, 15, 16, 17, 31, 32, 33, 48, 49, 64, 65, 80, 100};
constexpr int64_t kDepths[] = {0, 1, 3, 4, 5, 8, 12, 16, 31, 60, 63, 64, 65, 68, 96, 127, 128, 130, 192, 200};
constexpr int64_t kManyRows[] = {24, 25, 61, 64, 65, 97, 191, 192},
                  kLongDepths[] = {509, 512, 765, 768, 772, 1029, 1540};
constexpr int64_t kGroupSizes[] = {16, 32, 48, 64, 128};
constexpr int64_t kLongGroupSizes[] = {208, 256, 400, 512, 528};
constexpr int64_t kLongDepths4[] = {512, 520, 1032, 4096, 4104};
constexpr int64_t kFloatBounds[] = {1 << 22, 1 << 15};  // sums of columns: kernels may compute with floats below one
constexpr int64_t kMaxSumLength = INT32_MAX / (255 * 128);  // quantized_matmul.cc

// A product. Arrays have the layouts of products.h, except for codes and weights, which are matrices.
struct Problem {
  int bits = 8;
  int64_t rows = 0, cols = 0, depth = 0, groups = 1, row_groups = 1, column_groups = 1;
  int64_t columns = 0, first = 0;  // the block has columns `first` to `first` + cols
  dynq::ScaleOrder order = dynq::kScalesFirst;
  bool zps_vary = false, special = false;
  bool has_exact_sums = true;  // column_sums are the sums of the weights
  bool joins = false;          // each two rows are terms
  int32_t weight_zp = 0;
  std::vector<uint8_t> codes;   // [rows][depth]
  std::vector<int8_t> weights;  // [depth][columns]
  std::vector<int8_t> weight_zps;
  std::vector<float> scales, column_scales, bias;
  std::vector<int32_t> zps, column_sums;

  bool needs_row_sums() const { return bits == 8 && (zps_vary || weight_zp != 0); }
  int64_t size() const { return depth / groups; }
  int32_t zp_of(int64_t group, int64_t column) const {
    return zps_vary ? weight_zps[static_cast<size_t>(group * columns + column)] : weight_zp;
  }
  std::string text() const {
    return std::to_string(rows) + "x" + std::to_string(depth) + "x" + std::to_string(cols) + " of " +
           std::to_string(columns) + " columns from " + std::to_string(first) + ", " + std::to_string(bits) +
           " bits, " + std::to_string(groups) + " groups, order " + std::to_string(order) + (joins ? ", joined" : "");
  }

  void fill(Random& random) {
    const bool extreme = random.one_in(3);  // sums of pairs beyond 16 bits
    const bool large_sums = random.one_in(8);
    const int64_t bound = random.of(kFloatBounds);
    const int8_t low = bits == 8 ? -128 : 0, high = static_cast<int8_t>(bits == 8 ? 127 : (1 << bits) - 1);
    const auto weight = [&] { return static_cast<int8_t>(random.integer(low, high)); };
    const auto scale = [&] { return special && random.one_in(4) ? random.of(kSpecials) : random.of(kScales); };
    const auto fill_one = [](auto& values, int64_t count, auto make) {
      for (int64_t i = 0; i < count; ++i) values.push_back(make());
    };
    fill_one(codes, rows * depth,
             [&] { return static_cast<uint8_t>(extreme ? 255 * random.integer(0, 1) : random.next()); });
    fill_one(weights, depth * columns, [&] { return extreme ? (random.one_in(3) ? high : low) : weight(); });
    const auto weight_zp_of_few = [&] { return static_cast<int8_t>(random.integer(0, 15)); };
    if (zps_vary && bits == 8) fill_one(weight_zps, groups * columns, weight);
    if (zps_vary && bits < 8) fill_one(weight_zps, groups * columns, weight_zp_of_few);
    fill_one(scales, rows * row_groups, scale);
    fill_one(zps, rows * row_groups, [&] { return static_cast<int32_t>(random.integer(0, 255)); });
    if (!zps.empty() && random.one_in(3)) std::fill(zps.begin(), zps.end(), zps[0]);
    fill_one(column_scales, column_groups * columns, scale);
    fill_one(bias, columns, scale);
    for (int64_t group = 0; group < groups; ++group)
      for (int64_t column = 0; column < columns; ++column) {
        int64_t sum = 0;
        for (int64_t k = group * size(); k < (group + 1) * size(); ++k)
          sum += weights[static_cast<size_t>(k * columns + column)] - zp_of(group, column);
        has_exact_sums = !large_sums && !special;
        if (large_sums) sum = random.integer(-bound, bound - 1 + (random.one_in(99) ? 1 : 0));
        column_sums.push_back(
            static_cast<int32_t>(special && random.one_in(4) ? random.next() : static_cast<uint64_t>(sum)));
      }
  }

  // The same with a last row of ones in place of column_sums, and with float16 scales of columns.
  Problem with_ones() const {
    Problem result = *this;
    ++result.rows;
    result.codes.insert(result.codes.end(), static_cast<size_t>(depth), 1);
    result.scales.insert(result.scales.end(), static_cast<size_t>(row_groups), 0.0f);
    result.zps.insert(result.zps.end(), static_cast<size_t>(row_groups), 0);
    result.results.clear();
    for (float& scale : result.column_scales) {
      result.halves.push_back(dynq::narrow_f16(scale));
      scale = dynq::widen_f16(result.halves.back());
    }
    return result;
  }
  bool has_ones() const { return !halves.empty(); }
  std::vector<uint16_t> halves;

  // All kernels are compared with the same results.
  mutable std::map<int64_t, float> results;
  float expected(int64_t row, int64_t column) const {
    const auto [found, is_new] = results.try_emplace(row * columns + column);
    if (is_new) found->second = compute(row, column);
    return found->second;
  }

  // The exact sum of a row and a group, as int32 wraps.
  int32_t exact_sum(int64_t row, int64_t group, int64_t column) const {
    int64_t exact = 0;
    for (int64_t k = group * size(); k < (group + 1) * size(); ++k)
      exact += codes[static_cast<size_t>(row * depth + k)] *
               (weights[static_cast<size_t>(k * columns + column)] - zp_of(group, column));
    exact -= int64_t{zps[static_cast<size_t>(row * row_groups + (row_groups > 1 ? group : 0))]} *
             column_sums[static_cast<size_t>(group * columns + column)];
    return static_cast<int32_t>(static_cast<uint32_t>(exact));
  }

  float compute(int64_t row, int64_t column) const {
    const float* row_scales = &scales[static_cast<size_t>(row * row_groups)];
    const bool in_groups = row_groups > 1 || column_groups > 1;
    float sum = -0.0f;
    for (int64_t group = 0; group < groups; ++group) {
      const auto at = static_cast<size_t>(group * columns + column);
      int64_t exact = exact_sum(row, group, column);
      if (joins) exact = 254 * exact + exact_sum(row + 1, group, column);
      float term = static_cast<float>(static_cast<int32_t>(static_cast<uint32_t>(exact)));
      if (in_groups) term = term * column_scales[column_groups > 1 ? at : static_cast<size_t>(column)];
      if (row_groups > 1) term = term * row_scales[group];
      sum = sum + term;
    }
    const float column_scale = column_scales[static_cast<size_t>(column)];
    if (!in_groups && order == dynq::kScalesFirst) {
      sum = sum * (row_scales[0] * column_scale);
    } else if (!in_groups && order == dynq::kRowFirst) {
      sum = sum * row_scales[0] * column_scale;
    } else {
      if (!in_groups) sum = sum * column_scale;
      if (row_groups == 1) sum = sum * row_scales[0];
    }
    return sum + bias[static_cast<size_t>(column)];
  }
};

Problem make_problem(Random& random) {
  Problem problem;
  problem.bits = random.one_in(3) ? 4 : random.one_in(4) ? 2 : 8;
  problem.rows = problem.bits == 2 ? random.integer(1, dynq::kMax2BitRows + 1) : random.of(kRows);
  problem.cols = random.of(kColumns);
  problem.first = random.one_in(4) ? kBlockColumns * random.integer(1, 2) : 0;
  problem.columns = problem.first + problem.cols;
  if (random.one_in(4)) problem.columns = round_up(problem.columns, kBlockColumns) + random.integer(0, 20);
  problem.depth = random.of(kDepths);
  problem.order = static_cast<dynq::ScaleOrder>(random.integer(0, 2));
  if (random.one_in(2)) {
    problem.groups = random.one_in(20) ? random.integer(16, 33) : random.integer(2, 4);
    // Kernels that take a part of the groups, or of k, at once take several parts.
    const bool is_long = problem.groups <= 4 && random.one_in(30);
    problem.depth = problem.groups * (is_long ? random.of(kLongGroupSizes) : random.of(kGroupSizes));
    problem.row_groups = random.one_in(2) ? problem.groups : 1;
    problem.column_groups = random.one_in(3) ? 1 : problem.groups;
    problem.order = dynq::kColumnFirst;
  }
  if (random.one_in(40)) {  // kernels that widen parts of the rows, columns and k take several parts
    problem.bits = random.one_in(3) ? 4 : 8;
    problem.rows = random.of(kManyRows);
    problem.depth = problem.bits == 4 ? random.of(kLongDepths4) : random.of(kLongDepths);
    problem.groups = problem.row_groups = problem.column_groups = 1;
  }
  problem.zps_vary = random.one_in(3);
  if (problem.bits < 8) problem.weight_zp = random.one_in(2) ? 8 : static_cast<int32_t>(random.integer(0, 15));
  if (problem.bits == 8 && random.one_in(3)) problem.weight_zp = static_cast<int32_t>(random.integer(-128, 127));
  problem.special = random.one_in(3);
  problem.joins = problem.size() <= dynq::kMaxJoinedLength && problem.rows % 2 == 0 && problem.rows > 0 &&
                  random.one_in(problem.groups > 1 ? 3 : 9);
  problem.fill(random);
  return problem;
}

// The longest sum of the operator, close to the ends of int32.
Problem make_long_problem(Random& random, int64_t rows, uint8_t code, int8_t weight) {
  Problem problem;
  problem.rows = rows;
  problem.cols = problem.columns = 17;
  problem.depth = kMaxSumLength;
  problem.fill(random);
  for (uint8_t& value : problem.codes) value = code;
  for (int8_t& value : problem.weights) value = weight;
  for (int32_t& value : problem.zps) value = 0;
  problem.has_exact_sums = false;
  return problem;
}

// 4-bit weights: their products with the highest codes are as far from 0 as they can be.
Problem make_highest_problem(Random& random, int64_t depth, int8_t weight, int32_t weight_zp) {
  Problem problem;
  problem.bits = 4;
  problem.rows = 17;
  problem.cols = problem.columns = 33;
  problem.depth = depth;
  problem.groups = problem.column_groups = 2;
  problem.order = dynq::kColumnFirst;
  problem.weight_zp = weight_zp;
  problem.fill(random);
  for (uint8_t& value : problem.codes) value = 255;
  for (int8_t& value : problem.weights) value = weight;
  for (int32_t& value : problem.zps) value = 255;
  problem.has_exact_sums = false;
  return problem;
}

// As many groups as kernels of few rows have memory for, or one more.
Problem make_problem_of_groups(Random& random, int64_t groups, int64_t rows, bool zps_vary) {
  for (;;) {
    Problem problem;
    problem.bits = 4;
    problem.rows = rows;
    problem.cols = problem.columns = 4 * kBlockColumns;
    problem.depth = 16 * groups;
    problem.groups = problem.row_groups = problem.column_groups = groups;
    problem.order = dynq::kColumnFirst;
    problem.zps_vary = zps_vary;
    problem.weight_zp = 7;
    problem.fill(random);
    if (problem.has_exact_sums) return problem;
  }
}

std::vector<uint8_t> rows_of_codes(const Problem& problem, int64_t depth, int64_t stride) {
  // The last row ends with its codes.
  std::vector<uint8_t> packed(static_cast<size_t>(problem.rows == 0 ? 0 : (problem.rows - 1) * stride + depth), 0);
  for (int64_t row = 0; row < problem.rows; ++row)
    for (int64_t k = 0; k < stride && (row + 1 < problem.rows || k < depth); ++k)
      packed[static_cast<size_t>(row * stride + k)] = k < problem.depth
                                                          ? problem.codes[static_cast<size_t>(row * problem.depth + k)]
                                                      : k < depth ? 0
                                                                  : 99;
  return packed;
}

std::vector<uint8_t> tiles_of_codes(const Problem& problem) {
  const int64_t depth = round_up(problem.depth, kTileBytes), rows = round_up(problem.rows, kTileRows);
  std::vector<uint8_t> packed(static_cast<size_t>(rows * depth), 0);
  for (int64_t row = 0; row < problem.rows; ++row)
    for (int64_t k = 0; k < problem.depth; ++k)
      packed[static_cast<size_t>(
          ((row / kTileRows * (depth / kTileBytes) + k / kTileBytes) * kTileRows + row % kTileRows) * kTileBytes +
          k % kTileBytes)] = problem.codes[static_cast<size_t>(row * problem.depth + k)];
  return packed;
}

std::vector<int8_t> packed_weights(const Problem& problem, int64_t depth) {
  const int64_t columns = round_up(problem.columns, kBlockColumns), bytes = depth * problem.bits / 8;
  std::vector<int8_t> packed(static_cast<size_t>(columns * bytes), 0);
  for (int64_t column = 0; column < problem.columns; ++column)
    for (int64_t k = 0; k < problem.depth; ++k) {
      const int weight = problem.weights[static_cast<size_t>(k * problem.columns + column)];
      constexpr int kShifts[] = {0, 4, 2, 6};
      const int64_t quads = 8 / problem.bits, quad = k / kQuad, unit = quad / quads;
      const int factor = 1 << kShifts[quad % quads];
      const int64_t at = column / kBlockColumns * kBlockColumns * bytes +
                         (unit * kBlockColumns + column % kBlockColumns) * kQuad + k % kQuad;
      packed[static_cast<size_t>(at)] = static_cast<int8_t>(packed[static_cast<size_t>(at)] | weight * factor);
    }
  return packed;
}

std::vector<int32_t> row_sums(const Problem& problem) {
  std::vector<int32_t> sums(static_cast<size_t>(problem.rows * problem.groups), 0);
  for (int64_t row = 0; row < problem.rows; ++row)
    for (int64_t k = 0; k < problem.depth; ++k)
      sums[static_cast<size_t>(row * problem.groups + k / problem.size())] +=
          problem.codes[static_cast<size_t>(row * problem.depth + k)];
  return sums;
}

// Who makes the sums of the columns.
enum ColumnSums { kGiven, kByKernel };

void check(const std::string& name, const Problem& problem, dynq::ProductKernel kernel, bool in_tiles, Random& random,
           ColumnSums column_sums = kGiven) {
  static Arena arenas[11];
  const int64_t rows = problem.rows - problem.has_ones();
  const bool at_end = !random.one_in(3), stream = random.one_in(2), aligned = random.one_in(2);
  const auto offset = [&] { return aligned ? size_t{0} : static_cast<size_t>(random.integer(0, 3)); };
  ProductBlock block = {};
  block.rows = problem.rows;
  block.cols = problem.cols;
  block.depth = round_up(problem.depth, kQuad * 8 / problem.bits);
  block.groups = problem.groups;
  block.codes.stride =
      in_tiles ? kTileRows * round_up(problem.depth, kTileBytes) : block.depth + random.integer(0, 2) * 4;
  block.codes.data = arenas[0].place(
      in_tiles ? tiles_of_codes(problem) : rows_of_codes(problem, block.depth, block.codes.stride), at_end, offset());
  block.weights.stride = block.depth * kBlockColumns * problem.bits / 8;
  block.weights.packed = arenas[1].place(packed_weights(problem, block.depth), at_end, offset()) +
                         problem.first / kBlockColumns * block.weights.stride;
  block.output.stream = stream;
  block.output.stride = problem.cols + random.integer(0, 3);
  if (aligned) block.output.stride = round_up(problem.cols, kBlockColumns);
  const float untouched = 12345.0f;
  block.output.dst =
      arenas[2].place(std::vector<float>(static_cast<size_t>(rows * block.output.stride), untouched), at_end, offset());
  block.codes.scales = arenas[3].place(problem.scales, at_end, 0);
  block.codes.zps = arenas[4].place(problem.zps, at_end, 0);
  block.codes.scale_groups = problem.row_groups;
  const bool may_have_row_sums = problem.bits == 4 && !in_tiles && random.one_in(2);
  if (problem.needs_row_sums() || problem.has_ones() || may_have_row_sums || column_sums == kByKernel)
    block.codes.sums = arenas[5].place(row_sums(problem), at_end, 0);
  if (problem.zps_vary) block.weights.zps = arenas[6].place(problem.weight_zps, at_end, offset()) + problem.first;
  block.weights.zp = problem.zps_vary ? 0 : problem.weight_zp;
  block.columns.scale_groups = problem.column_groups;
  const auto place_columns = [&](Arena& arena, const auto& values) {  // maybe at an address that is no multiple of 4
    auto* at = reinterpret_cast<const uint8_t*>(arena.place(values, at_end, offset()));
    return reinterpret_cast<decltype(values.data())>(at) + problem.first;
  };
  block.codes.has_ones = problem.has_ones();
  const std::vector<int32_t>& zps = problem.zps;
  block.codes.has_one_zp =
      !problem.has_ones() && std::all_of(zps.begin(), zps.end(), [&](int32_t zp) { return zp == zps[0]; });
  if (problem.has_ones()) {
    block.columns.halves = place_columns(arenas[10], problem.halves);
  } else {
    block.columns.scales = place_columns(arenas[7], problem.column_scales);
    block.columns.sums = place_columns(arenas[8], problem.column_sums);
  }
  block.columns.bias = place_columns(arenas[9], problem.bias);
  block.weights.zps_stride = block.columns.scales_stride = block.columns.sums_stride = problem.columns;
  block.order = problem.order;
  block.joins_terms = problem.joins;
  if (!problem.has_ones() && (!problem.joins || problem.has_exact_sums)) {
    ProductBlock all = block;
    all.columns.sums -= problem.first;
    block.is_bounded = problem.groups > 1 && !random.one_in(3) && dynq::has_bounded_groups(all, problem.bits);
  }
  if (column_sums == kByKernel) block.columns.sums = nullptr;
  kernel(block);
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t i = 0; i < block.output.stride; ++i) {
      if (problem.joins && row % 2 != 0 && i < problem.cols) continue;  // it may be anything
      const float actual = dynq::load(block.output.dst + row * block.output.stride + i);
      const float right = i < problem.cols ? problem.expected(row, problem.first + i) : untouched;
      if (bits_of(actual) != bits_of(right))
        fail(name + ", " + problem.text() + ": element [" + std::to_string(row) + ", " + std::to_string(i) + "] is " +
             std::to_string(actual) + ", expected " + std::to_string(right));
    }
}

// The form of gemm_qc8w by Strassen's algorithm, as quantized_matmul.cc runs it: columns that do not fill a strip take
// the direct form.
void run_strassen(const ProductBlock& block) {
  static Arena arena;
  const dynq::ProductKernels& kernels = *dynq::active_isa().products;
  const auto size = static_cast<size_t>(dynq::strassen_codes_size(block.rows, block.depth));
  int16_t* operands = arena.place(std::vector<int16_t>(size), true, 0);
  for (int64_t row = 0; row < dynq::strassen_half_rows(block.rows); ++row)
    kernels.strassen->form_codes(block.codes.data, block.codes.stride, block.rows, block.depth, row, operands);
  ProductBlock strip = block;
  strip.cols = dynq::kStrassenColumns;
  strip.codes.data = reinterpret_cast<const uint8_t*>(operands);
  kernels.strassen->gemm_qc8w(strip);
  ProductBlock rest = block;
  rest.cols -= strip.cols;
  rest.weights.packed += strip.cols / kBlockColumns * block.weights.stride;
  if (rest.weights.zps != nullptr) rest.weights.zps += strip.cols;
  rest.columns.scales += strip.cols, rest.columns.sums += strip.cols, rest.columns.bias += strip.cols;
  rest.output.dst += strip.cols;
  if (rest.cols > 0) kernels.gemm_qc8w(rest);
}

// The sums of the columns, from a row of ones.
void check_sums(const std::string& name, const Problem& problem, dynq::ColumnSumKernel kernel, Random& random) {
  static Arena arenas[5];
  const bool at_end = !random.one_in(3);
  ProductBlock block = {};
  block.rows = 1;
  block.cols = problem.cols;
  block.depth = round_up(problem.depth, kQuad * 8 / problem.bits);
  block.groups = problem.groups;
  std::vector<uint8_t> ones(static_cast<size_t>(block.depth), 0);
  std::fill(ones.begin(), ones.begin() + static_cast<std::ptrdiff_t>(problem.depth), uint8_t{1});
  block.codes.data = arenas[0].place(ones, at_end, 0);
  const std::vector<int32_t> of_ones(static_cast<size_t>(problem.groups), static_cast<int32_t>(problem.size()));
  block.codes.sums = arenas[1].place(of_ones, at_end, 0);
  block.weights.stride = block.depth * kBlockColumns * problem.bits / 8;
  block.weights.packed = arenas[2].place(packed_weights(problem, block.depth), at_end, 0) +
                         problem.first / kBlockColumns * block.weights.stride;
  if (problem.zps_vary) block.weights.zps = arenas[3].place(problem.weight_zps, at_end, 0) + problem.first;
  block.weights.zps_stride = problem.columns;
  block.weights.zp = problem.zps_vary ? 0 : problem.weight_zp;
  int32_t* sums =
      arenas[4].place(std::vector<int32_t>(static_cast<size_t>(problem.groups * problem.cols), 12345), at_end, 0);
  kernel(block, sums);
  for (int64_t group = 0; group < problem.groups; ++group)
    for (int64_t i = 0; i < problem.cols; ++i)
      if (sums[group * problem.cols + i] !=
          problem.column_sums[static_cast<size_t>(group * problem.columns + problem.first + i)])
        fail(name + ", " + problem.text() + ": the sum of column " + std::to_string(i) + " is wrong");
}

struct Counter {
  std::map<std::string, int> blocks;

  // 2-bit weights: the portable kernel takes all blocks, and has the definition's results for the others.
  void check_2bit(const std::string& name, const dynq::ProductKernels& kernels, const Problem& problem,
                  Random& random) {
    if (&kernels == &dynq::kPortableProducts) check(name + " gemm_qb2w", problem, kernels.gemm_qb2w, false, random);
    if (!problem.has_exact_sums || problem.groups == 1 || problem.rows == 0 || problem.rows > dynq::kMax2BitRows ||
        problem.size() > dynq::kMax2BitGroup || (problem.row_groups == 1 && problem.column_groups == 1))
      return;
    check(name + " gemm_qb2w", problem.with_ones(), kernels.gemm_qb2w, false, random);
    ++blocks[name + " gemm_qb2w with ones"];
  }

  void check_all(const std::string& name, const dynq::ProductKernels& kernels, const Problem& problem, Random& random) {
    if (problem.bits == 2) return check_2bit(name, kernels, problem, random);
    const auto run = [&](const std::string& kind, dynq::ProductKernel kernel, bool in_tiles) {
      check(name + " " + kind, problem, kernel, in_tiles, random);
      ++blocks[name + " " + kind];
    };
    const std::string terms = problem.joins ? ", joined" : "";
    const std::string kind = (problem.bits == 4 ? "gemm_qb4w" : "gemm_qb8w") + terms;
    const dynq::ProductKernel in_groups = problem.bits == 4 ? kernels.gemm_qb4w : kernels.gemm_qb8w;
    if (problem.bits == 4 || problem.groups > 1 || problem.joins) run(kind, in_groups, false);
    if (problem.has_exact_sums) {
      const dynq::ColumnSumKernel sum = problem.bits == 4 ? kernels.sum_columns_4bit : kernels.sum_columns_8bit;
      check_sums(name + " sum_columns", problem, sum, random);
      ++blocks[name + " sum_columns"];
      if (kernels.makes_sums_4bit && !problem.joins && problem.bits == 4 && problem.depth > 0 &&
          problem.depth % (2 * kQuad) == 0 && problem.depth <= problem.groups * dynq::kMaxSummedGroup) {
        check(name + " gemm_qb4w without sums", problem, kernels.gemm_qb4w, false, random, kByKernel);
        ++blocks[name + " gemm_qb4w without sums"];
      }
      if (problem.rows <= dynq::kMaxSummedRows && (problem.row_groups > 1 || problem.column_groups > 1)) {
        check(name + " " + kind + " with ones", problem.with_ones(), in_groups, false, random);
        ++blocks[name + " " + kind + " with ones"];
      }
    }
    const bool is_one_sum = problem.groups == 1 && !problem.joins;
    if (problem.bits == 8 && is_one_sum) run("gemm_qc8w", kernels.gemm_qc8w, false);
    if (kernels.strassen != nullptr && problem.bits == 8 && is_one_sum && problem.rows > 0 &&
        problem.rows <= dynq::kStrassenRows && problem.depth > 0 && problem.cols >= dynq::kStrassenColumns)
      run("strassen", run_strassen, false);
    if (problem.rows < kTileRows || kernels.gemm_qc8w_tiles == nullptr) return;
    if (problem.bits == 8 && is_one_sum) run("gemm_qc8w_tiles", kernels.gemm_qc8w_tiles, true);
    if (problem.groups == 1 || problem.size() > dynq::kMaxTileGroup) return;
    if (problem.bits == 8) run("gemm_qb8w_tiles" + terms, kernels.gemm_qb8w_tiles, true);
    if (problem.bits == 4) run("gemm_qb4w_tiles" + terms, kernels.gemm_qb4w_tiles, true);
  }

  void check_conv(const std::string& name, const dynq::ProductKernels& kernels, const conv_check::Problem& problem,
                  Random& random) {
    const auto run = [&](const char* kind, conv_check::Form form) {
      conv_check::check(name + " " + kind, problem, kernels, form, random);
      ++blocks[name + " " + kind];
    };
    if (problem.channels <= kBlockColumns) run("conv", conv_check::kDirect);
    const bool has_tiles = kernels.conv_tiles != nullptr;
    if (problem.run > 0 && has_tiles) run("conv_tiles", conv_check::kTiles);
    if (problem.position_bytes == kQuad && problem.quads > 0 && problem.first == 0 && has_tiles)
      run("conv_tiles, gathered", conv_check::kGatheredTiles);
    if (kernels.strassen != nullptr && conv_check::can_take_strassen(problem))
      run("conv_strassen", conv_check::kStrassen);
    conv_check::check_interleave(name + " interleave_quads", kernels.interleave_quads, random);
    ++blocks[name + " interleave_quads"];
    if (kernels.winograd == nullptr) return;
    if (random.one_in(4)) winograd_check::check(name, winograd_check::make_problem(random), *kernels.winograd, random);
    winograd_check::check_interleave(name, kernels.winograd->interleave, random);
    ++blocks[name + " winograd"];
  }

  // amx.cc with functions for its instructions. It must leave the configuration of the tiles as it was.
  void check_amx(const char* name, const dynq::ProductKernels& kernels, const Problem& problem,
                 const conv_check::Problem& conv, Random& random) {
    tile_stand_in::Configuration before = {};
    if (random.one_in(2)) {
      before.palette = 1;
      for (int tile = 0; tile < 8; ++tile) before.rows[tile] = 5, before.row_bytes[tile] = 12;
    }
    tile_stand_in::load_configuration(&before);
    const bool once = random.one_in(2);  // a caller configures the tiles for all kernels
    dynq::TileState state;
    if (once) kernels.begin_tiles(state, random.of<int64_t>({16, 32, 64}));
    check_all(name, kernels, problem, random);
    check_conv(name, kernels, conv, random);
    if (once) kernels.end_tiles(state);
    if (std::memcmp(&before, &tile_stand_in::unit.configuration, sizeof before) != 0)
      fail("amx.cc does not restore the configuration of the tiles");
  }

  void check_everywhere(const Problem& problem, const conv_check::Problem& conv, Random& random) {
    for (size_t i = 0; const char* name = dynq::supported_isa(i); ++i) {
      dynq::select_isa(name);
      check_all(name, *dynq::active_isa().products, problem, random);
      check_conv(name, *dynq::active_isa().products, conv, random);
    }
    check_amx("amx-stand-in", dynq::kAmxStandIn, problem, conv, random);
#ifdef ORT_DYNQ_AMX_EMULATED
    check_amx("amx-emulated", dynq::kAmxProducts, problem, conv, random);
#endif
  }
};

}  // namespace

int main(int count, char** arguments) {
  Random random{1};
  Counter counter;
#ifdef ORT_DYNQ_AMX_EMULATED
  tile_emulator::install();
#endif
  for (int left = count > 1 ? std::atoi(arguments[1]) : 1000; left > 0; --left)
    counter.check_everywhere(make_problem(random), conv_check::make_problem(random), random);
  for (const int8_t weight : {int8_t{-128}, int8_t{127}})
    for (const int64_t rows : {17, 27})
      counter.check_everywhere(make_long_problem(random, rows, 255, weight),
                               conv_check::make_long_problem(random, weight), random);
  for (const int64_t depth : {192, 1024})
    for (const int32_t weight_zp : {8, 0, 15})
      for (const int8_t weight : {int8_t{0}, int8_t{15}})
        counter.check_everywhere(make_highest_problem(random, depth, weight, weight_zp),
                                 conv_check::make_problem(random), random);
  for (const int64_t groups : {512, 513})
    for (const int64_t rows : {1, 2})
      counter.check_everywhere(make_problem_of_groups(random, groups, rows, rows == 1),
                               conv_check::make_problem(random), random);
  if (tile_stand_in::unit.products == 0) fail("the stand-in of AMX computed nothing");
  for (const auto& [name, blocks] : counter.blocks) std::printf("%s %d\n", name.c_str(), blocks);
}
