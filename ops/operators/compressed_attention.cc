// CompressedAttention: softmax(query * key^T * scale + bias) * value, where keys and values are codes of 8 or 4 bits
// with scales of groups along the head and of tokens.
//
// Queries, and the powers of softmax times the scales of the values, become codes of 16 bits ("words"), so that sums of
// products are exact: results depend neither on their order nor on the layout. A unit of work is a block of query rows
// of one head of keys. Few rows read codes as they are stored; for many, heads are packed once.
#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "core/attention_bias.h"
#include "core/compressed_run.h"
#include "core/formats.h"
#include "core/scratch.h"

namespace dynq {
namespace {

constexpr const char* kName = "CompressedAttention";

enum Input {
  kQuery,
  kKey,
  kKeyScale,
  kKeyZeroPoint,
  kValue,
  kValueScale,
  kValueZeroPoint,
  kBias,
  kFactor,
  kKeyOffset,
  kValueOffset,
  kInputs
};

class CompressedAttention : public Node {
 public:
  explicit CompressedAttention(const Attributes& attributes)
      : transposed_key_(flag(attributes, "transposed_key")),
        float_key_(flag(attributes, "float_key")),
        float_value_(flag(attributes, "float_value")),
        scale_query_(flag(attributes, "scale_query")),
        scale_result_(flag(attributes, "scale_result")) {}

  void compute(Context& context) const override {
    Tensor inputs[kInputs];
    for (size_t i = 0; i < kInputs; ++i) inputs[i] = context.input(i);
    const CompressedSizes n = sizes_of(inputs);
    check_type(inputs[kKey], float_key_, "key");
    check_type(inputs[kValue], float_value_, "value");
    for (const auto i : {kKey, kValue}) {
      const Shape &scale = inputs[i + 1].shape, &zero_point = inputs[i + 2].shape,
                  &offset = inputs[i == kKey ? kKeyOffset : kValueOffset].shape;
      if (is_float(inputs[i].type) && (scale.elements() != 1 || zero_point.elements() != 1 || offset.elements() != 1))
        fail("a scale, a zero point and an offset of floats have the shapes " + scale.text() + ", " +
             zero_point.text() + " and " + offset.text() + ", expected one element");
    }
    if (scale_query_ && float_key_) fail("scale_query is 1, expected 0 because float_key is 1");
    if (scale_result_ && float_value_) fail("scale_result is 1, expected 0 because float_value is 1");
    check_parameters(inputs[kKeyScale], inputs[kKeyZeroPoint], inputs[kKeyOffset], n, n.d, transposed_key_, "key");
    check_parameters(inputs[kValueScale], inputs[kValueZeroPoint], inputs[kValueOffset], n, n.e, false, "value");
    if (inputs[kFactor].shape.elements() != 1)
      fail("scale has shape " + inputs[kFactor].shape.text() + ", expected one element");
    const AttentionBias bias = attention_bias(kName, inputs[kBias], {n.b, n.h, n.s, n.t});
    const Shape shape = {4, {n.b, n.h, n.s, n.e}};
    void* const dst = context.output(0, shape);
    if (shape.elements() == 0) return;
    const Storage storage = storage_of(inputs[kQuery].type);
    std::unique_ptr<float[]> memory_of_results;
    std::unique_ptr<char[]> floats[kInputs];  // 16-bit floats as float32
    auto* results = static_cast<float*>(dst);
    if (storage.widen != nullptr) {
      memory_of_results = memory<float>(shape.elements());
      results = memory_of_results.get();
      for (const auto i : {kQuery, kKey, kKeyScale, kKeyOffset, kValue, kValueScale, kValueOffset})
        if (is_float(inputs[i].type)) {
          inputs[i].data = widened(context, inputs[i], floats[i]);
          inputs[i].type = kFloat;
        }
    }
    std::unique_ptr<float[]> queries;
    if (n.s != inputs[kQuery].shape.dims[2]) {
      queries = repeated(static_cast<const float*>(inputs[kQuery].data), n);
      inputs[kQuery].data = queries.get();
    }
    attend(context, inputs, n, bias, results);
    if (storage.narrow != nullptr) narrow(context, storage, results, shape.elements(), dst);
  }

 private:
  static bool is_float(Type type) { return type == kFloat || type == kFloat16 || type == kBfloat16; }

  // One row of each head becomes those of the bias.
  static std::unique_ptr<float[]> repeated(const float* rows, const CompressedSizes& n) {
    std::unique_ptr<float[]> all = memory<float>(n.b * n.h * n.s * n.d);
    for (int64_t i = 0; i < n.b * n.h * n.s; ++i)
      std::memcpy(all.get() + i * n.d, static_cast<const void*>(rows + i / n.s * n.d),
                  static_cast<size_t>(n.d) * sizeof *rows);
    return all;
  }

  void attend(Context& context, const Tensor* inputs, const CompressedSizes& n, const AttentionBias& bias,
              float* dst) const {
    if (n.t == 0) {  // a caller of the C interface need not align dst
      std::memset(static_cast<void*>(dst), 0, static_cast<size_t>(n.b * n.h * n.s * n.e) * sizeof *dst);
      return;
    }
    const CompressedRun run = {n,
                               CompressedOperand(inputs[kKey], inputs[kKeyScale], inputs[kKeyZeroPoint],
                                                 inputs[kKeyOffset], n, n.d, transposed_key_, scale_query_),
                               CompressedOperand(inputs[kValue], inputs[kValueScale], inputs[kValueZeroPoint],
                                                 inputs[kValueOffset], n, n.e, false, scale_result_),
                               bias,
                               load(static_cast<const float*>(inputs[kFactor].data)),
                               static_cast<const float*>(inputs[kQuery].data),
                               dst};
    run_compressed(context, run);
  }

  [[noreturn]] static void fail(const std::string& message) { throw Error(std::string(kName) + ": " + message); }

  static bool flag(const Attributes& attributes, const char* name) {
    const int64_t value = attributes.integer(name, 0);
    if (value != 0 && value != 1) fail(std::string(name) + " is " + std::to_string(value) + ", expected 0 or 1");
    return value == 1;
  }

  static void check_type(const Tensor& tensor, bool is_float, const std::string& name) {
    if (CompressedAttention::is_float(tensor.type) != is_float)
      fail(name + " is " + name_of(tensor.type) + ", expected " + (is_float ? "floats" : "codes") + " because float_" +
           name + " is " + (is_float ? "1" : "0"));
  }

  CompressedSizes sizes_of(const Tensor* inputs) const {
    const Shape &query = inputs[kQuery].shape, &key = inputs[kKey].shape, &value = inputs[kValue].shape;
    const size_t length = transposed_key_ ? 3 : 2;
    for (const Shape* each : {&query, &key, &value})
      if (each->rank != 4)
        fail("query, key and value have the shapes " + query.text() + ", " + key.text() + " and " + value.text() +
             ", expected rank 4");
    const Shape& bias = inputs[kBias].shape;
    const CompressedSizes n = {query.dims[0],    query.dims[1],
                               key.dims[1],      query.dims[2] == 1 && bias.rank == 4 ? bias.dims[2] : query.dims[2],
                               key.dims[length], query.dims[3],
                               value.dims[3]};
    if (key.dims[0] != n.b || value.dims[0] != n.b || value.dims[1] != n.k || value.dims[2] != n.t ||
        key.dims[5 - length] != n.d || (n.k == 0 ? n.h != 0 : n.h % n.k != 0))
      fail("query, key and value have the shapes " + query.text() + ", " + key.text() + " and " + value.text() +
           ", expected [B, H, S, D], " + (transposed_key_ ? "[B, K, D, T]" : "[B, K, T, D]") +
           " and [B, K, T, E], where H is a multiple of K");
    if (n.d == 0) fail("query has heads without elements, expected one or more");
    if (std::max({n.t, n.d, n.e}) > kMaxLength)
      fail("there are " + std::to_string(n.t) + " keys, and heads of " + std::to_string(std::max(n.d, n.e)) +
           ", expected at most " + std::to_string(kMaxLength));
    return n;
  }

  // Scales [B or 1, K or 1, token groups, groups], or with the last dimensions swapped, and zero points and offsets
  // that broadcast to them. Those of floats have one element.
  static void check_parameters(const Tensor& scale, const Tensor& zero_point, const Tensor& offset,
                               const CompressedSizes& n, int64_t size, bool is_transposed, const std::string& name) {
    const size_t groups_axis = is_transposed ? 2 : 3, tokens_axis = 5 - groups_axis;
    int64_t expected[] = {n.b, n.k, n.t, n.t};
    bool fits = scale.shape.rank == 4;
    if (fits) {
      const int64_t groups = scale.shape.dims[groups_axis], token_groups = scale.shape.dims[tokens_axis];
      fits = groups > 0 && size % groups == 0 && (token_groups > 0 ? n.t % token_groups == 0 : n.t == 0);
      expected[groups_axis] = groups;
      expected[tokens_axis] = token_groups;
      for (size_t i = 0; i < 2; ++i) fits = fits && (scale.shape.dims[i] == expected[i] || scale.shape.dims[i] == 1);
    }
    if (!fits)
      fail(name + "_scale has shape " + scale.shape.text() + ", expected rank 4: " + std::to_string(n.b) + " or 1, " +
           std::to_string(n.k) + " or 1, then divisors of " + std::to_string(n.t) + " and " + std::to_string(size) +
           (is_transposed ? ", in the other order" : ""));
    const auto check = [&](const Shape& shape, const char* what) {
      fits = shape.rank == 4;
      for (size_t i = 0; fits && i < 4; ++i) fits = shape.dims[i] == expected[i] || shape.dims[i] == 1;
      if (!fits)
        fail(name + what + " has shape " + shape.text() + ", expected rank 4, and dimensions of " + name +
             "_scale, or 1");
    };
    check(zero_point.shape, "_zero_point");
    check(offset.shape, "_offset");
  }

  bool transposed_key_, float_key_, float_value_, scale_query_, scale_result_;
};

}  // namespace

Operator compressed_attention() {
  std::vector<Signature> signatures;
  for (const Type type : {kFloat, kFloat16, kBfloat16}) {
    const Type operands[] = {kUint8, kInt8, kUint4, kInt4, type};
    for (const Type key : operands)
      for (const Type value : operands)
        if (key != type || value != type)
          signatures.push_back({{type, key, type, key, value, type, value, kFloat, kFloat, type, type}, {type}});
  }
  Operator op = {kName, kInputs, signatures, make_node<CompressedAttention>, type_of_input<kQuery>};
  op.columns_input = kValue;
  return op;
}

}  // namespace dynq
