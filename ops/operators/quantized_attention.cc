// QuantizedAttention: softmax(query * key^T * scale + bias) * value for each head, with products of integers.
//
// Each row of a head of query, key and value has a scale. The codes of softmax are multiplied by the scales of the rows
// of value, and these weights become codes of 16 bits, in two bytes. So a key that a mask hides has the code 0 and
// changes nothing: not even a scale depends on it.
//
// A task computes a block of rows of query, of all heads that share a head of key: their keys are in the caches. It
// leaves out keys that a window hides from all rows of the block, and softmax those that it hides from a row.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "core/attention_bias.h"
#include "core/attributes.h"
#include "core/formats.h"
#include "core/head_codes.h"
#include "core/packed_heads.h"
#include "core/parallel.h"
#include "core/rounding.h"
#include "core/scratch.h"
#include "core/tiles.h"
#include "kernels/dispatch.h"
#include "kernels/numbers.h"

namespace dynq {
namespace {

constexpr const char* kName = "QuantizedAttention";
constexpr int64_t kRowUnit = 12;        // a multiple of the rows of every kernel's tile
constexpr int64_t kTiledRowUnit = 32;   // likewise of kernels on tiles
constexpr int64_t kTaskScores = 16384;  // of one task: they stay in the cache
constexpr int64_t kMinScores = 4096;    // of one task, unless there are fewer: a few microseconds of work
constexpr int32_t kZeroPoint = 128;
constexpr int64_t kMaxDepth = 4096;  // of a head

enum Input { kQuery, kKey, kValue, kBias, kScale, kCap, kLeastAdded, kInputs };

// One run: B batches; H heads of query, K of key and value; S rows of query, T rows of key and value; D and E elements
// of a head.
struct Sizes {
  int64_t b, h, k, s, t, d, e;

  int64_t rows() const { return h / k * s; }  // of query for one head of key
};

// The keys that each row of query sees.
struct Window {
  int64_t before, after;   // keys before and after the position of a row; -1: all
  int64_t first_position;  // of row 0

  int64_t first(int64_t row) const { return before < 0 ? 0 : std::max<int64_t>(row + first_position - before, 0); }
  int64_t end(int64_t row, int64_t keys) const {
    return after < 0 ? keys : std::clamp<int64_t>(row + first_position + after + 1, 0, keys);
  }
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

// What all tasks of a run share.
struct Run {
  Sizes n;
  const HeadCodes& query;
  const PackedHeads& packed;
  const Constants& constants;
  AttentionBias bias;
  float scale, cap, least_added;
  Window window;
  bool zero_rows;
  void* dst;
  Storage storage;
  HeadStrides of_dst;
};

// The memory of a block of rows: those of a task use the same.
struct Workspace {
  Workspace(const Sizes& n, int64_t rows)
      : stride(round_up(n.t, kSoftmaxUnit) + kSoftmaxUnit),
        scores(memory<float>(rows * stride)),
        factors(memory<float>(rows)),
        sums(memory<float>(2 * rows * n.e)),
        bytes(memory<uint8_t>(2 * rows * stride)),
        codes(memory<uint8_t>(std::max(tiled_bytes(rows, n.d), tiled_bytes(2 * rows, n.t)) + kQuad)) {}

  int64_t stride;
  std::unique_ptr<float[]> scores, factors;  // [rows, stride], [rows]
  std::unique_ptr<float[]> sums;             // [2, rows, E]
  std::unique_ptr<uint8_t[]> bytes;          // [2, rows, stride]
  std::unique_ptr<uint8_t[]> codes;          // of query, then of tiles
};

// `to` may be an output, which a caller of the C interface need not align.
void add_bytes(const float* high, const float* low, float factor, int64_t count, float* to) {
  for (int64_t j = 0; j < count; ++j) store(to + j, (high[j] * 256.0f + low[j]) * factor);
}

// Rows [first, first + rows) of the query of one head of key: those of the heads that share it stand together.
class Block {
 public:
  Block(const Run& run, Workspace& memory, int64_t head, int64_t first, int64_t rows)
      : run_(run),
        n_(run.n),
        memory_(memory),
        isa_(active_isa()),
        head_(head),
        first_(first),
        rows_(rows),
        repeats_(n_.h / n_.k),
        batch_(head / n_.k),
        first_head_(head % n_.k * repeats_) {
    start_ = std::min(run.window.first(token(0)), n_.t) / kBlockColumns * kBlockColumns;
    cols_ = std::max<int64_t>(run.window.end(token(rows - 1), n_.t) - start_, 0);
  }

  void compute() {
    if (cols_ == 0 || !run_.packed.is_finite[head_]) {  // no keys, or no known values
      const std::vector<float> numbers(static_cast<size_t>(n_.e),
                                       run_.zero_rows && run_.packed.is_finite[head_] ? 0.0f : kNan);
      for (int64_t i = 0; i < rows_; ++i) put(i, numbers.data());
      return;
    }
    stride_ = round_up(cols_, kSoftmaxUnit) + kSoftmaxUnit;
    score();
    for (int64_t i = 0; i < rows_; i += kSoftmaxRows) soften(i, std::min(kSoftmaxRows, rows_ - i));
    add_values();
  }

 private:
  // Divisions would take a tenth of the time of a few tokens.
  int64_t token(int64_t i) const { return repeats_ == 1 ? first_ + i : (first_ + i) / repeats_; }
  int64_t head_of(int64_t i) const { return first_head_ + (repeats_ == 1 ? 0 : (first_ + i) % repeats_); }
  int64_t query_row(int64_t i) const { return run_.query.row(batch_, head_of(i), token(i)); }

  ProductBlock product(int64_t rows, int64_t cols, int64_t depth, float* dst, int64_t dst_stride) const {
    ProductBlock block = {};
    block.rows = rows;
    block.cols = cols;
    block.depth = round_up(depth, kQuad);
    block.groups = 1;
    block.output = {dst, dst_stride, false};
    block.order = kRowFirst;
    return block;
  }

  void multiply(const ProductBlock& block) const {
    (uses_tiles(block.rows) ? isa_.products->gemm_qc8w_tiles : isa_.products->gemm_qc8w)(block);
  }

  // The codes of the block's rows of query.
  CodeAddress query_rows() const {
    const auto row = [&](int64_t i) { return run_.query.codes(query_row(i)); };
    uint8_t* const copies = memory_.codes.get();
    if (uses_tiles(rows_)) return in_tiles(rows_, n_.d, copies, row);
    if (repeats_ == 1) return {row(0), run_.query.stride() * n_.d};
    const int64_t depth = round_up(n_.d, kQuad);
    for (int64_t i = 0; i < rows_; ++i) {
      std::memset(copies + (i + 1) * depth - kQuad, 0, kQuad);
      std::memcpy(copies + i * depth, row(i), static_cast<size_t>(n_.d));
    }
    return {copies, depth};
  }

  void score() {
    for (int64_t i = 0; i < rows_; ++i) memory_.factors[i] = run_.query.scale(query_row(i)) * run_.scale;
    const CodeAddress codes = query_rows();
    ProductBlock block = product(rows_, cols_, n_.d, memory_.scores.get(), stride_);
    block.codes = {codes.data, codes.stride, memory_.factors.get(), run_.constants.zero_points.data(), 1,
                   nullptr,    false};
    block.weights = {run_.packed.keys.get() + head_ * run_.packed.key_size + start_ * block.depth,
                     block.depth * kBlockColumns, nullptr, 0, 0};
    const int64_t key = head_ * n_.t + start_;
    block.columns = {run_.packed.key_scales.get() + key, nullptr, 0, 1, run_.packed.key_sums.get() + key, 0,
                     run_.constants.zeros.data()};
    multiply(block);
  }

  // The bytes of the weights of rows: high ones, and low ones `rows_` rows later.
  void soften(int64_t first_row, int64_t count) {
    SoftmaxRow rows[kSoftmaxRows];
    for (int64_t i = 0; i < count; ++i) rows[i] = softmax_row(first_row + i);
    isa_.kernels->softmax(rows, count, memory_.factors.get() + first_row);
  }

  // Without keys, all of its scores are -infinity.
  SoftmaxRow softmax_row(int64_t i) {
    const int64_t row = token(i), first = std::max(run_.window.first(row), start_),
                  end = std::min(run_.window.end(row, n_.t), start_ + cols_);
    const int64_t count = std::max<int64_t>(end - first, 0), offset = count == 0 ? 0 : first - start_,
                  padded = std::max(round_up(count, kSoftmaxUnit), kSoftmaxUnit);
    float* const scores = memory_.scores.get() + i * stride_ + offset;
    std::fill(scores + count, scores + padded, -kInfinity);
    uint8_t *const high = memory_.bytes.get() + i * stride_, *const low = high + rows_ * stride_;
    for (uint8_t* const bytes : {high, low}) {
      std::memset(bytes, 0, static_cast<size_t>(offset));
      std::memset(bytes + offset + padded, 0, static_cast<size_t>(stride_ - offset - padded));
    }
    const int64_t key = count == 0 ? 0 : first;
    const float* const bias = run_.bias.data + batch_ * run_.bias.strides[0] + head_of(i) * run_.bias.strides[1] +
                              row * run_.bias.strides[2] + key * run_.bias.strides[3];
    const float* const value_factors = run_.packed.factors.get() + head_ * run_.packed.factors_size + key;
    return {scores, bias,          value_factors, run_.bias.strides[3] != 0, run_.cap, run_.least_added, count,
            padded, high + offset, low + offset};
  }

  void add_values() {
    float* const sums = memory_.sums.get();
    ProductBlock block = product(2 * rows_, n_.e, cols_, sums, n_.e);
    CodeAddress codes = {memory_.bytes.get(), stride_};
    if (uses_tiles(block.rows))
      codes = in_tiles(block.rows, block.depth, memory_.codes.get(),
                       [&](int64_t i) { return memory_.bytes.get() + i * stride_; });
    block.codes = {codes.data, codes.stride, run_.constants.ones.data(), run_.constants.no_zero_points.data(), 1,
                   nullptr,    false};
    block.weights = {run_.packed.values.get() + head_ * run_.packed.value_size + start_ * kBlockColumns,
                     round_up(n_.t, kQuad) * kBlockColumns, nullptr, 0, 0};
    block.columns = {run_.constants.ones.data(), nullptr, 0, 1, run_.constants.no_zero_points.data(), 0,
                     run_.constants.zeros.data()};
    multiply(block);
    const bool in_place = run_.of_dst.of_element == 1 && run_.storage.narrow == nullptr;
    for (int64_t i = 0; i < rows_; ++i) {
      const float factor = memory_.factors[i];
      float *const high = sums + i * n_.e, *const low = high + rows_ * n_.e;
      float* const to = in_place ? static_cast<float*>(run_.dst) + dst_index(i) : high;
      if (run_.zero_rows && factor != factor)
        std::memset(static_cast<void*>(to), 0, static_cast<size_t>(n_.e) * sizeof *to);
      else
        add_bytes(high, low, factor, n_.e, to);
      if (!in_place) put(i, high);
    }
  }

  int64_t dst_index(int64_t i) const { return run_.of_dst.at(batch_, head_of(i), token(i)); }

  // Writes a row of the result.
  void put(int64_t i, const float* from) const {
    const int64_t at = dst_index(i), stride = run_.of_dst.of_element;
    void* const to = element(run_.dst, run_.storage, at);
    if (stride != 1) {
      for (int64_t j = 0; j < n_.e; ++j) {
        void* const each = element(run_.dst, run_.storage, at + j * stride);
        if (run_.storage.narrow == nullptr)
          store(static_cast<float*>(each), from[j]);
        else
          run_.storage.narrow(from + j, each, 1);
      }
    } else if (run_.storage.narrow == nullptr) {
      std::memcpy(to, from, static_cast<size_t>(n_.e) * sizeof(float));
    } else {
      run_.storage.narrow(from, to, n_.e);
    }
  }

  const Run& run_;
  const Sizes& n_;
  Workspace& memory_;
  const InstructionSet& isa_;
  const int64_t head_, first_, rows_, repeats_;
  const int64_t batch_, first_head_;   // of query
  int64_t start_, cols_, stride_ = 0;  // keys [start_, start_ + cols_)
};

class QuantizedAttention : public Node {
 public:
  explicit QuantizedAttention(const Attributes& attributes)
      : heads_(attributes.integer("num_heads", 1)),
        key_heads_(attributes.integer("kv_num_heads", 0)),
        query_(layout(attributes, "query_layout")),
        key_(layout(attributes, "key_layout")),
        value_(layout(attributes, "value_layout")),
        dst_(layout(attributes, "dst_layout")),
        before_(attributes.integer("keys_before", -1)),
        after_(attributes.integer("keys_after", -1)),
        ends_together_(read_flag(kName, attributes, "ends_together", false)),
        zero_rows_(read_flag(kName, attributes, "zero_rows", false)) {
    if (heads_ < 1) fail("num_heads is " + std::to_string(heads_) + ", expected 1 or more");
    if (key_heads_ < 0 || (key_heads_ > 0 && heads_ % key_heads_ != 0))
      fail("kv_num_heads is " + std::to_string(key_heads_) + ", expected 0 or a divisor of num_heads, " +
           std::to_string(heads_));
    if (key_heads_ == 0) key_heads_ = heads_;
    for (const int64_t keys : {before_, after_})
      if (keys < -1)
        fail("keys_before or keys_after is " + std::to_string(keys) + ", expected -1, for all keys, or 0 or more");
  }

  void compute(Context& context) const override {
    const Tensor query = context.input(kQuery), key = context.input(kKey), value = context.input(kValue);
    HeadSizes of_query, of_key, of_value;
    read(query, query_, heads_, of_query, "query");
    read(key, key_, key_heads_, of_key, "key");
    read(value, value_, key_heads_, of_value, "value");
    if (of_key.batches != of_query.batches || of_value.batches != of_query.batches || of_key.size != of_query.size ||
        of_value.tokens != of_key.tokens)
      fail("query, key and value have the shapes " + query.shape.text() + ", " + key.shape.text() + " and " +
           value.shape.text() + ", expected the same batch, as many elements in heads of query and key, and as many " +
           "tokens of key and value");
    const Sizes n = {of_query.batches, heads_,        key_heads_,   of_query.tokens,
                     of_key.tokens,    of_query.size, of_value.size};
    if (n.t > kMaxKeys || n.d > kMaxDepth || n.e > kMaxDepth)
      fail("there are " + std::to_string(n.t) + " keys, expected at most " + std::to_string(kMaxKeys) +
           ", and heads of " + std::to_string(std::max(n.d, n.e)) + ", expected at most " + std::to_string(kMaxDepth));
    if (n.d == 0) fail("query has heads without elements, expected one or more");
    const float scale = number(context, kScale, "scale"), cap = number(context, kCap, "softcap"),
                least_added = number(context, kLeastAdded, "least_added");
    if (!(cap >= 0 && cap < kInfinity))
      fail("softcap is " + std::to_string(cap) + ", expected a finite number from 0 on");
    const AttentionBias bias = attention_bias(kName, context.input(kBias), {n.b, n.h, n.s, n.t});
    const HeadSizes of_dst = {n.b, n.h, n.s, n.e};
    const Shape shape = shape_of(of_dst, dst_);
    void* const dst = context.output(0, shape);
    if (shape.elements() == 0) return;
    if (n.t == 0) {  // no keys
      const std::vector<float> numbers(static_cast<size_t>(shape.elements()), zero_rows_ ? 0.0f : kNan);
      put_all(query.type, numbers, dst);
      return;
    }
    run(context, {query, key, value}, {of_query, of_key, of_value}, n, bias, {scale, cap, least_added}, dst);
  }

 private:
  [[noreturn]] static void fail(const std::string& message) { throw Error(std::string(kName) + ": " + message); }

  static HeadLayout layout(const Attributes& attributes, const char* name) {
    return read_encoding(kName, attributes, name, HeadLayout::kTokensFirst);
  }

  static void read(const Tensor& tensor, HeadLayout layout, int64_t heads, HeadSizes& sizes, const char* name) {
    static constexpr const char* kExpected[] = {"[B, T, H * D]", "[B, H, T, D]", "[B, H, D, T]"};
    if (!read_sizes(tensor.shape, layout, heads, sizes))
      fail(std::string(name) + " has shape " + tensor.shape.text() + ", expected " +
           kExpected[static_cast<size_t>(layout)] + " with " + std::to_string(heads) + " heads");
  }

  static float number(Context& context, Input input, const char* name) {
    const Tensor tensor = context.input(input);
    if (tensor.shape.elements() != 1)
      fail(std::string(name) + " has shape " + tensor.shape.text() + ", expected one element");
    return load(static_cast<const float*>(tensor.data));
  }

  static void put_all(Type type, const std::vector<float>& numbers, void* dst) {
    const Storage storage = storage_of(type);
    const auto count = static_cast<int64_t>(numbers.size());
    if (storage.narrow == nullptr)
      std::memcpy(dst, numbers.data(), numbers.size() * sizeof(float));
    else
      storage.narrow(numbers.data(), dst, count);
  }

  struct Numbers {
    float scale, cap, least_added;
  };

  void run(Context& context, const Tensor (&tensors)[3], const HeadSizes (&sizes)[3], const Sizes& n,
           const AttentionBias& bias, const Numbers& numbers, void* dst) const {
    const int64_t unit = active_isa().products->gemm_qc8w_tiles == nullptr ? kRowUnit : kTiledRowUnit;
    const int64_t wanted = kTaskScores / n.t / unit * unit;
    const int64_t rows = std::min(std::clamp<int64_t>(wanted, unit, 96), n.rows());
    const Constants constants(std::max({2 * rows, n.e, n.t}));
    const HeadCodes query(context, tensors[0], sizes[0], query_, kU8);
    const PackedHeads packed(context, HeadCodes(context, tensors[1], sizes[1], key_, kS8),
                             HeadCodes(context, tensors[2], sizes[2], value_, kS8));
    const HeadSizes of_dst = {n.b, n.h, n.s, n.e};
    const Run all = {n,
                     query,
                     packed,
                     constants,
                     bias,
                     numbers.scale,
                     numbers.cap,
                     numbers.least_added,
                     {before_, after_, ends_together_ ? n.t - n.s : 0},
                     zero_rows_,
                     dst,
                     storage_of(tensors[0].type),
                     {of_dst, dst_}};
    const int64_t blocks_of_head = divide_up(n.rows(), rows), blocks = n.b * n.k * blocks_of_head;
    const int64_t blocks_at_once = std::max<int64_t>(kMinScores / (rows * n.t), 1);
    run_tasks(context, divide_up(blocks, blocks_at_once), [&](int64_t task) {
      const TileUse tiles(uses_tiles(rows));
      Workspace memory_of_blocks(n, rows);
      for (int64_t i = task * blocks_at_once, end = std::min(i + blocks_at_once, blocks); i < end; ++i) {
        const int64_t first = i % blocks_of_head * rows;
        Block(all, memory_of_blocks, i / blocks_of_head, first, std::min(rows, n.rows() - first)).compute();
      }
    });
  }

  int64_t heads_, key_heads_;
  HeadLayout query_, key_, value_, dst_;
  int64_t before_, after_;
  bool ends_together_, zero_rows_;
};

// Whether the result has the shape of query, but the last dimension of value.
bool has_shape(const Attributes& attributes) {
  const auto layout = [&](const char* name) { return attributes.integer(name, 0); };
  const int64_t of_dst = layout("dst_layout"), key_heads = attributes.integer("kv_num_heads", 0);
  if (layout("query_layout") != of_dst || layout("value_layout") != of_dst) return false;
  if (of_dst == static_cast<int64_t>(HeadLayout::kTokensFirst))
    return key_heads == 0 || key_heads == attributes.integer("num_heads", 1);
  return of_dst == static_cast<int64_t>(HeadLayout::kHeadsFirst);
}

}  // namespace

Operator quantized_attention() {
  std::vector<Signature> signatures;
  for (const Type type : {kFloat, kFloat16, kBfloat16})
    signatures.push_back({{type, type, type, kFloat, kFloat, kFloat, kFloat}, {type}});
  Operator op = {kName, kInputs, signatures, make_node<QuantizedAttention>, type_of_input<kQuery>};
  op.columns_input = kValue;
  op.has_shape = has_shape;
  return op;
}

}  // namespace dynq
