// QuantizedExperts: a mixture of experts with quantized weights. Each token goes through the experts that its router
// chooses: a product, an activation function, and another product.
//
// The products are those of QuantizedMatMul, for the rows of each expert: an expert that no token chooses is not read.
// Experts of few rows run their tasks together. A token adds its experts' results in the order of the experts, on any
// number of threads.
#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "core/attributes.h"
#include "core/formats.h"
#include "core/nested.h"
#include "core/parallel.h"
#include "core/program.h"
#include "core/rounding.h"
#include "core/scratch.h"
#include "core/sums.h"
#include "kernels/dispatch.h"
#include "kernels/numbers.h"
#include "kernels/programs.h"
#include "kernels/scalar.h"

namespace dynq {

Operator quantized_matmul();
Operator two_term_quantize();

namespace {

#include "kernels/functions-inl.h"

constexpr const char* kName = "QuantizedExperts";
constexpr int64_t kRowsAtOnce = 256;  // of experts: their results stay in the caches
constexpr size_t kExpertsAtOnce = 8;
constexpr int64_t kReading = 2;  // products that take as long as reading a weight
// Products of experts with one task each that run together: 10 us on a Zen 5 (family 26, model 2).
constexpr int64_t kMinWork = 1 << 21;
constexpr float kMinWeight = 1e-8f;  // experts with smaller weights are left out
// The formula of DynamicQuantizeLinear, for each row or block.
constexpr const char* kQuantization =
    "low = Clip(ReduceMin(x), -inf, 0.0); high = Clip(ReduceMax(x), 0.0, inf); step = Div(Sub(high, low), 255.0); "
    "s = Where(Equal(step, 0.0), 1.0, step); z = Uint8(Clip(Sub(0.0, Div(low, s)), 0.0, 255.0)); "
    "codes = Add(Round(Div(x, s)), z); scale = s; zero_point = z";

enum Input {
  kSrc,
  kRouter,
  kRouterWeight,
  kWeight1,
  kWeightZeroPoint1,
  kColumnScale1,
  kBias1,
  kWeight2,
  kWeightZeroPoint2,
  kColumnScale2,
  kBias2,
  kInputs
};

// e^x for x up to 0, not below 2^-126.
float power_of_e(float x) {
  const float y = x * 1.44269502162933349609375f;
  return power_of_2<Scalar>(Scalar::max(-126.0f, Scalar::min(0.0f, y)));
}

Shape shape_of(std::initializer_list<int64_t> dims) {
  Shape shape;
  for (const int64_t length : dims) shape.dims[shape.rank++] = length;
  return shape;
}

// Codes of rows of `depth` elements, in groups with a scale each. Two terms have no zero points.
struct Codes {
  Codes(int64_t most_rows, int64_t depth, int64_t groups_, int64_t terms_)
      : width(depth * terms_),
        groups(groups_),
        terms(terms_),
        codes(most_rows * width),
        scales(most_rows * groups),
        zps(terms == 1 ? most_rows * groups : 1) {
    if (terms == 2) zps[0] = 0;
  }

  int64_t width;  // of a row
  int64_t groups, terms;
  AlignedArray<uint8_t> codes;
  AlignedArray<float> scales;
  AlignedArray<uint8_t> zps;

  Type type() const { return terms == 1 ? kUint8 : kInt8; }

  // Of `rows` rows from row `first` on.
  Tensor codes_of(int64_t first, int64_t rows) const {
    return {type(), shape_of({rows, width}), codes.get() + first * width};
  }
  Tensor scales_of(int64_t first, int64_t rows) const {
    return {kFloat, shape_of({rows, groups}), scales.get() + first * groups};
  }
  Tensor zps_of(int64_t first, int64_t rows) const {
    if (terms == 2) return {kInt8, shape_of({1}), zps.get()};
    return {kUint8, shape_of({rows, groups}), zps.get() + first * groups};
  }
};

// The weights of one product of all experts.
struct Weights {
  Tensor packed, zps, scales, bias;
  int64_t depth, groups, columns;

  // The tensors of one expert; `more` are the dimensions without that of the experts.
  static Tensor of_expert(const Tensor& all, int64_t expert) {
    if (all.shape.rank < 2) return all;  // one zero point
    Tensor one = all;
    one.shape.rank = all.shape.rank - 1;
    std::copy_n(all.shape.dims + 1, one.shape.rank, one.shape.dims);
    one.data = static_cast<const char*>(all.data) + expert * one.shape.elements() * bits_of(all.type) / 8;
    return one;
  }
};

// The tokens of each expert, in ascending order: those of expert e begin at number starts[e].
struct Routes {
  std::vector<int64_t> starts, tokens;
  std::vector<float> weights;
};

class QuantizedExperts : public Node {
 public:
  explicit QuantizedExperts(const Attributes& attributes)
      : k_(attributes.integer("k", 1)),
        normalizes_(read_flag(kName, attributes, "normalize", false)),
        bits_(read_one_of(kName, attributes, "bits", 8, {{8, nullptr}, {4, nullptr}})),
        terms_(read_one_of(kName, attributes, "terms", 1, {{1, nullptr}, {2, nullptr}})),
        group_size_(read_group_size(kName, attributes)),
        activation_(kName, attributes.text("program", kIdentityProgram), 1, kInt8),
        quantization_(kName, kQuantization, 0, kUint8) {
    if (k_ < 1) fail("k is " + std::to_string(k_) + ", expected at least 1");
    if (!activation_.is_elementwise())
      fail("program computes more than dst from each element, expected no reductions and no other output");
    const OperandForm form = activation_.form(0);
    if (form != OperandForm::kUnused && form != OperandForm::kTensor)
      fail("program has an operand that is not tensor1, expected x and tensor1");
    is_gated_ = form == OperandForm::kTensor;
    two_terms_ = two_term_quantize().create(IntegerAttributes({{"block_size", group_size_}}));
    product_ = quantized_matmul().create(IntegerAttributes(
        {{"bits", bits_}, {"group_size", group_size_}, {"terms", terms_}, {"scale_order", kColumnFirst}}));
  }

  void compute(Context& context) const override {
    const Tensor src = context.input(kSrc), router = context.input(kRouter);
    if (src.shape.rank == 0 || src.shape.dims[src.shape.rank - 1] == 0)
      fail("src has shape " + src.shape.text() + ", expected one element or more in the last dimension");
    const int64_t hidden = src.shape.dims[src.shape.rank - 1], tokens = src.shape.elements() / hidden;
    const int64_t experts = router.shape.rank == 0 ? 0 : router.shape.dims[router.shape.rank - 1];
    if (experts < k_ || router.shape.elements() != tokens * experts)
      fail("router has shape " + router.shape.text() + ", expected " + std::to_string(tokens) +
           " rows, one for each token, of " + std::to_string(k_) + " experts or more");
    const Tensor bias = context.input(kBias1);
    const int64_t columns = bias.shape.rank == 2 ? bias.shape.dims[1] : 0;
    if (columns == 0 || (is_gated_ && columns % 2 != 0))
      fail("bias_1 has shape " + bias.shape.text() + ", expected [experts, N]" +
           (is_gated_ ? ", N a multiple of 2" : ""));
    const int64_t inner = is_gated_ ? columns / 2 : columns;
    const Weights first = weights(context, kWeight1, experts, hidden, columns);
    const Weights second = weights(context, kWeight2, experts, inner, hidden);
    void* const dst = context.output(0, src.shape);
    if (tokens == 0) return;
    const Routes routes = find_routes(context, router, context.input(kRouterWeight), tokens, experts);
    const Codes all(tokens, hidden, first.groups, terms_);
    quantize(context, src, tokens, all);
    const Buffers buffers(std::min(kRowsAtOnce, routes.starts.back()), first, second, terms_);
    const Storage storage = storage_of(src.type);
    const bool is_wide = storage.narrow == nullptr;
    const AlignedArray<float> sums(is_wide ? 0 : tokens * hidden);
    float* const to = is_wide ? static_cast<float*>(dst) : sums.get();
    std::memset(to, 0, static_cast<size_t>(tokens * hidden) * sizeof(float));
    std::vector<Part> parts;
    int64_t rows = 0, at = 0;  // of all parts
    const auto finish = [&] {
      if (rows > 0) run_parts(context, all, routes, at, rows, parts, first, second, buffers, to);
      parts.clear();
      at += rows;
      rows = 0;
    };
    for (int64_t expert = 0; expert < experts; ++expert) {
      int64_t left = routes.starts[static_cast<size_t>(expert) + 1] - routes.starts[static_cast<size_t>(expert)];
      while (left > 0) {
        const int64_t count = std::min(left, kRowsAtOnce);
        if (rows + count > kRowsAtOnce || parts.size() == kExpertsAtOnce) finish();
        parts.push_back({expert, rows, count});
        rows += count;
        left -= count;
      }
    }
    finish();
    if (is_wide) return;
    const int64_t tasks = part_count(tokens * hidden, tokens);
    run_tasks(context, tasks, [&](int64_t task) {
      const int64_t begin = tokens * task / tasks * hidden, count = tokens * (task + 1) / tasks * hidden - begin;
      storage.narrow(to + begin, element(dst, storage, begin), count);
    });
  }

 private:
  // Rows of one expert.
  struct Part {
    int64_t expert, first, rows;
  };

  // What the rows of some experts need.
  struct Buffers {
    Buffers(int64_t rows, const Weights& first, const Weights& second, int64_t terms)
        : src(rows, first.depth, first.groups, terms),
          activated(rows, second.depth, second.groups, terms),
          sums(rows * first.columns),
          values(rows * second.depth),
          results(rows * second.columns) {}

    Codes src, activated;
    AlignedArray<float> sums, values, results;
  };

  [[noreturn]] static void fail(const std::string& message) { throw Error(std::string(kName) + ": " + message); }

  Weights weights(Context& context, size_t first, int64_t experts, int64_t depth, int64_t columns) const {
    const std::string number = first == kWeight1 ? "_1" : "_2";
    Weights found = {context.input(first),
                     context.input(first + 1),
                     context.input(first + 2),
                     context.input(first + 3),
                     depth,
                     1,
                     columns};
    if (group_size_ > 0) {
      if (depth % group_size_ != 0)
        fail("group_size is " + std::to_string(group_size_) + ", expected a divisor of the rows of weight" + number +
             ", " + std::to_string(depth));
      found.groups = depth / group_size_;
    }
    const int64_t unit = kQuad * 8 / bits_, blocks = round_up(columns, kBlockColumns) / kBlockColumns;
    const Shape packed = shape_of({experts, blocks, round_up(depth, unit) / unit, kBlockColumns, kQuad});
    const Shape of_columns = shape_of({experts, found.groups, columns});
    check("weight" + number, found.packed, packed);
    check("column_scale" + number, found.scales, of_columns);
    check("bias" + number, found.bias, shape_of({experts, columns}));
    if (found.zps.shape.elements() == 1)
      found.zps.shape = shape_of({1});
    else
      check("weight_zero_point" + number, found.zps, of_columns);
    const bool is_symmetric =
        bits_ == 8 && found.zps.shape.elements() == 1 && *static_cast<const int8_t*>(found.zps.data) == 0;
    const int64_t length = depth / found.groups, longest = longest_sum(is_symmetric);
    if (length > longest)
      fail("sums of " + std::to_string(length) + " products with weight" + number +
           " may overflow int32, expected at most " + std::to_string(longest));
    return found;
  }

  static void check(const std::string& name, const Tensor& tensor, const Shape& expected) {
    if (!(tensor.shape == expected)) fail(name + " has shape " + tensor.shape.text() + ", expected " + expected.text());
  }

  Routes find_routes(Context& context, const Tensor& router, const Tensor& given, int64_t tokens,
                     int64_t experts) const {
    const bool has_weights = given.shape.elements() != 0;
    if (has_weights && given.shape.elements() != tokens * experts)
      fail("router_weight has shape " + given.shape.text() + ", expected that of router, " + router.shape.text() +
           ", or no elements");
    const AlignedArray<int64_t> chosen(tokens * k_);
    const AlignedArray<float> weights(tokens * k_);
    const FloatReader scores_reader(router), weights_reader(has_weights ? given : router);
    const int64_t parts = part_count(tokens * experts * k_, tokens);
    run_tasks(context, parts, [&](int64_t part) {
      Scratch<float, 256> scores_memory, weights_memory;
      const AlignedArray<float> scores(experts);
      const AlignedArray<bool> is_chosen(experts);
      for (int64_t token = tokens * part / parts; token < tokens * (part + 1) / parts; ++token) {
        const float* read = scores_reader.read(token * experts, experts, scores_memory);
        for (int64_t i = 0; i < experts; ++i) {
          const float score = load(read + i);
          scores[i] = score != score ? -INFINITY : score;
        }
        std::fill_n(is_chosen.get(), experts, false);
        choose(scores.get(), experts, is_chosen.get(), chosen.get() + token * k_, weights.get() + token * k_);
        const float* of_token = has_weights ? weights_reader.read(token * experts, experts, weights_memory) : nullptr;
        weigh(of_token, chosen.get() + token * k_, weights.get() + token * k_);
      }
    });

    Routes routes;
    routes.starts.assign(static_cast<size_t>(experts) + 1, 0);
    const auto counts = [&](int64_t i) { return weights[i] > kMinWeight; };
    for (int64_t i = 0; i < tokens * k_; ++i)
      if (counts(i)) ++routes.starts[static_cast<size_t>(chosen[i]) + 1];
    for (size_t e = 0; e < static_cast<size_t>(experts); ++e) routes.starts[e + 1] += routes.starts[e];
    routes.tokens.resize(static_cast<size_t>(routes.starts.back()));
    routes.weights.resize(routes.tokens.size());
    std::vector<int64_t> next = routes.starts;
    for (int64_t i = 0; i < tokens * k_; ++i) {
      if (!counts(i)) continue;
      const auto at = static_cast<size_t>(next[static_cast<size_t>(chosen[i])]++);
      routes.tokens[at] = i / k_;
      routes.weights[at] = weights[i];
    }
    return routes;
  }

  // The k experts with the highest scores, in descending order; of equal scores, the last one.
  void choose(const float* scores, int64_t experts, bool* is_chosen, int64_t* chosen, float* of_chosen) const {
    for (int64_t rank = 0; rank < k_; ++rank) {
      int64_t best = 0;
      for (int64_t i = 1; i < experts; ++i)
        if (!is_chosen[i] && (is_chosen[best] || scores[i] >= scores[best])) best = i;
      is_chosen[best] = true;
      chosen[rank] = best;
      of_chosen[rank] = scores[best];
    }
  }

  // Makes weights of the scores of the chosen experts: those that are given, or softmax.
  void weigh(const float* given, const int64_t* chosen, float* weights) const {
    const float highest = weights[0];
    float sum = 0;
    for (int64_t i = 0; i < k_; ++i) {
      weights[i] = given != nullptr ? load(given + chosen[i]) : power_of_e(weights[i] - highest);
      sum += weights[i];
    }
    if (given != nullptr && !normalizes_) return;
    const float inverse = sum == 0 ? 0.0f : 1.0f / sum;
    for (int64_t i = 0; i < k_; ++i) weights[i] *= inverse;
  }

  // Quantizes rows of codes.width / terms elements.
  void quantize(Context& context, const Tensor& src, int64_t rows, const Codes& to) const {
    const int64_t depth = to.width / to.terms;
    if (terms_ == 2) {
      Inner inner(context, {{src.type, shape_of({rows, depth}), src.data}}, {to.codes.get(), to.scales.get()});
      two_terms_->compute(inner);
      return;
    }
    ProgramTensors tensors = {};
    tensors.rows = rows * to.groups;
    tensors.cols = tensors.src_stride = tensors.dst_stride = tensors.operand_stride = depth / to.groups;
    tensors.src = src.data;
    tensors.src_type = tensors.dst_type = src.type;
    tensors.outputs[static_cast<size_t>(ProgramOutput::kCodes)] = to.codes.get();
    tensors.outputs[static_cast<size_t>(ProgramOutput::kScale)] = to.scales.get();
    tensors.outputs[static_cast<size_t>(ProgramOutput::kZeroPoint)] = to.zps.get();
    quantization_.run_all(tensors, context);
  }

  // Rows [at, at + rows) of the routes, which are those of the parts.
  void run_parts(Context& context, const Codes& all, const Routes& routes, int64_t at, int64_t rows,
                 const std::vector<Part>& parts, const Weights& first, const Weights& second, const Buffers& buffers,
                 float* dst) const {
    const int64_t* tokens = routes.tokens.data() + at;
    for (int64_t i = 0; i < rows; ++i) {
      const auto copy = [&](auto& to, const auto& from, int64_t width) {
        std::memcpy(to.get() + i * width, from.get() + tokens[i] * width, static_cast<size_t>(width) * sizeof(to[0]));
      };
      copy(buffers.src.codes, all.codes, all.width);
      copy(buffers.src.scales, all.scales, all.groups);
      if (terms_ == 1) copy(buffers.src.zps, all.zps, all.groups);
    }
    multiply(context, buffers.src, parts, first, buffers.sums.get());
    activate(context, rows, first.columns, second.depth, buffers);
    const Tensor values = {kFloat, shape_of({rows, second.depth}), buffers.values.get()};
    quantize(context, values, rows, buffers.activated);
    multiply(context, buffers.activated, parts, second, buffers.results.get());
    const int64_t hidden = second.columns, tasks = part_count(rows * hidden, hidden);
    run_tasks(context, tasks, [&](int64_t task) {
      const int64_t begin = hidden * task / tasks, end = hidden * (task + 1) / tasks;
      for (int64_t i = 0; i < rows; ++i) {
        const float weight = routes.weights[static_cast<size_t>(at + i)];
        const float* from = buffers.results.get() + i * hidden;
        float* to = dst + tokens[i] * hidden;
        for (int64_t j = begin; j < end; ++j) store(to + j, load(to + j) + weight * from[j]);
      }
    });
  }

  void multiply(Context& context, const Codes& codes, const std::vector<Part>& parts, const Weights& weights,
                float* dst) const {
    const Tensor no_sums = {kInt32, shape_of({0, weights.columns}), nullptr};
    int64_t work = 0;  // in products
    for (const Part& part : parts) work += (part.rows * terms_ + kReading) * weights.depth * weights.columns;
    const bool has_many = parts.size() > 1 && work >= kMinWork;
    const Together together(context, parts.size(), has_many, [&](size_t i, Context& outer) {
      const Part& part = parts[i];
      Inner inner(outer,
                  {codes.codes_of(part.first, part.rows), codes.scales_of(part.first, part.rows),
                   codes.zps_of(part.first, part.rows), Weights::of_expert(weights.packed, part.expert),
                   Weights::of_expert(weights.zps, part.expert), Weights::of_expert(weights.scales, part.expert),
                   no_sums, Weights::of_expert(weights.bias, part.expert)},
                  {dst + part.first * weights.columns});
      product_->compute(inner);
    });
  }

  void activate(Context& context, int64_t rows, int64_t columns, int64_t inner, const Buffers& buffers) const {
    ProgramTensors tensors = {};
    tensors.rows = rows;
    tensors.cols = tensors.dst_stride = inner;
    tensors.src_stride = tensors.operand_stride = columns;
    tensors.src = buffers.sums.get();
    tensors.operands[0] = buffers.sums.get() + columns - inner;
    tensors.operand_rows[0] = 1;
    tensors.src_type = tensors.dst_type = kFloat;
    tensors.outputs[static_cast<size_t>(ProgramOutput::kDst)] = buffers.values.get();
    activation_.run_all(tensors, context);
  }

  int64_t k_;
  bool normalizes_, is_gated_;
  int64_t bits_, terms_, group_size_;
  Program activation_, quantization_;
  std::unique_ptr<Node> two_terms_, product_;
};

}  // namespace

Operator quantized_experts() {
  Operator op = {kName, kInputs, {}, make_node<QuantizedExperts>, type_of_input<kSrc>};
  for (const Type src : {kFloat, kFloat16})
    for (const Type scale : {kFloat, kFloat16})
      op.signatures.push_back({{src, src, src, kInt8, kInt8, scale, kFloat, kInt8, kInt8, scale, kFloat}, {src}});
  return op;
}

}  // namespace dynq
