// QuantizedAttention: softmax(query * key^T * scale + bias) * value for each head, with products of integers.
//
// Each row of a head of query, key and value has a scale. The codes of softmax are multiplied by the scales of the rows
// of value, and these weights become codes of 16 bits, in two bytes or, where that is faster, in a word. So a key
// that a mask hides has the code 0 and changes nothing: not even a scale depends on it.
//
// A task computes a block of rows of query, of all heads that share a head of key: their keys are in the caches. It
// leaves out keys that a window hides from all rows of the block, and softmax those that it hides from a row.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "core/attention_block.h"
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
constexpr int64_t kMaxDepth = 4096;     // of a head

enum Input { kQuery, kKey, kValue, kBias, kScale, kCap, kLeastAdded, kInputs };

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
    const AttentionSizes n = {of_query.batches, heads_,        key_heads_,   of_query.tokens,
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

  void run(Context& context, const Tensor (&tensors)[3], const HeadSizes (&sizes)[3], const AttentionSizes& n,
           const AttentionBias& bias, const Numbers& numbers, void* dst) const {
    const int64_t unit = active_isa().products->gemm_qc8w_tiles == nullptr ? kRowUnit : kTiledRowUnit;
    const int64_t wanted = kTaskScores / n.t / unit * unit;
    const int64_t rows = std::min(std::clamp<int64_t>(wanted, unit, 96), n.rows());
    const AttentionConstants constants(std::max({2 * rows, n.e, n.t}));
    const HeadCodes query(context, tensors[0], sizes[0], query_, active_compressed().panels_of_keys ? kS8 : kU8);
    const PackedHeads packed(context, HeadCodes(context, tensors[1], sizes[1], key_, kS8),
                             HeadCodes(context, tensors[2], sizes[2], value_, kS8));
    const HeadSizes of_dst = {n.b, n.h, n.s, n.e};
    const AttentionRun all = {n,
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
      AttentionMemory memory_of_blocks(all, rows);
      for (int64_t i = task * blocks_at_once, end = std::min(i + blocks_at_once, blocks); i < end; ++i) {
        const int64_t first = i % blocks_of_head * rows;
        attend(all, memory_of_blocks, i / blocks_of_head, first, std::min(rows, n.rows() - first));
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
