// Runs the kernels of each instruction set on fixed data, except for convolutions and tiles, and prints the instruction
// set, the kernel and a hash of its output. tests/packaging/test_portability.py and test_product_kernels.py compare the
// hashes, also between architectures. The data are mostly ties of rounding, their neighbors and extreme values of
// float32. Blocks have odd tails and gaps between rows; the hash includes the gaps.
//
// More than 450 lines: one function for each family of kernels.
#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/dispatch.h"
#include "random.h"
#include "steps.h"

namespace {

class Hash {
 public:
  void add(const void* data, size_t size) {  // FNV-1a
    for (size_t i = 0; i < size; ++i) value_ = (value_ ^ static_cast<const uint8_t*>(data)[i]) * 0x100000001b3u;
  }
  void add_floats(const float* values, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      const float value = std::isnan(values[i]) ? NAN : values[i];  // architectures differ in the bits of NaN
      uint32_t bits;
      std::memcpy(&bits, &value, sizeof bits);
      if (std::isnan(value)) bits = 0x7fc00000;
      add(&bits, sizeof bits);
    }
  }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0xcbf29ce484222325u;
};

constexpr float kInfinity = INFINITY;
constexpr float kSpecials[] = {
    NAN,           kInfinity,      -kInfinity, 0.0f,           -0.0f,          1e-45f,      -1e-45f,
    1e-40f,        -1e-40f,        3e38f,      1.1754944e-38f, -3.4028235e38f, 1e30f,       -1e30f,
    2147483648.0f, -2147483904.0f, 8388608.0f, -8388609.0f,    4194304.0f,     -4194304.5f, __builtin_nansf("")};
constexpr float kSpecialScales[] = {1e-40f, 1e-45f, 3e38f, 0.0f, -0.0f, kInfinity, -kInfinity, NAN, -0.1f};
constexpr float kScales[] = {1.0f,           0.1f,          0.0078125f, 0.0037f,   1.9999999f,
                             8.6736174e-19f, 1.1529215e18f, 4.0f,       1.7777778f};
constexpr int32_t kWideZeroPoints[] = {INT32_MIN, INT32_MIN + 1, INT32_MAX, INT32_MAX - 127,
                                       16385,     -16385,        1 << 24,   -(1 << 23) - 1};
constexpr float kFloatZeroPoints[] = {0.5f, -0.0f, NAN, kInfinity, 1e-40f, 8388609.0f, -70000.0f};
constexpr int64_t kColumns[] = {1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 129, 1025};

// kSpecial: scales and float zero points may be any values. kWide: zero points that only the portable kernels take.
enum Kind { kOrdinary, kSpecial, kWide };

// The extent and the parameters of a block.
struct Problem {
  dynq::Extent extent;
  Kind kind;
  std::vector<float> scales, float_zps;
  std::vector<int32_t> zps;

  Problem(Random& random, dynq::Parameters parameters, int64_t rows, int64_t cols, Kind kind_)
      : extent{rows, cols, cols + random.integer(0, 3)}, kind(kind_) {
    const int64_t count = parameters == dynq::kPerRow ? rows : cols;
    for (int64_t i = 0; i < count; ++i) {
      const bool special = kind != kOrdinary, wide = kind == kWide;
      scales.push_back(special && random.integer(0, 3) == 0 ? random.of(kSpecialScales) : random.of(kScales));
      zps.push_back(wide && (i == 0 || random.integer(0, 3) == 0) ? random.of(kWideZeroPoints)
                                                                  : static_cast<int32_t>(random.integer(-300, 300)));
      float_zps.push_back(special && random.integer(0, 3) == 0 ? random.of(kFloatZeroPoints)
                                                               : static_cast<float>(random.integer(-130, 260)));
    }
  }

  void make_finite() {
    for (float& scale : scales) scale = std::isfinite(scale) ? scale : 1e-40f;
  }

  size_t elements() const { return static_cast<size_t>(extent.rows * extent.stride); }

  // (k + 0.5) * scale for codes k, and its neighbors by one and two units in the last place.
  std::vector<float> ties(Random& random) const {
    std::vector<float> src;
    for (size_t i = 0; i < elements(); ++i) {
      const float scale = scales[random.next() % scales.size()];
      float x = (static_cast<float>(random.integer(-390, 390)) + 0.5f) * scale;
      for (int64_t step = random.integer(0, 2); step > 0; --step)
        x = std::nextafter(x, random.of({-kInfinity, kInfinity}));
      src.push_back(random.integer(0, 15) == 0 ? random.of(kSpecials) : x);
    }
    return src;
  }
};

// Calls `run` for blocks of many extents and kinds. Rows and the distances between them are multiples of `unit`, 1
// or 2.
template <class Run>
uint64_t hash_blocks(dynq::Parameters parameters, Run run, int64_t unit = 1) {
  Random random{1};
  Hash hash;
  for (const int64_t cols : kColumns)
    for (const int64_t rows : {1, 5})  // kernels of columns take four rows at once
      for (const Kind kind : {kOrdinary, kSpecial, kSpecial, kWide}) {
        Problem problem(random, parameters, rows, cols * unit, kind);
        problem.extent.stride += problem.extent.stride % unit;
        run(random, problem, hash);
      }
  return hash.value();
}

uint64_t hash_quantize(dynq::QuantizeKernel kernel, dynq::QuantizeKernel of_wide, dynq::Parameters parameters) {
  return hash_blocks(parameters, [=](Random& random, const Problem& problem, Hash& hash) {
    const std::vector<float> src = problem.ties(random);
    std::vector<uint8_t> dst(problem.elements(), 0xa5);
    (problem.kind == kWide ? of_wide : kernel)(
        {problem.extent, src.data(), dst.data(), problem.scales.data(), problem.zps.data(), false});
    hash.add(dst.data(), dst.size());
  });
}

uint64_t hash_dequantize(dynq::DequantizeKernel kernel, dynq::DequantizeKernel of_wide, dynq::Parameters parameters) {
  return hash_blocks(parameters, [=](Random& random, const Problem& problem, Hash& hash) {
    std::vector<uint8_t> src(problem.elements());
    for (uint8_t& code : src) code = static_cast<uint8_t>(random.next());
    std::vector<float> dst(problem.elements(), 12345.0f);
    (problem.kind == kWide ? of_wide : kernel)(
        {problem.extent, src.data(), dst.data(), problem.scales.data(), problem.zps.data(), false});
    hash.add_floats(dst.data(), dst.size());
  });
}

// The same numbers as float and as float16. An instruction set without kernels of float16 converts it.
struct Floats {
  const dynq::ElementwiseKernels& table;
  std::vector<float> wide;
  std::vector<uint16_t> halves;

  Floats(const dynq::ElementwiseKernels& table_, std::vector<float> values)
      : table(table_), wide(std::move(values)), halves(wide.size()) {}

  void narrow() { table.narrow[dynq::kF16](wide.data(), halves.data(), static_cast<int64_t>(wide.size())); }
  void widen() { table.widen[dynq::kF16](halves.data(), wide.data(), static_cast<int64_t>(wide.size())); }
  void round() {  // to finite float16
    narrow();
    widen();
    for (float& x : wide) x = std::isfinite(x) ? x : 0.0f;
    narrow();
  }
  void* data(bool is_float16) { return is_float16 ? static_cast<void*>(halves.data()) : wide.data(); }
};

uint64_t hash_quantize_f16(const dynq::ElementwiseKernels& table, int kind, dynq::Parameters parameters) {
  return hash_blocks(parameters, [&](Random& random, const Problem& problem, Hash& hash) {
    if (problem.kind != kOrdinary) return;  // the scales must be safe and the zero points narrow
    Floats src(table, problem.ties(random));
    src.narrow();
    src.widen();
    std::vector<uint8_t> dst(problem.elements(), 0xa5);
    const dynq::QuantizeKernel direct = table.quantize_f16[dynq::kOnnx][kind][parameters];
    (direct != nullptr ? direct : table.quantize[dynq::kOnnx][kind][parameters])(
        {problem.extent, src.data(direct != nullptr), dst.data(), problem.scales.data(), problem.zps.data(), false});
    hash.add(dst.data(), dst.size());
  });
}

// The code of a quotient that is rounded to float16: portable tables have no kernels for it.
float rounded_code(float x, float scale, int scaling) {
  const float t = scaling == dynq::kDivide ? x / scale : scaling == dynq::kMultiply ? x * scale : x * (1.0f / scale);
  return dynq::round_half_even(dynq::rounded_to_float16(t));
}

// Calls a function with the index of each element of a problem, and its scale.
template <class Function>
void for_each(const Problem& problem, const Function& function) {
  const auto [rows, cols, stride] = problem.extent;
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t col = 0; col < cols; ++col)
      function(static_cast<size_t>(row * stride + col), problem.scales[static_cast<size_t>(row)]);
}

// Changes the scales of a problem, and returns elements with quotients of at most 1000, with ties of rounding. One
// element of each row, a float16, stands at several places: its quotient is closest to a tie of rounding to integers,
// or to a tie of float16 beside one, so that division, product and reciprocal differ.
std::vector<float> bounded_ties(const dynq::ElementwiseKernels& table, Random& random, Problem& problem,
                                bool has_float16_scales) {
  std::vector<float> row_ties;
  for (float& scale : problem.scales) {
    const float x = static_cast<float>(random.integer(1024, 2047)) / 256;
    scale = x / (static_cast<float>(random.integer(16, 31)) + random.of({0.5f, 0.5f + 1.0f / 128}));
    row_ties.push_back(x);
  }
  if (has_float16_scales) {
    Floats scales(table, problem.scales);
    scales.round();
    problem.scales = scales.wide;
  }
  std::vector<float> src = problem.ties(random);
  for (size_t i = 0; i < src.size(); ++i) {
    const size_t row = i / static_cast<size_t>(problem.extent.stride);
    if (!(std::fabs(src[i]) <= 1000 * problem.scales[row])) src[i] = std::copysign(0.5f * problem.scales[row], src[i]);
    if (random.one_in(2)) src[i] = random.of({-1.0f, 1.0f}) * row_ties[row];
  }
  return src;
}

// The quotient is rounded to float16.
uint64_t hash_rounded(const dynq::ElementwiseKernels& table, int kind, bool is_float16) {
  return hash_blocks(dynq::kPerRow, [&](Random& random, const Problem& given, Hash& hash) {
    if (given.kind != kOrdinary) return;
    Problem problem = given;
    Floats src(table, bounded_ties(table, random, problem, is_float16));
    if (is_float16) src.round();
    std::vector<uint8_t> dst(problem.elements(), 0xa5);
    const std::vector<int32_t> zps(problem.zps.size(), 0);
    const dynq::QuantizeKernel kernel =
        (is_float16 ? table.quantize_f16 : table.quantize)[dynq::kRoundedQuotient][kind][dynq::kPerRow];
    if (kernel != nullptr)
      kernel({problem.extent, src.data(is_float16), dst.data(), problem.scales.data(), zps.data(), false});
    else
      for_each(problem, [&](size_t i, float scale) {
        const float low = kind == dynq::kU8 ? 0.0f : -128.0f, code = rounded_code(src.wide[i], scale, dynq::kDivide);
        dst[i] = static_cast<uint8_t>(static_cast<int>(std::fmin(std::fmax(code, low), low + 255)));
      });
    hash.add(dst.data(), dst.size());
  });
}

uint64_t hash_dequantize_f16(const dynq::ElementwiseKernels& table, int kind, dynq::Parameters parameters) {
  return hash_blocks(parameters, [&](Random& random, Problem problem, Hash& hash) {
    if (problem.kind == kWide) return;  // the zero points must be narrow
    problem.make_finite();
    std::vector<uint8_t> src(problem.elements());
    for (uint8_t& code : src) code = static_cast<uint8_t>(random.next());
    std::vector<float> dst(problem.elements(), 12345.0f);
    std::vector<uint16_t> halves(problem.elements());
    const auto count = static_cast<int64_t>(dst.size());
    table.narrow[dynq::kF16](dst.data(), halves.data(), count);
    const dynq::DequantizeKernel direct = table.dequantize_f16[kind][parameters];
    (direct != nullptr ? direct : table.dequantize[kind][parameters])(
        {problem.extent, src.data(), direct != nullptr ? static_cast<void*>(halves.data()) : dst.data(),
         problem.scales.data(), problem.zps.data(), false});
    if (direct == nullptr) table.narrow[dynq::kF16](dst.data(), halves.data(), count);
    table.widen[dynq::kF16](halves.data(), dst.data(), count);
    hash.add_floats(dst.data(), dst.size());
  });
}

// Codes of 4 bits as they are stored. Instruction sets without kernels of 4 bits convert them.
uint64_t hash_quantize_4bits(const dynq::ElementwiseKernels& table, int kind, dynq::Parameters parameters,
                             bool is_float16) {
  const auto run = [&](Random& random, const Problem& problem, Hash& hash) {
    const int64_t cols = problem.extent.cols, stride = problem.extent.stride;
    if (problem.kind != kOrdinary || cols < dynq::kMinColumnsOf4Bits) return;
    Floats src(table, problem.ties(random));
    if (is_float16) src.narrow(), src.widen();
    std::vector<uint8_t> wide(problem.elements(), 0xa5), dst(problem.elements() / 2, 0xa5);
    const dynq::QuantizeKernel direct =
        (is_float16 ? table.quantize_4bits_f16 : table.quantize_4bits)[kind][parameters];
    (direct != nullptr ? direct : table.quantize[dynq::kOnnx][kind][parameters])(
        {problem.extent, src.data(is_float16 && direct != nullptr), direct != nullptr ? dst.data() : wide.data(),
         problem.scales.data(), problem.zps.data(), false});
    for (int64_t row = 0; direct == nullptr && row < problem.extent.rows; ++row)
      table.narrow[kind == dynq::kU8 ? dynq::kU4 : dynq::kS4](&wide[static_cast<size_t>(row * stride)],
                                                              &dst[static_cast<size_t>(row * stride / 2)], cols);
    hash.add(dst.data(), dst.size());
  };
  return hash_blocks(parameters, run, 2);
}

uint64_t hash_dequantize_4bits(const dynq::ElementwiseKernels& table, int kind, dynq::Parameters parameters,
                               bool is_float16) {
  const auto run = [&](Random& random, Problem problem, Hash& hash) {
    if (problem.kind == kWide || problem.extent.cols < dynq::kMinColumnsOf4Bits) return;
    problem.make_finite();
    std::vector<uint8_t> src(problem.elements() / 2), wide(problem.elements());
    for (uint8_t& codes : src) codes = static_cast<uint8_t>(random.next());
    const auto count = static_cast<int64_t>(wide.size());
    table.widen[kind == dynq::kU8 ? dynq::kU4 : dynq::kS4](src.data(), wide.data(), count);
    Floats dst(table, std::vector<float>(problem.elements(), 12345.0f));
    dst.narrow();
    const dynq::DequantizeKernel direct =
        (is_float16 ? table.dequantize_4bits_f16 : table.dequantize_4bits)[kind][parameters];
    (direct != nullptr ? direct : table.dequantize[kind][parameters])(
        {problem.extent, direct != nullptr ? src.data() : wide.data(), dst.data(is_float16 && direct != nullptr),
         problem.scales.data(), problem.zps.data(), false});
    if (is_float16 && direct == nullptr) dst.narrow();
    if (is_float16) dst.widen();
    hash.add_floats(dst.wide.data(), dst.wide.size());
  };
  return hash_blocks(parameters, run, 2);
}

uint64_t hash_fake_quantize(dynq::FakeQuantizeKernel kernel, float low, dynq::Parameters parameters) {
  return hash_blocks(parameters, [=](Random& random, const Problem& problem, Hash& hash) {
    const std::vector<float> src = problem.ties(random);
    std::vector<float> dst(problem.elements(), 12345.0f), zps;
    for (const int32_t zp : problem.zps) zps.push_back(low + static_cast<float>((low == 0 ? zp : ~zp) & 255));
    kernel({problem.extent, src.data(), dst.data(), problem.scales.data(), zps.data(), low, low + 255});
    hash.add_floats(dst.data(), dst.size());
  });
}

uint64_t hash_bounded(const dynq::ElementwiseKernels& table, int scaling, int order, bool is_float16) {
  return hash_blocks(dynq::kPerRow, [&](Random& random, const Problem& given, Hash& hash) {
    if (given.kind != kOrdinary) return;
    Problem problem = given;
    Floats src(table, bounded_ties(table, random, problem, is_float16 && scaling == dynq::kDivide));
    if (is_float16) src.round();
    std::vector<float> scales = problem.scales;
    for (float& scale : scales)
      if (scaling == dynq::kMultiplyByTheReciprocal) scale = 1.0f / scale;
    for (const bool keeps_negative_zero : {false, true}) {
      Floats dst(table, std::vector<float>(problem.elements(), 12345.0f));
      dst.narrow();
      const dynq::BoundedKernel direct = is_float16 ? table.bounded_f16[scaling][order] : nullptr;
      const dynq::BoundedKernel kernel = direct != nullptr ? direct : table.bounded[scaling][order];
      if (kernel != nullptr)
        kernel({problem.extent, src.data(direct != nullptr), dst.data(direct != nullptr), scales.data(),
                problem.scales.data(), problem.float_zps.data(), keeps_negative_zero});
      else
        for_each(problem, [&](size_t i, float scale) {
          const float code = rounded_code(src.wide[i], scale, scaling) + (keeps_negative_zero ? -0.0f : 0.0f);
          dst.wide[i] = scaling == dynq::kMultiply ? code / scale : code * scale;
        });
      if (is_float16 && direct == nullptr) dst.narrow();
      if (is_float16) dst.widen();
      hash.add_floats(dst.wide.data(), dst.wide.size());
    }
  });
}

// Rows are adjacent.
uint64_t hash_two_terms(dynq::TwoTermKernel kernel) {
  return hash_blocks(dynq::kPerRow, [=](Random& random, const Problem& problem, Hash& hash) {
    const std::vector<float> src = problem.ties(random);
    std::vector<float> inverses;
    for (const float scale : problem.scales) inverses.push_back(1 / scale);
    std::vector<int8_t> codes(problem.elements(), 99), remainders(problem.elements(), 99);
    const auto [rows, cols, stride] = problem.extent;
    kernel({{rows, cols, cols}, src.data(), codes.data(), remainders.data(), inverses.data()});
    hash.add(codes.data(), codes.size());
    hash.add(remainders.data(), remainders.size());
  });
}

// A row's extreme may be a zero of either sign.
uint64_t hash_ranges(const dynq::ElementwiseKernels& table, dynq::Parameters parameters, int kind) {
  return hash_blocks(parameters, [&](Random& random, const Problem& problem, Hash& hash) {
    std::vector<float> src = problem.ties(random);
    const auto& [rows, cols, stride] = problem.extent;
    for (const bool finite : {false, true}) {
      for (float& x : src)
        if (finite && !std::isfinite(x)) x = 0.0f;
      std::vector<float> low, high;
      for (size_t i = 0; i < problem.scales.size(); ++i) {
        low.push_back(random.of({kInfinity, 1.0f}));
        high.push_back(random.of({-kInfinity, 1.0f}));
      }
      bool is_finite = false;
      if (parameters == dynq::kPerColumn)
        table.column_ranges[kind](src.data(), rows, cols, stride, low.data(), high.data());
      else
        is_finite = table.row_ranges[kind](src.data(), rows, cols, stride, low.data(), high.data());
      hash.add(&is_finite, sizeof is_finite);
      for (std::vector<float>* values : {&low, &high}) {
        for (float& value : *values)
          if (parameters == dynq::kPerRow && value == 0) value = 0;
        hash.add_floats(values->data(), values->size());
      }
    }
  });
}

// Many float16 are zeros; an extreme that is a zero may be one of either sign.
uint64_t hash_range(const dynq::ElementwiseKernels& table, bool is_abs_max, bool is_float16) {
  return hash_blocks(dynq::kPerRow, [&](Random& random, const Problem& problem, Hash& hash) {
    Floats src(table, problem.ties(random));
    for (const bool finite : {false, true}) {
      for (float& x : src.wide)
        if (finite && !std::isfinite(x)) x = 0.0f;
      if (is_float16) {
        src.narrow();
        src.widen();
      }
      const dynq::RangeKernel direct = is_float16 ? table.ranges_f16[is_abs_max] : nullptr;
      const dynq::Range range = (direct != nullptr ? direct : table.ranges[is_abs_max])(
          src.data(direct != nullptr), static_cast<int64_t>(src.wide.size()));
      const float low = is_float16 && range.low == 0 ? 0 : range.low;
      const float high = is_float16 && range.high == 0 ? 0 : range.high;
      hash.add_floats(&low, 1);
      hash.add_floats(&high, 1);
      hash.add_floats(&range.not_finite, 1);
    }
  });
}

// All values of 16 bits, in parts of any length; all bytes as pairs of codes.
uint64_t hash_widen(dynq::ConvertKernel kernel, bool is_float) {
  Random random{1};
  Hash hash;
  const int64_t elements = is_float ? 1 << 16 : 512;
  std::vector<uint16_t> src(1 << 16);
  for (size_t i = 0; i < src.size(); ++i)
    src[i] = static_cast<uint16_t>(is_float ? i : (2 * i & 255) | ((2 * i + 1) & 255) << 8);
  for (int64_t first = 0, count = 0; first < elements; first += count + count % 2) {
    count = std::min(random.integer(0, 70), elements - first);
    const auto* from = reinterpret_cast<const uint8_t*>(src.data()) + (is_float ? first * 2 : first / 2);
    std::vector<float> floats(static_cast<size_t>(count) + 1, 12345.0f);
    std::vector<uint8_t> codes(static_cast<size_t>(count) + 1, 0xa5);
    kernel(from, is_float ? static_cast<void*>(floats.data()) : codes.data(), count);
    hash.add_floats(floats.data(), floats.size());
    hash.add(codes.data(), codes.size());
    if (count == 0) first += 2;
  }
  return hash.value();
}

// The middles between adjacent values of 16 bits and their neighbors, special values; all codes.
uint64_t hash_narrow(dynq::ConvertKernel kernel, bool is_float) {
  Random random{1};
  Hash hash;
  for (int64_t part = 0; part < 2000; ++part) {
    const auto count = static_cast<size_t>(random.integer(0, 70));
    std::vector<uint32_t> src(count + 1);
    for (uint32_t& bits : src) {
      bits = static_cast<uint32_t>(random.next());
      if (random.one_in(2)) bits = (bits & ~0x1fffu) | 0x1000u;  // a tie of float16
      if (random.one_in(4)) bits = (bits & ~0xffffu) | 0x8000u;  // and of bfloat16
      if (random.one_in(2)) bits += static_cast<uint32_t>(random.integer(-1, 1));
      const float special = random.of(kSpecials);
      if (random.one_in(8)) std::memcpy(&bits, &special, sizeof bits);
    }
    std::vector<uint16_t> dst(count + 2, 0xa5a5);
    kernel(src.data(), dst.data(), static_cast<int64_t>(is_float ? count : 3 * count + count % 2));
    hash.add(dst.data(), 2 * dst.size());
  }
  return hash.value();
}

// One row has any scale, the others ordinary ones, so that few sums are NaN.
uint64_t hash_products(dynq::ProductKernel kernel, int bits, int64_t groups) {
  return hash_blocks(dynq::kPerColumn, [=](Random& random, const Problem& problem, Hash& hash) {
    const int64_t rows = problem.extent.rows, columns = problem.extent.cols;
    const int64_t depth = groups > 1 ? 16 * groups : 8 * random.integer(0, 4), quads = depth * bits / 32;
    std::vector<uint8_t> codes(static_cast<size_t>(rows * depth));
    std::vector<int8_t> weights(static_cast<size_t>((columns + 15) / 16 * quads * 64));
    std::vector<int8_t> weight_zps(static_cast<size_t>(groups * columns));
    std::vector<int32_t> column_sums(weight_zps.size()), row_sums, zps;
    std::vector<float> column_scales(weight_zps.size()), row_scales, bias, dst(problem.elements(), 12345.0f);
    for (uint8_t& code : codes) code = static_cast<uint8_t>(random.next());
    for (int8_t& weight : weights) weight = static_cast<int8_t>(random.next());
    for (int8_t& zp : weight_zps) zp = static_cast<int8_t>(bits == 4 ? random.integer(0, 15) : random.next());
    for (int32_t& sum : column_sums) sum = static_cast<int32_t>(random.integer(-9999, 9999));
    for (float& scale : column_scales) scale = random.of(kScales);
    for (int64_t i = 0; i < columns; ++i) bias.push_back(random.of(kScales));
    for (int64_t i = 0; i < rows * groups; ++i) {
      row_scales.push_back(i == 0 ? random.of(kSpecialScales) : random.of(kScales));
      zps.push_back(static_cast<int32_t>(random.integer(0, 255)));
      row_sums.push_back(static_cast<int32_t>(random.integer(0, 9999)));
    }
    dynq::ProductBlock block = {};
    block.rows = rows;
    block.cols = block.weights.zps_stride = block.columns.scales_stride = block.columns.sums_stride = columns;
    block.depth = depth;
    block.groups = block.codes.scale_groups = block.columns.scale_groups = groups;
    block.codes.data = codes.data();
    block.codes.stride = depth;
    block.weights.packed = weights.data();
    block.weights.stride = quads * 64;
    block.output.dst = dst.data();
    block.output.stride = problem.extent.stride;
    block.codes.scales = row_scales.data();
    block.codes.zps = zps.data();
    block.codes.sums = bits == 8 ? row_sums.data() : nullptr;
    block.weights.zps = weight_zps.data();
    block.columns.scales = column_scales.data();
    block.columns.sums = column_sums.data();
    block.columns.bias = bias.data();
    for (int order = groups > 1 ? dynq::kColumnFirst : 0; order <= dynq::kColumnFirst; ++order) {
      block.order = static_cast<dynq::ScaleOrder>(order);
      kernel(block);
      hash.add_floats(dst.data(), dst.size());
    }
  });
}

// One step between a load and a store. A row's extreme may be a zero of either sign.
uint64_t hash_step(dynq::PassKernel kernel, dynq::StepKind kind) {
  const steps::Takes takes = steps::describe(kind).takes;
  return hash_blocks(dynq::kPerRow, [=](Random& random, const Problem& problem, Hash& hash) {
    const auto& [rows, cols, stride] = problem.extent;
    const auto vector = [stride = stride](const void* at, int64_t size) {
      return dynq::StepOperand{static_cast<const char*>(at), stride * size, size, true};
    };
    const auto number = [](const float* at) {
      return dynq::StepOperand{reinterpret_cast<const char*>(at), sizeof(float), 0, false};
    };
    const std::vector<float> src = problem.ties(random), other = problem.ties(random);
    std::vector<float> lows, highs, floats(problem.elements(), 12345.0f), numbers(problem.scales.size());
    for (size_t i = 0; i < problem.scales.size(); ++i) {
      lows.push_back(-random.of(kScales));
      highs.push_back(random.of(kScales));
    }
    std::vector<uint16_t> halves(problem.elements(), 0xa5a5);
    std::vector<uint8_t> codes(problem.elements(), 0xa5);
    dynq::StepOperand a = {}, b = {};
    if (takes == steps::Takes::kOne) a = random.one_in(2) ? vector(other.data(), 4) : number(problem.scales.data());
    if (takes == steps::Takes::kTwo) a = number(lows.data()), b = number(highs.data());
    if (takes == steps::Takes::kFloats) a = vector(floats.data(), 4);
    if (takes == steps::Takes::kHalves) a = vector(halves.data(), 2);
    if (takes == steps::Takes::kCodes) a = vector(codes.data(), 1);
    if (takes == steps::Takes::kNumber) a = {reinterpret_cast<const char*>(numbers.data()), 4, 4, true};
    const dynq::Step all[] = {{dynq::StepKind::kLoad, vector(src.data(), 4), {}},
                              {kind, a, b},
                              {dynq::StepKind::kStore, vector(floats.data(), 4), {}}};
    kernel({all, takes < steps::Takes::kFloats ? 3 : 2, rows, cols, true});
    for (float& value : numbers)
      if (value == 0) value = 0;
    hash.add_floats(floats.data(), floats.size());
    hash.add_floats(numbers.data(), numbers.size());
    hash.add(halves.data(), 2 * halves.size());
    hash.add(codes.data(), codes.size());
  });
}

void print(const std::string& name, uint64_t hash) {
  std::printf("%s %s %016" PRIx64 "\n", dynq::active_isa().name, name.c_str(), hash);
}

void run_kernels() {
  using namespace dynq;
  const ElementwiseKernels &table = active_kernels(), &portable = kPortableKernels;
  const ProductKernels& products = *active_isa().products;
  const char* const codes[] = {"u8", "s8"};
  const char* const kinds[] = {"row", "column"};
  for (int p = 0; p < kParameterKinds; ++p) {
    const Parameters parameters = static_cast<Parameters>(p);
    const auto tail = [&](const char* name) { return std::string("/") + name + "/" + kinds[p]; };
    for (int kind = 0; kind < kCodeKinds; ++kind) {
      const char* const arithmetics[] = {"onnx", "onednn", "wrapping"};
      for (int arithmetic = 0; arithmetic < kRoundedQuotient; ++arithmetic)
        print(std::string("quantize/") + arithmetics[arithmetic] + tail(codes[kind]),
              hash_quantize(table.quantize[arithmetic][kind][p], portable.quantize[arithmetic][kind][p], parameters));
      if (parameters == kPerRow)
        print("quantize/product" + tail(codes[kind]),
              hash_quantize(table.quantize[kProduct][kind][p], portable.quantize[kProduct][kind][p], parameters));
      print("dequantize" + tail(codes[kind]),
            hash_dequantize(table.dequantize[kind][p], portable.dequantize[kind][p], parameters));
      print("quantize_f16" + tail(codes[kind]), hash_quantize_f16(table, kind, parameters));
      print("dequantize_f16" + tail(codes[kind]), hash_dequantize_f16(table, kind, parameters));
      for (const bool is_float16 : {false, true}) {
        const std::string floats = is_float16 ? "_f16" : "";
        const char* const bits4 = kind == kU8 ? "u4" : "s4";
        print("quantize" + floats + tail(bits4), hash_quantize_4bits(table, kind, parameters, is_float16));
        print("dequantize" + floats + tail(bits4), hash_dequantize_4bits(table, kind, parameters, is_float16));
      }
    }
    for (const float low : {0.0f, -128.0f})
      print("fake_quantize" + tail(low == 0 ? "u8" : "s8"),
            hash_fake_quantize(table.fake_quantize[p], low, parameters));
  }
  for (int scaling = 0; scaling < kScalings; ++scaling)
    for (int order = 0; order < kBoundedOrders; ++order)
      for (const bool is_float16 : {false, true})
        print(std::string(is_float16 ? "bounded_f16/" : "bounded/") + std::to_string(scaling) + "/" +
                  std::to_string(order),
              hash_bounded(table, scaling, order, is_float16));
  for (const bool is_float16 : {false, true}) {
    const std::string tail = is_float16 ? "_f16" : "";
    for (int kind = 0; kind < kCodeKinds; ++kind)
      print("quantize" + tail + "/rounded/" + codes[kind], hash_rounded(table, kind, is_float16));
    print("min_max" + tail, hash_range(table, false, is_float16));
    print("abs_max" + tail, hash_range(table, true, is_float16));
  }
  const char* const formats[] = {"f16", "bf16", "u4", "s4"};
  for (int format = 0; format < kFormats; ++format) {
    const bool is_float = format == kF16 || format == kBf16;
    print(std::string("widen/") + formats[format], hash_widen(table.widen[format], is_float));
    print(std::string("narrow/") + formats[format], hash_narrow(table.narrow[format], is_float));
  }
  print("products/gemm_qc8w", hash_products(products.gemm_qc8w, 8, 1));
  print("products/gemm_qb8w", hash_products(products.gemm_qb8w, 8, 3));
  print("products/gemm_qb4w", hash_products(products.gemm_qb4w, 4, 3));
  for (const StepKind kind : steps::all_kinds())
    print(std::string("programs/") + steps::describe(kind).name, hash_step(table.run_pass, kind));
  print("two_terms", hash_two_terms(table.two_terms));
  for (int kind = 0; kind < kExtremes; ++kind) {
    const std::string of = kind == kAbsMax ? "abs_max_of/" : "min_max_of/";
    for (const Parameters p : {kPerRow, kPerColumn}) print(of + kinds[p], hash_ranges(table, p, kind));
  }
}

}  // namespace

int main() {
  for (size_t i = 0; const char* name = dynq::supported_isa(i); ++i) {
    dynq::select_isa(name);
    run_kernels();
  }
}
