// DynamicRangeQuantize and DynamicRangeFakeQuantize: whole chains, from the float tensor through the range of each row to its scale
// and zero point and on to codes, or back to floats, while the row is in the cache.
//
// A row is what the dimensions from `axis` on hold together: -1 is per token, 0 per tensor.
//
// DynamicQuantizeDequantizeLinear is the same for ONNX's DynamicQuantizeLinear and a DequantizeLinear behind it.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "operators/affine.h"
#include "operators/operators.h"

namespace dynq {
namespace {

constexpr int64_t kTaskElements = 32768;         // as in layout.cc
constexpr int64_t kLongRow = 4 * kTaskElements;  // longer ones are shared out, in two passes
constexpr int64_t kMostParts = 256;              // of one row

enum RangeKind { kMagnitude, kMinMax, kMinMaxZero, kLargerSide, kRangeKinds };
enum ZeroPointForm { kNoZeroPoint, kRoundClipped, kSubtractRounded, kRoundNegated, kFloorNegated, kZeroPointForms };

// How a scale and a zero point follow from a range. Every step is a float32 operation of the chain it stands for;
// steps that a chain does not have leave the value as it is (a factor of 1, an epsilon of 0).
class Recipe {
 public:
  // is_linear: as DynamicQuantizeLinear has it, a range of nothing has the scale 1, and a zero point that is NaN (a
  // scale too small for a float, an infinite minimum) becomes the highest.
  Recipe(const char* op, const Attributes& attributes, bool is_linear)
      : op_(op),
        is_linear_(is_linear),
        kind_(static_cast<RangeKind>(checked(attributes, "range_kind", kRangeKinds))),
        form_(static_cast<ZeroPointForm>(checked(attributes, "zero_point_rule", kZeroPointForms))),
        inverse_(checked(attributes, "inverse_scale", 2) != 0),
        zero_point_before_epsilon_(checked(attributes, "zero_point_before_epsilon", 2) != 0),
        zero_point_type_(static_cast<Type>(attributes.integer("zero_point_type", kFloat))) {
    if (zero_point_type_ < kFloat || zero_point_type_ > kInt8)
      throw Error(std::string(op) + ": zero_point_type is " + std::to_string(zero_point_type_) +
                  ", expected 1 (float32), 2 (uint8) or 3 (int8)");
    if (inverse_ && kind_ != kMagnitude)
      throw Error(std::string(op) + ": inverse_scale is 1 for range_kind " + std::to_string(kind_) + ", expected range_kind 0");
    if ((kind_ == kMagnitude || kind_ == kLargerSide) && form_ != kNoZeroPoint)
      throw Error(std::string(op) + ": zero_point_rule is " + std::to_string(form_) +
                  ", expected 0 for a range that is symmetric");
  }

  bool is_magnitude() const { return kind_ == kMagnitude; }

  // ONNX Runtime's Cast to uint8 or int8: truncated to int32, of which the low byte is kept; NaN and what is beyond
  // int32 gives 0.
  static uint8_t low_byte(float value) {
    const bool fits = value >= -2147483648.0f && value < 2147483648.0f;
    return fits ? static_cast<uint8_t>(static_cast<int32_t>(value)) : uint8_t{0};
  }

  // Each bound is an epsilon, or the end of the floats: a Clip without a maximum takes infinity to the largest float.
  struct Constants {
    float lowest_minimum, highest_maximum;
    float least_range, most_range;
    float divisor, factor;
    float least_scale, most_scale;
    float scale_of_zero;
  };
  static constexpr int64_t kConstants = sizeof(Constants) / sizeof(float);

  void apply(const float range[3], const Constants& constants, const AffineArithmetic& arithmetic, float* scale,
             float* zero_point) const {
    float low = range[0], high = range[1];
    if (kind_ == kMinMaxZero) {
      low = clip(low, constants.lowest_minimum, 0);
      high = clip(high, 0, constants.highest_maximum);
    }
    float span = kind_ == kMagnitude ? high : high - low;
    if (kind_ == kLargerSide) {
      const float above = high / constants.highest_maximum, below = low / constants.lowest_minimum;
      span = below > above || std::isnan(below) ? below : above;
    }
    span = clip(span, constants.least_range, constants.most_range);
    if (is_linear_ && span == 0) span = constants.divisor;
    const float before_epsilon = (inverse_ ? 1.0f / span : span) / constants.divisor * constants.factor;
    *scale = clip(before_epsilon, constants.least_scale, constants.most_scale);
    if (*scale == 0) *scale = constants.scale_of_zero;
    *zero_point = zero_point_of(low, zero_point_before_epsilon_ ? before_epsilon : *scale, arithmetic.quant_min(),
                                arithmetic.quant_max());
    if (is_linear_ && std::isnan(*zero_point)) *zero_point = arithmetic.quant_max();
    if (zero_point_type_ != kFloat) *zero_point = cast(*zero_point, zero_point_type_);
  }

 private:
  // ONNX's Clip: a NaN stays one.
  static float clip(float value, float low, float high) {
    value = value < low ? low : value;
    return value > high ? high : value;
  }

  float zero_point_of(float low, float scale, float quant_min, float quant_max) const {
    float value = 0;
    switch (form_) {
      case kRoundClipped:
        value = std::nearbyint(clip(quant_min - low / scale, quant_min, quant_max));
        break;
      case kSubtractRounded:
        value = clip(quant_min - std::nearbyint(low / scale), quant_min, quant_max);
        break;
      case kRoundNegated:
        value = clip(std::nearbyint(-low / scale), quant_min, quant_max);
        break;
      case kFloorNegated:
        value = std::floor((0.0f - low) / scale);
        break;
      default:
        break;
    }
    return value;
  }

  static float cast(float value, Type type) {
    const uint8_t byte = low_byte(value);
    return type == kUint8 ? static_cast<float>(byte) : static_cast<float>(static_cast<int8_t>(byte));
  }

  int64_t checked(const Attributes& attributes, const char* name, int64_t count) const {
    const int64_t value = attributes.integer(name, 0);
    if (value < 0 || value >= count)
      throw Error(std::string(op_) + ": " + name + " is " + std::to_string(value) + ", expected 0 to " +
                  std::to_string(count - 1));
    return value;
  }

  const char* op_;
  bool is_linear_;
  RangeKind kind_;
  ZeroPointForm form_;
  bool inverse_, zero_point_before_epsilon_;
  Type zero_point_type_;
};

class DynamicRangeQuantize : public Node {
 public:
  DynamicRangeQuantize(const char* name, const Attributes& attributes, bool to_codes, bool is_linear = false)
      : name_(name),
        arithmetic_(name, attributes, to_codes),
        recipe_(name, attributes, is_linear),
        axis_(attributes.integer("axis", -1)),
        to_codes_(to_codes) {}

  void compute(Context& context) const override {
    const Tensor src = context.input(0), constants = context.input(1);
    if (to_codes_ && context.input(2).type != arithmetic_.output_dtype())
      throw Error(std::string(name_) + ": like is " + name_of(context.input(2).type) + ", expected output_dtype, " +
                  name_of(arithmetic_.output_dtype()));
    if (constants.shape.rank != 1 || constants.shape.dims[0] != Recipe::kConstants)
      throw Error(std::string(name_) + ": constants has shape " + constants.shape.text() + ", expected " +
                  std::to_string(Recipe::kConstants));
    const int64_t rank = static_cast<int64_t>(src.shape.rank);
    if (axis_ < -rank || axis_ > rank - (rank > 0))
      throw Error(std::string(name_) + ": axis is " + std::to_string(axis_) + ", expected " + std::to_string(-rank) +
                  " to " + std::to_string(rank - (rank > 0)) + " for src of shape " + src.shape.text());
    Recipe::Constants values;
    std::memcpy(&values, constants.data, sizeof values);
    run(context, src, values, true);
  }

 protected:
  // `gives_parameters`: scale and zero point are outputs, too.
  void run(Context& context, const Tensor& src, const Recipe::Constants& constants, bool gives_parameters) const {
    const int64_t rank = static_cast<int64_t>(src.shape.rank);
    Shape parameters = src.shape;
    Run run;
    run.cols = run.rows = 1;
    for (int64_t i = 0; i < rank; ++i) {
      if (i < (axis_ < 0 ? axis_ + rank : axis_)) {
        run.rows *= src.shape.dims[i];
      } else {
        run.cols *= src.shape.dims[i];
        parameters.dims[i] = 1;
      }
    }
    run.node = this;
    run.table = &active_kernels();
    run.kernel = arithmetic_.kernels(*run.table)[kPerRow];
    run.bounded_kernel = arithmetic_.bounded_kernel(*run.table);
    run.src = static_cast<const float*>(src.data);
    run.constants = constants;
    run.dst = static_cast<char*>(context.output(0, src.shape));
    float parameters_of_one[2];
    run.scales = gives_parameters ? static_cast<float*>(context.output(1, parameters)) : &parameters_of_one[0];
    run.zps = gives_parameters ? context.output(2, parameters) : &parameters_of_one[1];
    if (run.rows == 0) return;
    if (run.cols == 0) {  // what ReduceMin and ReduceMax have for rows of nothing
      const float range[3] = {INFINITY, -INFINITY, NAN};
      for (int64_t row = 0; row < run.rows; ++row) this->parameters(run, row, range);
      return;
    }
    if (run.cols > kLongRow && run.rows < 8)
      for (run.row = 0; run.row < run.rows; ++run.row) long_row(run, context);
    else
      short_rows(run, context);
  }

 private:
  struct Parameters {
    float scale, zp;
    bool bounded;
  };

  struct Run {
    const DynamicRangeQuantize* node;
    const KernelTable* table;
    Kernel kernel, bounded_kernel;
    const float* src;
    Recipe::Constants constants;
    char* dst;
    float* scales;
    void* zps;
    int64_t rows, cols;
    int64_t row;
    int64_t parts;
    float ranges[kMostParts][3];
    Parameters parameters;  // of long_row

    RangeKernel range() const { return node->recipe_.is_magnitude() ? table->magnitude : table->min_max; }
    int64_t part_begin(int64_t part) const { return cols * part / parts / 64 * 64; }
    int64_t part_end(int64_t part) const { return part + 1 == parts ? cols : part_begin(part + 1); }
  };

  void quantize(const Run& run, int64_t row, int64_t begin, int64_t end, const Parameters& parameters) const {
    const Affine& affine = arithmetic_.affine();
    const int32_t integer_zp = parameters.bounded ? arithmetic_.bounded_zero_point(parameters.zp) : 0;
    Block block{};
    block.src = run.src + row * run.cols + begin;
    block.dst = run.dst + (row * run.cols + begin) * (to_codes_ ? 1 : static_cast<int64_t>(sizeof(float)));
    block.rows = 1;
    block.cols = block.stride = end - begin;
    block.scales = &parameters.scale;
    block.float_zps = &parameters.zp;
    block.zps = &integer_zp;
    block.low = affine.low;
    block.high = affine.high;
    block.nan = affine.nan;
    block.zero = parameters.bounded ? arithmetic_.bounded_zero() : affine.zero;
    (parameters.bounded ? run.bounded_kernel : run.kernel)(block);
  }

  Parameters parameters(const Run& run, int64_t row, const float range[3]) const {
    Parameters result;
    recipe_.apply(range, run.constants, arithmetic_, &result.scale, &result.zp);
    const float low = recipe_.is_magnitude() ? -range[1] : range[0];
    result.bounded = range[2] == 0 && arithmetic_.is_bounded(low, range[1], result.scale, result.zp);
    store(run.scales + row, result.scale);
    if (!to_codes_)
      store(static_cast<float*>(run.zps) + row, result.zp);
    else
      static_cast<uint8_t*>(run.zps)[row] = arithmetic_.stored_zero_point(Recipe::low_byte(result.zp));
    return result;
  }

  void short_rows(Run& run, Context& context) const {
    const int64_t rows = std::max<int64_t>(1, kTaskElements / run.cols);
    run.parts = (run.rows + rows - 1) / rows;
    const auto task = [](void* data, size_t index) {
      const Run& r = *static_cast<const Run*>(data);
      const int64_t rows_of_task = std::max<int64_t>(1, kTaskElements / r.cols);
      const int64_t first = static_cast<int64_t>(index) * rows_of_task;
      for (int64_t row = first; row < std::min(r.rows, first + rows_of_task); ++row) {
        float range[3];
        r.range()(r.src + row * r.cols, r.cols, range);
        r.node->quantize(r, row, 0, r.cols, r.node->parameters(r, row, range));
      }
    };
    if (run.parts == 1)
      task(&run, 0);
    else
      context.parallel_for(static_cast<size_t>(run.parts), task, &run);
  }

  void long_row(Run& run, Context& context) const {
    run.parts = std::min(kMostParts, run.cols / kTaskElements);
    context.parallel_for(
        static_cast<size_t>(run.parts),
        [](void* data, size_t index) {
          Run& r = *static_cast<Run*>(data);
          const int64_t part = static_cast<int64_t>(index), begin = r.part_begin(part);
          r.range()(r.src + r.row * r.cols + begin, r.part_end(part) - begin, r.ranges[part]);
        },
        &run);
    // A NaN that is not the row's first element counts for nothing, so it must not for being its part's first.
    float range[3] = {run.ranges[0][0], run.ranges[0][1], run.ranges[0][2]};
    for (int64_t part = 1; part < run.parts && !std::isnan(range[1]); ++part) {
      float* other = run.ranges[part];
      if (std::isnan(other[1])) {
        const int64_t begin = run.part_begin(part);
        const float* row = run.src + run.row * run.cols;
        for (int64_t i = begin; i < run.part_end(part) && std::isnan(other[1]); ++i)
          if (!std::isnan(load(row + i))) run.range()(row + i, run.part_end(part) - i, other);
      }
      if (other[0] < range[0]) range[0] = other[0];
      if (other[1] > range[1]) range[1] = other[1];
      range[2] += other[2];
    }
    run.parameters = parameters(run, run.row, range);
    context.parallel_for(
        static_cast<size_t>(run.parts),
        [](void* data, size_t index) {
          const Run& r = *static_cast<const Run*>(data);
          const int64_t part = static_cast<int64_t>(index);
          r.node->quantize(r, r.row, r.part_begin(part), r.part_end(part), r.parameters);
        },
        &run);
  }

  const char* name_;
  AffineArithmetic arithmetic_;
  Recipe recipe_;
  int64_t axis_;
  bool to_codes_;
};

class LinearAttributes : public Attributes {
 public:
  int64_t integer(const char* name, int64_t absent) const override {
    const std::pair<const char*, int64_t> given[] = {{"axis", 0},
                                                     {"range_kind", kMinMaxZero},
                                                     {"zero_point_rule", kRoundClipped},
                                                     {"zero_point_type", kUint8},
                                                     {"quant_min", 0},
                                                     {"quant_max", 255},
                                                     {"code_type", kUint8},
                                                     {"nan_code", 1}};
    for (const auto& [known, value] : given)
      if (std::strcmp(name, known) == 0) return value;
    return absent;
  }
  std::string text(const char*, const char* absent) const override { return absent; }
};

class DynamicQuantizeDequantizeLinear : public DynamicRangeQuantize {
 public:
  static constexpr const char* kName = "DynamicQuantizeDequantizeLinear";
  DynamicQuantizeDequantizeLinear() : DynamicRangeQuantize(kName, LinearAttributes(), false, true) {}

  void compute(Context& context) const override {
    static constexpr Recipe::Constants constants = {-INFINITY, INFINITY, 0, INFINITY, 255, 1, 0, INFINITY, 0};
    run(context, context.input(0), constants, false);
  }
};

}  // namespace

Operator dynamic_range_quantize() {
  return {"DynamicRangeQuantize",
          3,
          {{{kFloat, kFloat, kInt8}, {kInt8, kFloat, kInt8}}, {{kFloat, kFloat, kUint8}, {kUint8, kFloat, kUint8}}},
          [](const Attributes& attributes) -> std::unique_ptr<Node> {
            return std::make_unique<DynamicRangeQuantize>("DynamicRangeQuantize", attributes, true);
          },
          [](const Attributes&, const std::vector<Type>& inputs) { return inputs[2]; }};
}

Operator dynamic_range_fake_quantize() {
  return {"DynamicRangeFakeQuantize",
          2,
          {{{kFloat, kFloat}, {kFloat, kFloat, kFloat}}},
          [](const Attributes& attributes) -> std::unique_ptr<Node> {
            return std::make_unique<DynamicRangeQuantize>("DynamicRangeFakeQuantize", attributes, false);
          },
          [](const Attributes&, const std::vector<Type>&) { return kFloat; }};
}

Operator dynamic_quantize_dequantize_linear() {
  return {DynamicQuantizeDequantizeLinear::kName,
          1,
          {{{kFloat}, {kFloat}}},
          [](const Attributes&) -> std::unique_ptr<Node> { return std::make_unique<DynamicQuantizeDequantizeLinear>(); },
          [](const Attributes&, const std::vector<Type>&) { return kFloat; }};
}

}  // namespace dynq
