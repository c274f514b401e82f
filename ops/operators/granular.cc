// DynamicQuantize, DynamicDequantize, DynamicFakeQuantize: granularity by the attributes qtype, axis and block_size.
// DynamicQuantize and DynamicDequantize are the operators of that name in oneDNN Graph.
#include "core/attributes.h"
#include "core/layout.h"

namespace dynq {
namespace {

// dst = saturate(round(src / scales + zps))
class DynamicQuantize : public Node {
 public:
  static constexpr const char* kName = "DynamicQuantize";

  explicit DynamicQuantize(const Attributes& attributes)
      : granularity_(kName, attributes), output_dtype_(given_output_dtype(attributes)) {
    const std::string arithmetic = attributes.text("arithmetic", "onnx");
    if (arithmetic != "onnx" && arithmetic != "onednn")
      throw Error(std::string(kName) + ": arithmetic is '" + arithmetic + "', expected onnx or onednn");
    arithmetic_ = arithmetic == "onnx" ? kOnnx : kOneDnn;
  }

  // The attribute output_dtype, or kNone if it is absent or 0.
  static Type given_output_dtype(const Attributes& attributes) {
    if (attributes.integer("output_dtype", kNone) == kNone) return kNone;
    return read_code_type(kName, attributes, "output_dtype", kNone);
  }

  // output_dtype, by default the type of zps if it is int8, otherwise uint8.
  static Type output_type(Type output_dtype, Type zps) {
    if (output_dtype != kNone) return output_dtype;
    return zps == kInt8 ? kInt8 : kUint8;
  }

  void compute(Context& context) const override {
    const Tensor src = context.input(0), scales = context.input(1), zps = context.input(2);
    const Groups groups = granularity_.groups(src.shape, scales.shape, zps);
    const CodeKind kind = output_type(output_dtype_, zps.type) == kInt8 ? kS8 : kU8;
    const QuantizeWork work = {
        static_cast<const float*>(src.data),          context.output(0, src.shape),
        static_cast<const float*>(scales.data),       zps,
        active_kernels().quantize[arithmetic_][kind], portable_kernels().quantize[arithmetic_][kind]};
    run_grouped(src.shape, groups, work, context);
  }

 private:
  Granularity granularity_;
  Type output_dtype_;
  Arithmetic arithmetic_;
};

// dst = (src - zps) * scales
class DynamicDequantize : public Node {
 public:
  static constexpr const char* kName = "DynamicDequantize";

  explicit DynamicDequantize(const Attributes& attributes) : granularity_(kName, attributes) {}

  void compute(Context& context) const override {
    const Tensor src = context.input(0), scales = context.input(1), zps = context.input(2);
    const Groups groups = granularity_.groups(src.shape, scales.shape, zps);
    const CodeKind kind = src.type == kInt8 ? kS8 : kU8;
    const DequantizeWork work = {src.data,
                                 static_cast<float*>(context.output(0, src.shape)),
                                 static_cast<const float*>(scales.data),
                                 zps,
                                 active_kernels().dequantize[kind],
                                 portable_kernels().dequantize[kind]};
    run_grouped(src.shape, groups, work, context);
  }

 private:
  Granularity granularity_;
};

// DynamicQuantize, then DynamicDequantize, in one pass that stores no codes.
class DynamicFakeQuantize : public Node {
 public:
  static constexpr const char* kName = "DynamicFakeQuantize";

  explicit DynamicFakeQuantize(const Attributes& attributes) : granularity_(kName, attributes) {}

  void compute(Context& context) const override {
    const Tensor src = context.input(0), scales = context.input(1), zps = context.input(2);
    const Groups groups = granularity_.groups(src.shape, scales.shape, zps);
    const float low = zps.type == kInt8 ? -128.0f : 0.0f;
    AffineConstants constants{};
    constants.low = low;
    constants.high = low + 255.0f;
    constants.nan_code = low;  // as QuantizeLinear
    constants.integer_codes = true;
    const AffineWork work = {static_cast<const float*>(src.data),
                             context.output(0, src.shape),
                             sizeof(float),
                             static_cast<const float*>(scales.data),
                             zps,
                             active_kernels().affine[kDivide][kRoundThenAdd][kToFloat],
                             constants};
    run_grouped(src.shape, groups, work, context);
  }

 private:
  Granularity granularity_;
};

}  // namespace

Operator dynamic_quantize() {
  return {DynamicQuantize::kName,
          2,
          {
              {{kFloat, kFloat, kUint8}, {kUint8}},
              {{kFloat, kFloat, kInt8}, {kInt8}},
              {{kFloat, kFloat, kInt32}, {kUint8}},
              {{kFloat, kFloat, kInt32}, {kInt8}},
              {{kFloat, kFloat, kUint8}, {kInt8}},
              {{kFloat, kFloat, kInt8}, {kUint8}},
          },
          make_node<DynamicQuantize>,
          [](const Attributes& attributes, const std::vector<Type>& inputs) {
            return DynamicQuantize::output_type(DynamicQuantize::given_output_dtype(attributes),
                                                inputs.size() > 2 ? inputs[2] : kNone);
          }};
}

Operator dynamic_dequantize() {
  return {DynamicDequantize::kName,
          2,
          {
              {{kUint8, kFloat, kUint8}, {kFloat}},
              {{kInt8, kFloat, kInt8}, {kFloat}},
              {{kUint8, kFloat, kInt32}, {kFloat}},
              {{kInt8, kFloat, kInt32}, {kFloat}},
              {{kUint8, kFloat, kInt8}, {kFloat}},
              {{kInt8, kFloat, kUint8}, {kFloat}},
          },
          make_node<DynamicDequantize>,
          always_float};
}

Operator dynamic_fake_quantize() {
  return {DynamicFakeQuantize::kName,
          3,
          {{{kFloat, kFloat, kUint8}, {kFloat}}, {{kFloat, kFloat, kInt8}, {kFloat}}},
          make_node<DynamicFakeQuantize>,
          always_float};
}

}  // namespace dynq
