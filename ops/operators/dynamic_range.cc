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
#include "core/scratch.h"
#include "kernels/dispatch.h"

namespace dynq {
namespace {

constexpr int64_t kLongRow = 4 * kTaskElements;  // longer rows are split into parts
constexpr int64_t kFewRows = 8;                  // unless there are at least this many of them
constexpr int64_t kMostParts = 256;              // of one row

// The input `constants`. ort_dynq/operators/encodings.py has the same fields in the same order, and explains them.
struct RangeConstants {
  float lowest_minimum, highest_maximum;
  float lowest_range, highest_range;
  float divisor, factor;
  float lowest_scale, highest_scale;
  float scale_of_zero;
};
constexpr int64_t kRangeConstants = sizeof(RangeConstants) / sizeof(float);

// ONNX's Clip: NaN stays NaN.
float clip(float value, float low, float high) {
  value = value < low ? low : value;
  return value > high ? high : value;
}

// ONNX Runtime's Cast to uint8 or int8: the low byte of the value as int32; 0 for NaN and for values beyond int32.
uint8_t low_byte(float value) {
  const bool fits = value >= -2147483648.0f && value < 2147483648.0f;
  return fits ? static_cast<uint8_t>(static_cast<int32_t>(value)) : uint8_t{0};
}

struct ScaleAndZeroPoint {
  float scale, zero_point;
};

// Computes a scale and a zero point from a range. Every step is a float32 operation of the chain that the operator
// replaces. If the chain lacks a step, the step's constant makes it the identity.
class ScaleRule {
 public:
  // is_linear: as DynamicQuantizeLinear. The scale of an empty range is 1, and a zero point that is NaN (the scale
  // underflows to 0, or the minimum is infinite) becomes quant_max.
  ScaleRule(const char* op, const Attributes& attributes, bool is_linear)
      : is_linear_(is_linear),
        kind_(read_encoding(op, attributes, "range_kind", RangeKind::kAbsMax)),
        rule_(read_encoding(op, attributes, "zero_point_rule", ZeroPointRule::kNone)),
        inverse_scale_(read_encoding(op, attributes, "inverse_scale", InverseScale::kNone)),
        added_epsilon_(read_encoding(op, attributes, "added_epsilon", AddedEpsilon::kNone)),
        zero_point_before_epsilon_(read_flag(op, attributes, "zero_point_before_epsilon", false)),
        zero_point_type_(read_code_or_float_type(op, attributes, "zero_point_type", kFloat)),
        float16_range_(read_flag(op, attributes, "float16_range", false)),
        float16_scale_(read_flag(op, attributes, "float16_scale", false)) {
    if (inverse_scale_ != InverseScale::kNone && kind_ != RangeKind::kAbsMax)
      throw Error(std::string(op) + ": inverse_scale is " + text_of(inverse_scale_) + " for range_kind " +
                  text_of(kind_) + ", expected range_kind " + text_of(RangeKind::kAbsMax));
    const bool is_symmetric = kind_ == RangeKind::kAbsMax || kind_ == RangeKind::kLargerSide;
    if (is_symmetric && rule_ != ZeroPointRule::kNone)
      throw Error(std::string(op) + ": zero_point_rule is " + text_of(rule_) + " for range_kind " + text_of(kind_) +
                  ", expected " + text_of(ZeroPointRule::kNone));
  }

  bool is_abs_max() const { return kind_ == RangeKind::kAbsMax; }

  // Whether the scale or the zero point depends on the signs of zeros in the range: if both ends are zeros, or if a
  // float zero point is a negated minimum that is zero.
  bool depends_on_signs(const Range& range) const {
    const bool negates = rule_ == ZeroPointRule::kRoundNegated && zero_point_type_ == kFloat;
    return !is_abs_max() && range.low == 0 && (range.high == 0 || negates);
  }
  bool is_linear() const { return is_linear_; }

  ScaleAndZeroPoint apply(const Range& range, const RangeConstants& constants, float quant_min, float quant_max) const {
    float low = range.low, high = range.high;
    if (float16_range_) {
      low = rounded_to_float16(low);
      high = rounded_to_float16(high);
    }
    if (kind_ == RangeKind::kMinMaxWithZero) {
      low = clip(low, constants.lowest_minimum, 0);
      high = clip(high, 0, constants.highest_maximum);
    }
    float span = kind_ == RangeKind::kAbsMax ? high : high - low;
    if (kind_ == RangeKind::kLargerSide) {
      const float above = high / constants.highest_maximum, below = low / constants.lowest_minimum;
      span = below > above || std::isnan(below) ? below : above;
    }
    span = bounded(span, constants.lowest_range, constants.highest_range, AddedEpsilon::kRange);
    if (is_linear_ && span == 0) span = constants.divisor;
    const float divided = (inverse_scale_ == InverseScale::kReciprocal ? 1.0f / span : span) / constants.divisor;
    const float exact =
        inverse_scale_ == InverseScale::kQuotient ? constants.factor / divided : divided * constants.factor;
    const float before_epsilon = float16_scale_ ? rounded_to_float16(exact) : exact;
    float scale = bounded(before_epsilon, constants.lowest_scale, constants.highest_scale, AddedEpsilon::kScale);
    if (scale == 0) scale = constants.scale_of_zero;
    float zero_point = zero_point_of(low, zero_point_before_epsilon_ ? before_epsilon : scale, quant_min, quant_max);
    if (is_linear_ && std::isnan(zero_point)) zero_point = quant_max;
    if (zero_point_type_ == kUint8) zero_point = static_cast<float>(low_byte(zero_point));
    if (zero_point_type_ == kInt8) zero_point = static_cast<float>(static_cast<int8_t>(low_byte(zero_point)));
    return {scale, zero_point};
  }

 private:
  // The value within its bounds. `where` is the value of added_epsilon that adds `low` instead.
  float bounded(float value, float low, float high, AddedEpsilon where) const {
    return added_epsilon_ == where ? clip(value + low, -INFINITY, high) : clip(value, low, high);
  }

  float zero_point_of(float low, float scale, float quant_min, float quant_max) const {
    switch (rule_) {
      case ZeroPointRule::kRoundClipped:
        return round_half_even(clip(quant_min - low / scale, quant_min, quant_max));
      case ZeroPointRule::kSubtractRounded:
        return clip(quant_min - round_half_even(low / scale), quant_min, quant_max);
      case ZeroPointRule::kRoundNegated:
        return clip(round_half_even(-low / scale), quant_min, quant_max);
      case ZeroPointRule::kFloorNegated:
        return std::floor((0.0f - low) / scale);
      case ZeroPointRule::kNone:
        break;
    }
    return 0;
  }

  bool is_linear_;
  RangeKind kind_;
  ZeroPointRule rule_;
  InverseScale inverse_scale_;
  AddedEpsilon added_epsilon_;
  bool zero_point_before_epsilon_;
  Type zero_point_type_;
  bool float16_range_, float16_scale_;
};

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
    const Extremes extremes = rule_.is_abs_max() ? kAbsMax : kMinMax;
    run.range = run.table->ranges[extremes];
    run.range_f16 = src.type == kFloat16 ? run.table->ranges_f16[extremes] : nullptr;
    run.constants = constants;
    run.dst = static_cast<char*>(context.output(0, src.shape));
    run.scales = has_parameter_outputs ? static_cast<float*>(context.output(1, parameters)) : nullptr;
    run.zps = has_parameter_outputs ? context.output(2, parameters) : nullptr;
    if (run.rows == 0) return;
    if (run.cols == 0) {  // the results of ReduceMin and ReduceMax for empty rows
      for (int64_t row = 0; row < run.rows; ++row) parameters_of(run, row, {INFINITY, -INFINITY, NAN});
      return;
    }
    if (run.cols > kLongRow && run.rows < kFewRows)
      for (int64_t row = 0; row < run.rows; ++row) long_row(run, row, context);
    else
      short_rows(run, context);
  }

 private:
  struct Run {
    explicit Run(const Tensor& tensor)
        : src(tensor), is_float16(tensor.type == kFloat16), floats(storage_of(tensor.type)) {}

    const ElementwiseKernels* table = nullptr;
    RangeKernel range = nullptr, range_f16 = nullptr;  // range_f16 may stay null
    RangeConstants constants = {};
    FloatReader src;
    char* dst = nullptr;
    bool is_float16;
    Storage floats;  // of src, and of dst if it has floats
    float* scales = nullptr;
    void* zps = nullptr;
    int64_t rows = 1, cols = 1;
  };

  struct RowParameters {
    float scale, zero_point;
    bool bounded, wraps;
  };

  // Computes the scale and the zero point of a row and writes them to the outputs.
  RowParameters parameters_of(const Run& run, int64_t row, Range range) const {
    if (rule_.depends_on_signs(range)) {
      const float zero = first_zero(run, row);
      range.low = zero;
      if (range.high == 0) range.high = zero;
    }
    const auto [scale, zero_point] =
        rule_.apply(range, run.constants, arithmetic_.quant_min(), arithmetic_.quant_max());
    const float low = rule_.is_abs_max() ? -range.high : range.low;
    const bool bounded = range.not_finite == 0 && arithmetic_.is_bounded(low, range.high, scale, zero_point);
    if (run.scales != nullptr) {
      store(run.scales + row, scale);
      if (!to_codes_)
        store(static_cast<float*>(run.zps) + row, zero_point);
      else
        static_cast<uint8_t*>(run.zps)[row] = arithmetic_.stored_zero_point(low_byte(zero_point));
    }
    return {scale, zero_point, bounded, !bounded && arithmetic_.may_wrap(low, range.high, scale, zero_point)};
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

  // float32 of a row or a part of it.
  struct Buffers {
    Scratch<float, 4096> src, dst;
  };

  // The range of `count` elements from number `first` on.
  static Range range_of(const Run& run, int64_t first, int64_t count, Buffers& buffers) {
    if (run.range_f16 != nullptr) return run.range_f16(run.src.at(first), count);
    return run.range(run.src.read(first, count, buffers.src), count);
  }

  // Quantizes `count` elements from number `first` on.
  void quantize(const Run& run, int64_t first, int64_t count, const RowParameters& parameters, Buffers& buffers) const {
    const bool is_direct =
        run.is_float16 && arithmetic_.takes_float16(*run.table, parameters.bounded, parameters.scale);
    const bool narrows = run.is_float16 && !is_direct && !to_codes_;
    const void* src = is_direct ? run.src.at(first) : run.src.read(first, count, buffers.src);
    void* to = to_codes_ ? run.dst + first : element(run.dst, run.floats, first);
    void* dst = narrows ? buffers.dst.allocate(count) : to;
    arithmetic_.run(*run.table, src, dst, is_direct, count, parameters.scale, parameters.zero_point, parameters.bounded,
                    parameters.wraps);
    if (narrows) run.floats.narrow(dst, to, count);
  }

  void short_rows(const Run& run, Context& context) const {
    const int64_t rows = std::max<int64_t>(1, kTaskElements / run.cols);
    run_tasks(context, (run.rows + rows - 1) / rows, [&](int64_t task) {
      const int64_t last = std::min(run.rows, (task + 1) * rows);
      Buffers buffers;
      for (int64_t row = task * rows; row < last; ++row) {
        const Range range = range_of(run, row * run.cols, run.cols, buffers);
        quantize(run, row * run.cols, run.cols, parameters_of(run, row, range), buffers);
      }
    });
  }

  void long_row(const Run& run, int64_t row, Context& context) const {
    const int64_t parts = part_count(run.cols, kMostParts);
    const auto begin = [&](int64_t part) { return part == parts ? run.cols : run.cols * part / parts / 64 * 64; };
    const auto size = [&](int64_t part) { return begin(part + 1) - begin(part); };
    Range ranges[kMostParts];
    run_tasks(context, parts, [&](int64_t part) {
      Buffers buffers;
      ranges[part] = range_of(run, row * run.cols + begin(part), size(part), buffers);
    });
    // A NaN that is the first element of a part, but not of the row, does not make the range NaN.
    Range range = ranges[0];
    for (int64_t part = 1; part < parts && !std::isnan(range.high); ++part) {
      Range other = ranges[part];
      range.not_finite += other.not_finite;
      if (std::isnan(other.high)) {
        Buffers buffers;
        const float* src = run.src.read(row * run.cols + begin(part), size(part), buffers.src);
        for (int64_t i = 0; i < size(part) && std::isnan(other.high); ++i)
          if (!std::isnan(load(src + i))) other = run.range(src + i, size(part) - i);
      }
      if (other.low < range.low) range.low = other.low;
      if (other.high > range.high) range.high = other.high;
    }
    const RowParameters parameters = parameters_of(run, row, range);
    run_tasks(context, parts, [&](int64_t part) {
      Buffers buffers;
      quantize(run, row * run.cols + begin(part), size(part), parameters, buffers);
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
