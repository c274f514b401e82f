// QuantizedAttention: softmax(query * key^T * scale + bias) * value for each head, with products of integers.
//
// Each row of a head of query, key and value has a scale. The codes of softmax are multiplied by the scales of the rows
// of value, and these weights become codes of 16 bits, in two bytes. So a key that a mask hides, whose code is 0,
// changes nothing: not even a scale depends on it.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "core/attention_bias.h"
#include "core/parallel.h"
#include "core/rounding.h"
#include "core/scratch.h"
#include "kernels/dispatch.h"
#include "kernels/numbers.h"

namespace dynq {
namespace {

constexpr const char* kName = "QuantizedAttention";
constexpr int64_t kRowUnit = 12;        // a multiple of the rows of every kernel's tile
constexpr int64_t kTaskScores = 16384;  // of one task: they stay in the cache
constexpr int32_t kZeroPoint = 128;
constexpr int64_t kMostDepth = 4096;  // of a head

// One run: B batches, H heads; S rows of query, T rows of key and value; D and E elements of a head.
struct Sizes {
  int64_t b, h, s, t, d, e;
};

// The codes of query, key and value, in their shapes.
struct Codes {
  std::unique_ptr<uint8_t[]> query, key, value;
  std::unique_ptr<float[]> query_scales, key_scales, value_scales;  // of each row of each head: [B, S or T, H]
};

// The keys and values of all heads, packed for products: those of a head are adjacent.
struct Packed {
  explicit Packed(const Sizes& n)
      : key_size(round_up(n.t, kBlockColumns) * round_up(n.d, kQuad)),
        value_size(round_up(n.e, kBlockColumns) * round_up(n.t, kQuad)),
        factors_size(round_up(n.t, kSoftmaxUnit)),
        keys(memory<int8_t>(n.b * n.h * key_size)),
        values(memory<int8_t>(n.b * n.h * value_size)),
        key_scales(memory<float>(n.b * n.h * n.t)),
        factors(memory<float>(n.b * n.h * factors_size)),
        key_sums(memory<int32_t>(n.b * n.h * n.t)) {}

  const int64_t key_size, value_size, factors_size;  // of one head
  const std::unique_ptr<int8_t[]> keys, values;
  const std::unique_ptr<float[]> key_scales, factors;  // factors: see SoftmaxRow
  const std::unique_ptr<int32_t[]> key_sums;
};

// Scales and zero points that are the same for all rows or columns: all tasks of a run share them.
struct Constants {
  explicit Constants(int64_t count)
      : zeros(static_cast<size_t>(count), 0.0f),
        ones(static_cast<size_t>(count), 1.0f),
        zero_points(static_cast<size_t>(count), kZeroPoint),
        no_zero_points(static_cast<size_t>(count), 0) {}

  const std::vector<float> zeros, ones;
  const std::vector<int32_t> zero_points, no_zero_points;
};

class QuantizedAttention : public Node {
 public:
  explicit QuantizedAttention(const Attributes& attributes) : heads_(attributes.integer("num_heads", 1)) {
    if (heads_ < 1) fail("num_heads is " + std::to_string(heads_) + ", expected 1 or more");
  }

  void compute(Context& context) const override {
    const Tensor query = context.input(0), key = context.input(1), value = context.input(2), bias = context.input(3),
                 scale = context.input(4);
    for (const Tensor* each : {&query, &key, &value})
      if (each->shape.rank != 3 || each->shape.dims[2] % heads_ != 0)
        fail("an input has shape " + each->shape.text() + ", expected rank 3, and a last dimension that num_heads, " +
             std::to_string(heads_) + ", divides");
    const Sizes n = {query.shape.dims[0],          heads_,
                     query.shape.dims[1],          key.shape.dims[1],
                     query.shape.dims[2] / heads_, value.shape.dims[2] / heads_};
    if (key.shape.dims[0] != n.b || value.shape.dims[0] != n.b || key.shape.dims[2] != query.shape.dims[2] ||
        value.shape.dims[1] != n.t)
      fail("query, key and value have the shapes " + query.shape.text() + ", " + key.shape.text() + " and " +
           value.shape.text() + ", expected [B, S, H * D], [B, T, H * D] and [B, T, H * E]");
    if (n.t > kMostKeys || n.d > kMostDepth || n.e > kMostDepth)
      fail("there are " + std::to_string(n.t) + " keys, expected at most " + std::to_string(kMostKeys) +
           ", and heads of " + std::to_string(std::max(n.d, n.e)) + ", expected at most " + std::to_string(kMostDepth));
    if (n.d == 0) fail("query has heads without elements, expected one or more");
    if (scale.shape.elements() != 1) fail("scale has shape " + scale.shape.text() + ", expected one element");
    const AttentionBias biases = attention_bias(kName, bias, {n.b, n.h, n.s, n.t});
    Shape shape = query.shape;
    shape.dims[2] = value.shape.dims[2];
    auto* dst = static_cast<float*>(context.output(0, shape));
    if (shape.elements() == 0) return;
    if (n.t == 0) {  // no keys
      for (int64_t i = 0; i < shape.elements(); ++i) store(dst + i, kNan);
      return;
    }
    const int64_t wanted = kTaskScores / n.t / kRowUnit * kRowUnit;
    const int64_t rows = std::min(std::clamp<int64_t>(wanted, kRowUnit, 8 * kRowUnit), n.s);
    const int64_t quantized_rows = std::min(kMaxParameters, n.b * n.h * std::max(n.s, n.t));
    const Constants constants(std::max({2 * rows, n.e, n.t, quantized_rows}));
    Codes codes;
    const auto* q = static_cast<const float*>(query.data);
    const auto* k = static_cast<const float*>(key.data);
    codes.query = quantize_rows(context, q, n.b * n.s * n.h, n.d, kU8, constants.zero_points, codes.query_scales);
    codes.key = quantize_rows(context, k, n.b * n.t * n.h, n.d, kS8, constants.no_zero_points, codes.key_scales);
    const auto* v = static_cast<const float*>(value.data);
    codes.value = quantize_rows(context, v, n.b * n.t * n.h, n.e, kS8, constants.no_zero_points, codes.value_scales);
    const Packed packed(n);
    run_tasks(context, n.b * n.h, [&](int64_t i) {
      pack_keys(codes, n, i, packed);
      pack_values(codes, n, i, packed);
    });
    const int64_t blocks = divide_up(n.s, rows);
    const float factor = load(static_cast<const float*>(scale.data));
    run_tasks(context, n.b * n.h * blocks, [&](int64_t i) {
      const int64_t head = i / blocks, row = i % blocks * rows;
      attend(codes, constants, biases, factor, n, head, row, std::min(rows, n.s - row), packed, dst);
    });
  }

 private:
  [[noreturn]] static void fail(const std::string& message) { throw Error(std::string(kName) + ": " + message); }

  // Makes scales of magnitudes: 1 for 0.
  static void to_scales(float* peaks, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      const float scale = peaks[i] / 127.0f;
      peaks[i] = scale == 0 ? 1.0f : scale;
    }
  }

  // The codes of rows of `cols` numbers, and their scales. A row of a head is one row.
  static std::unique_ptr<uint8_t[]> quantize_rows(Context& context, const float* src, int64_t rows, int64_t cols,
                                                  CodeKind kind, const std::vector<int32_t>& zero_points,
                                                  std::unique_ptr<float[]>& scales) {
    auto codes = memory<uint8_t>(rows * cols + kQuad);
    std::memset(codes.get() + rows * cols, 0, kQuad);  // kernels read whole quads
    scales = memory<float>(rows);
    const int64_t unit = std::clamp<int64_t>(kTaskElements / std::max<int64_t>(cols, 1), 1, kMaxParameters);
    run_tasks(context, divide_up(rows, unit), [&](int64_t task) {
      const ElementwiseKernels& table = active_kernels();
      const int64_t first = task * unit, count = std::min(unit, rows - first);
      std::vector<float> lows(static_cast<size_t>(count));
      float* const of_rows = scales.get() + first;
      std::fill_n(of_rows, count, 0.0f);
      table.row_ranges[kAbsMax](src + first * cols, count, cols, cols, lows.data(), of_rows);
      to_scales(of_rows, count);
      const QuantizeBlock block =
          block_of(src + first * cols, codes.get() + first * cols, count, cols, cols, of_rows, zero_points.data());
      table.quantize[kOnnx][kind][kPerRow](block);
    });
    return codes;
  }

  static QuantizeBlock block_of(const float* src, uint8_t* dst, int64_t rows, int64_t cols, int64_t stride,
                                const float* scales, const int32_t* zps) {
    QuantizeBlock block = {};
    block.rows = rows;
    block.cols = cols;
    block.stride = stride;
    block.src = src;
    block.dst = dst;
    block.scales = scales;
    block.zps = zps;
    return block;
  }

  static void pack_keys(const Codes& codes, const Sizes& n, int64_t head, const Packed& to) {
    const int64_t depth = round_up(n.d, kQuad);
    int8_t* const keys = to.keys.get() + head * to.key_size;
    if (depth != n.d || n.t % kBlockColumns != 0) std::memset(keys, 0, static_cast<size_t>(to.key_size));
    for (int64_t row = 0; row < n.t; ++row) {
      const int64_t number = (head / n.h * n.t + row) * n.h + head % n.h;
      const auto* from = reinterpret_cast<const int8_t*>(codes.key.get()) + number * n.d;
      int8_t* quads = keys + row / kBlockColumns * kBlockColumns * depth + row % kBlockColumns * kQuad;
      int32_t sum = 0;
      for (int64_t i = 0; i < n.d; ++i) sum += from[i];
      for (int64_t i = 0; i < n.d; i += kQuad)
        std::memcpy(quads + i * kBlockColumns, from + i, static_cast<size_t>(std::min(kQuad, n.d - i)));
      to.key_scales[static_cast<size_t>(head * n.t + row)] = codes.key_scales[static_cast<size_t>(number)];
      to.key_sums[static_cast<size_t>(head * n.t + row)] = sum;
    }
  }

  static void pack_values(const Codes& codes, const Sizes& n, int64_t head, const Packed& to) {
    const int64_t stride = n.h * n.e, first = head / n.h * n.t * n.h + head % n.h, length = round_up(n.t, kQuad);
    const uint8_t* const bytes = codes.value.get() + first * n.e;
    float* const factors = to.factors.get() + head * to.factors_size;
    for (int64_t row = 0; row < to.factors_size; ++row)
      factors[row] = row < n.t ? codes.value_scales[static_cast<size_t>(first + row * n.h)] * kUnitOfCodes : 0.0f;
    auto* const values = reinterpret_cast<uint8_t*>(to.values.get() + head * to.value_size);
    if (length != n.t || n.e % kBlockColumns != 0) std::memset(values, 0, static_cast<size_t>(to.value_size));
    for (int64_t block = 0; block < n.e; block += kBlockColumns) {
      const int64_t columns = std::min(kBlockColumns, n.e - block);
      uint8_t* quads = values + block * length;
      for (int64_t row = 0; row < n.t; row += kQuad, quads += kBlockColumns * kQuad)
        interleave(bytes + row * stride + block, stride, std::min(kQuad, n.t - row), columns, quads);
    }
  }

  // Up to four rows of bytes become quads.
  static void interleave(const uint8_t* rows, int64_t stride, int64_t count, int64_t columns, uint8_t* quads) {
    if (count < kQuad || columns < kBlockColumns) {
      for (int64_t row = 0; row < count; ++row)
        for (int64_t i = 0; i < columns; ++i) quads[i * kQuad + row] = rows[row * stride + i];
      return;
    }
    uint8_t bytes[kQuad][kBlockColumns];
    for (int64_t row = 0; row < kQuad; ++row) std::memcpy(bytes[row], rows + row * stride, kBlockColumns);
    for (int64_t i = 0; i < kBlockColumns; ++i)  // compilers make vector instructions of this loop
      for (int64_t row = 0; row < kQuad; ++row) quads[i * kQuad + row] = bytes[row][i];
  }

  // Rows [row, row + rows) of one head.
  static void attend(const Codes& codes, const Constants& constants, const AttentionBias& bias, float factor,
                     const Sizes& n, int64_t head, int64_t row, int64_t rows, const Packed& packed, float* dst) {
    const InstructionSet& isa = active_isa();
    const int64_t batch = head / n.h, offset = head % n.h, stride = n.h * n.d;
    const int64_t padded = round_up(n.t, kSoftmaxUnit), first = (batch * n.s + row) * n.h + offset;
    std::vector<float> scales(static_cast<size_t>(rows));
    for (int64_t i = 0; i < rows; ++i)
      scales[static_cast<size_t>(i)] = codes.query_scales[static_cast<size_t>(first + i * n.h)] * factor;
    const auto scores = memory<float>(rows * padded), sums = memory<float>(2 * rows * n.e);
    const auto bytes = memory<uint8_t>(2 * rows * padded);

    ProductBlock product = {};
    product.rows = rows;
    product.cols = n.t;
    product.depth = round_up(n.d, kQuad);
    product.groups = 1;
    product.output = {scores.get(), padded, false};
    product.codes = {
        codes.query.get() + first * n.d, stride, scales.data(), constants.zero_points.data(), 1, nullptr, false};
    product.weights = {packed.keys.get() + head * packed.key_size, product.depth * kBlockColumns, nullptr, 0, 0};
    product.columns = {packed.key_scales.get() + head * n.t,
                       nullptr,
                       0,
                       1,
                       packed.key_sums.get() + head * n.t,
                       0,
                       constants.zeros.data()};
    product.order = kRowFirst;
    isa.products->gemm_qc8w(product);

    const float* biases = bias.data + batch * bias.strides[0] + offset * bias.strides[1];
    for (int64_t i = 0; i < rows; ++i) {
      float* const of_row = scores.get() + i * padded;
      std::fill(of_row + n.t, of_row + padded, -INFINITY);
      scales[static_cast<size_t>(i)] = isa.kernels->softmax(
          {of_row, biases + (row + i) * bias.strides[2], packed.factors.get() + head * packed.factors_size,
           bias.strides[3] != 0, n.t, padded, bytes.get() + i * padded, bytes.get() + (rows + i) * padded});
    }

    product.cols = n.e;
    product.depth = round_up(n.t, kQuad);
    product.weights = {packed.values.get() + head * packed.value_size, product.depth * kBlockColumns, nullptr, 0, 0};
    product.columns = {constants.ones.data(), nullptr, 0, 1, constants.no_zero_points.data(), 0,
                       constants.zeros.data()};
    product.output = {sums.get(), n.e, false};
    product.codes = {bytes.get(), padded, constants.ones.data(), constants.no_zero_points.data(), 1, nullptr, false};
    product.rows = 2 * rows;  // of high bytes, then of low ones
    isa.products->gemm_qc8w(product);
    for (int64_t i = 0; i < rows; ++i) {
      const float scale = scales[static_cast<size_t>(i)];
      const float *high = sums.get() + i * n.e, *low = high + rows * n.e;
      float* to = dst + (batch * n.s + row + i) * n.h * n.e + offset * n.e;
      for (int64_t j = 0; j < n.e; ++j) store(to + j, (high[j] * 256.0f + low[j]) * scale);
    }
  }

  int64_t heads_;
};

}  // namespace

Operator quantized_attention() {
  Operator op = {
      kName, 5, {{{kFloat, kFloat, kFloat, kFloat, kFloat}, {kFloat}}}, make_node<QuantizedAttention>, always_float};
  op.columns_input = 2;
  return op;
}

}  // namespace dynq
