// DynamicRangeQuantize, DynamicRangeFakeQuantize: dynamic quantization in one pass. The range of a row gives its scale
// and zero point; the row is quantized (and dequantized) while it is in the cache. The dimensions from `axis` on form a
// row: axis -1 is per token, 0 is per tensor. float16 is computed in float32, in kernels or row by row.
//
// DynamicQuantizeLinear is ONNX's operator; DynamicQuantizeDequantizeLinear is the same, then DequantizeLinear.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "core/affine.h"
#include "core/attributes.h"
#include "core/formats.h"
#include "core/parallel.h"
#include "core/rows.h"
#include "core/scale_rule.h"
#include "core/scratch.h"
#include "kernels/dispatch.h"

namespace dynq {
namespace {

class DynamicRangeQuantize : public Node {
 public:
  DynamicRangeQuantize(const char* name, const Attributes& attributes, bool to_codes, bool is_linear = false)
      : name_(name),
        arithmetic_(name, attributes, to_codes),
        rule_(name, attributes, is_linear),
        rows_(name, attributes),
        to_codes_(to_codes) {}

  void compute(Context& context) const override {
    const Tensor src = context.input(0), constants = context.input(1);
    if (to_codes_ && context.input(2).type != arithmetic_.output_dtype())
      throw Error(std::string(name_) + ": like is " + name_of(context.input(2).type) + ", expected output_dtype, " +
                  name_of(arithmetic_.output_dtype()));
    if (constants.shape.rank != 1 || constants.shape.dims[0] != kRangeConstants)
      throw Error(std::string(name_) + ": constants has shape " + constants.shape.text() + ", expected " +
                  std::to_string(kRangeConstants));
    RangeConstants values;
    std::memcpy(&values, constants.data, sizeof values);
    run(context, src, values, true);
  }

 protected:
  bool to_codes() const { return to_codes_; }

  // has_parameter_outputs: output 1 is the scale, output 2 the zero point.
  void run(Context& context, const Tensor& src, const RangeConstants& constants, bool has_parameter_outputs) const {
    const Rows rows = rows_.rows_of(src.shape);
    Shape parameters = rows.parameters;
    Run run(src);
    run.rows = rows.count;
    run.cols = rows.cols;
    if (rule_.is_linear()) parameters = {};  // one scale without dimensions
    run.table = &active_kernels();
    run.extremes = rule_.is_abs_max() ? kAbsMax : kMinMax;
    run.constants = constants;
    run.dst = static_cast<char*>(context.output(0, src.shape));
    run.scales = has_parameter_outputs ? static_cast<float*>(context.output(1, parameters)) : nullptr;
    run.zps = has_parameter_outputs ? context.output(2, parameters) : nullptr;
    if (run.rows == 0) return;
    if (are_split(run.rows, run.cols))
      for (int64_t row = 0; row < run.rows; ++row) long_row(run, row, context);
    else
      short_rows(run, context);
  }

 private:
  struct Run {
    explicit Run(const Tensor& tensor)
        : src(tensor), is_float16(tensor.type == kFloat16), floats(storage_of(tensor.type)) {}

    const ElementwiseKernels* table = nullptr;
    Extremes extremes = kMinMax;
    RangeConstants constants = {};
    FloatReader src;
    char* dst = nullptr;
    bool is_float16;
    Storage floats;  // of src, and of dst if it has floats
    float* scales = nullptr;
    void* zps = nullptr;
    int64_t rows = 1, cols = 1;
  };

  // Some rows, or a part of one: their ranges and parameters, and memory for their elements as float32.
  struct Batch : RowParameters {
    bool all_finite, all_bounded;
    bool is_finite[kMostRows], is_bounded[kMostRows];  // if not all are
    Scratch<float, kBatchElements> src, dst;
  };

  void short_rows(const Run& run, Context& context) const {
    const int64_t cols = std::max<int64_t>(run.cols, 1), rows = std::max<int64_t>(1, kTaskElements / cols);
    const int64_t together = std::clamp<int64_t>(kBatchElements / cols, 1, kMostRows);
    run_tasks(context, (run.rows + rows - 1) / rows, [&](int64_t task) {
      const int64_t last = std::min(run.rows, (task + 1) * rows);
      Batch batch;
      for (int64_t row = task * rows; row < last; row += together) {
        const int64_t count = std::min(together, last - row);
        find_ranges(run, row, count, batch);
        find_parameters(run, row, count, batch);
        quantize_rows(run, row, count, batch);
      }
    });
  }

  // Finds the ranges of `count` rows from number `row` on.
  static void find_ranges(const Run& run, int64_t row, int64_t count, Batch& batch) {
    const int64_t first = row * run.cols;
    batch.all_finite = run.cols > 0 && find_finite_ranges(run, first, count, batch);
    for (int64_t i = 0; !batch.all_finite && i < count; ++i) {
      const Range empty = {INFINITY, -INFINITY, NAN};  // the results of ReduceMin and ReduceMax
      const Range range = run.cols == 0 ? empty : range_of(run, first + i * run.cols, run.cols, batch);
      batch.low[i] = range.low;
      batch.high[i] = range.high;
      batch.is_finite[i] = range.not_finite == 0;
    }
  }

  // Finds the ranges of `count` rows from element number `first` on, unless one has an element that is not finite.
  static bool find_finite_ranges(const Run& run, int64_t first, int64_t count, Batch& batch) {
    constexpr int64_t kShort = 64;  // longer rows gain from kernels of float16
    if (run.is_float16 && run.cols > kShort && run.table->ranges_f16[run.extremes] != nullptr) return false;
    std::fill_n(batch.low, count, INFINITY);
    std::fill_n(batch.high, count, run.extremes == kAbsMax ? 0.0f : -INFINITY);
    const float* src = run.src.read(first, count * run.cols, batch.src);
    return run.table->row_ranges[run.extremes](src, count, run.cols, run.cols, batch.low, batch.high);
  }

  // Finds the scales and zero points of rows from their ranges, and writes them to the outputs.
  ORT_DYNQ_ONE_COPY void find_parameters(const Run& run, int64_t row, int64_t count, Batch& batch) const {
    if (rule_.may_depend_on_signs(batch, count))
      for (int64_t i = 0; i < count; ++i)
        if (rule_.depends_on_signs(batch.low[i], batch.high[i])) {
          const float zero = first_zero(run, row + i);
          batch.low[i] = zero;
          if (batch.high[i] == 0) batch.high[i] = zero;
        }
    rule_.apply(run.constants, arithmetic_.quant_min(), arithmetic_.quant_max(), count, batch);
    if (rule_.is_abs_max())
      for (int64_t i = 0; i < count; ++i) batch.low[i] = -batch.high[i];
    batch.all_bounded = arithmetic_.find_bounded(batch, count, batch.is_bounded) && batch.all_finite;
    for (int64_t i = 0; !batch.all_finite && i < count; ++i) batch.is_bounded[i] &= batch.is_finite[i];
    if (run.scales == nullptr) return;
    std::memcpy(run.scales + row, batch.scale, static_cast<size_t>(count) * sizeof(float));
    if (to_codes_)
      arithmetic_.store_zero_points(batch.zero_point, count, static_cast<uint8_t*>(run.zps) + row);
    else
      std::memcpy(static_cast<float*>(run.zps) + row, batch.zero_point, static_cast<size_t>(count) * sizeof(float));
  }

  // The first zero of a row: kernels may return any of them.
  static float first_zero(const Run& run, int64_t row) {
    constexpr int64_t kSome = 64;
    Scratch<float, kSome> buffer;
    for (int64_t col = 0; col < run.cols; col += kSome) {
      const int64_t count = std::min(kSome, run.cols - col);
      const float* src = run.src.read(row * run.cols + col, count, buffer);
      for (int64_t i = 0; i < count; ++i)
        if (const float x = load(src + i); x == 0) return x;
    }
    return 0;
  }

  // The range of `count` elements from number `first` on.
  static Range range_of(const Run& run, int64_t first, int64_t count, Batch& batch) {
    const RangeKernel direct = run.is_float16 ? run.table->ranges_f16[run.extremes] : nullptr;
    if (direct != nullptr) return direct(run.src.at(first), count);
    return run.table->ranges[run.extremes](run.src.read(first, count, batch.src), count);
  }

  // Quantizes the rows of a batch: adjacent bounded ones together, which is faster, each other one alone.
  void quantize_rows(const Run& run, int64_t row, int64_t count, Batch& batch) const {
    for (int64_t i = 0, next; i < count; i = next) {
      const bool bounded = batch.all_bounded || batch.is_bounded[i];
      next = batch.all_bounded ? count : i + 1;
      while (bounded && next < count && batch.is_bounded[next]) ++next;
      quantize(run, (row + i) * run.cols, {next - i, run.cols, run.cols}, i, bounded, batch);
    }
  }

  // Quantizes adjacent rows, or a part of one, that begin with element number `first`, as row number `i` of the batch.
  ORT_DYNQ_ONE_COPY void quantize(const Run& run, int64_t first, const Extent& extent, int64_t i, bool bounded,
                                  Batch& batch) const {
    const int64_t count = extent.rows * extent.cols;
    const bool is_direct =
        run.is_float16 && bounded && arithmetic_.takes_float16(*run.table, batch.scale + i, extent.rows);
    const bool narrows = run.is_float16 && !is_direct && !to_codes_;
    const void* src = is_direct ? run.src.at(first) : run.src.read(first, count, batch.src);
    void* to = to_codes_ ? run.dst + first : element(run.dst, run.floats, first);
    void* dst = narrows ? batch.dst.allocate(count) : to;
    arithmetic_.run(*run.table, src, dst, is_direct, extent, batch, i, bounded);
    if (narrows) run.floats.narrow(dst, to, count);
  }

  void long_row(const Run& run, int64_t row, Context& context) const {
    const Parts parts(run.cols);
    Range ranges[kMostParts];
    run_tasks(context, parts.count, [&](int64_t part) {
      Batch batch;
      ranges[part] = range_of(run, row * run.cols + parts.begin(part), parts.size(part), batch);
    });
    // A NaN that is the first element of a part, but not of the row, does not make the range NaN.
    Range range = ranges[0];
    Batch whole;
    for (int64_t part = 1; part < parts.count && !std::isnan(range.high); ++part) {
      Range other = ranges[part];
      range.not_finite += other.not_finite;
      if (std::isnan(other.high)) {
        const float* src = run.src.read(row * run.cols + parts.begin(part), parts.size(part), whole.src);
        for (int64_t i = 0; i < parts.size(part) && std::isnan(other.high); ++i)
          if (!std::isnan(load(src + i))) other = run.table->ranges[run.extremes](src + i, parts.size(part) - i);
      }
      if (other.low < range.low) range.low = other.low;
      if (other.high > range.high) range.high = other.high;
    }
    whole.low[0] = range.low;
    whole.high[0] = range.high;
    whole.all_finite = whole.is_finite[0] = range.not_finite == 0;
    find_parameters(run, row, 1, whole);
    run_tasks(context, parts.count, [&](int64_t part) {
      Batch batch;
      batch.low[0] = whole.low[0];
      batch.high[0] = whole.high[0];
      batch.scale[0] = whole.scale[0];
      batch.zero_point[0] = whole.zero_point[0];
      quantize(run, row * run.cols + parts.begin(part), {1, parts.size(part), parts.size(part)}, 0, whole.all_bounded,
               batch);
    });
  }

  const char* name_;
  AffineArithmetic arithmetic_;
  ScaleRule rule_;
  RowAttributes rows_;
  bool to_codes_;
};

// The attributes of DynamicRangeQuantize that give DynamicQuantizeLinear's formula.
class LinearAttributes : public Attributes {
 public:
  int64_t integer(const char* name, int64_t absent) const override {
    const std::pair<const char*, int64_t> given[] = {
        {"axis", 0},
        {"range_kind", static_cast<int64_t>(RangeKind::kMinMaxWithZero)},
        {"zero_point_rule", static_cast<int64_t>(ZeroPointRule::kRoundClipped)},
        {"zero_point_type", kUint8},
        {"quant_min", 0},
        {"quant_max", 255},
        {"code_type", kUint8},
        {"output_dtype", kUint8},
        {"nan_code", static_cast<int64_t>(NanCode::kQuantMin)}};
    for (const auto& [known, value] : given)
      if (std::strcmp(name, known) == 0) return value;
    return absent;
  }
  std::string text(const char*, const char* absent) const override { return absent; }
  std::vector<int64_t> integers(const char*) const override { return {}; }
};

class LinearNode : public DynamicRangeQuantize {
 public:
  LinearNode(const char* name, bool to_codes) : DynamicRangeQuantize(name, LinearAttributes(), to_codes, true) {}

  void compute(Context& context) const override {
    static constexpr RangeConstants constants = {-INFINITY, INFINITY, 0, INFINITY, 255, 1, 0, INFINITY, 0};
    run(context, context.input(0), constants, to_codes());
  }
};

template <bool kToCodes>
std::unique_ptr<Node> make_linear_node(const Attributes&) {
  return std::make_unique<LinearNode>(kToCodes ? "DynamicQuantizeLinear" : "DynamicQuantizeDequantizeLinear", kToCodes);
}

}  // namespace

Operator dynamic_range_quantize() {
  return {"DynamicRangeQuantize",
          3,
          {{{kFloat, kFloat, kInt8}, {kInt8, kFloat, kInt8}},
           {{kFloat, kFloat, kUint8}, {kUint8, kFloat, kUint8}},
           {{kFloat16, kFloat, kInt8}, {kInt8, kFloat, kInt8}},
           {{kFloat16, kFloat, kUint8}, {kUint8, kFloat, kUint8}}},
          [](const Attributes& attributes) -> std::unique_ptr<Node> {
            return std::make_unique<DynamicRangeQuantize>("DynamicRangeQuantize", attributes, true);
          },
          type_of_input<2>};
}

Operator dynamic_range_fake_quantize() {
  return {"DynamicRangeFakeQuantize",
          2,
          {{{kFloat, kFloat}, {kFloat, kFloat, kFloat}}, {{kFloat16, kFloat}, {kFloat16, kFloat, kFloat}}},
          [](const Attributes& attributes) -> std::unique_ptr<Node> {
            return std::make_unique<DynamicRangeQuantize>("DynamicRangeFakeQuantize", attributes, false);
          },
          type_of_input<0>};
}

Operator dynamic_quantize_linear() {
  return {"DynamicQuantizeLinear",
          1,
          {{{kFloat}, {kUint8, kFloat, kUint8}}, {{kFloat16}, {kUint8, kFloat, kUint8}}},
          make_linear_node<true>,
          [](const Attributes&, const std::vector<Type>&) { return kUint8; }};
}

Operator dynamic_quantize_dequantize_linear() {
  return {"DynamicQuantizeDequantizeLinear",
          1,
          {{{kFloat}, {kFloat}}, {{kFloat16}, {kFloat16}}},
          make_linear_node<false>,
          type_of_input<0>};
}

}  // namespace dynq
