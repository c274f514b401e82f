// DynamicQuantize, DynamicDequantize, DynamicFakeQuantize: granularity by the attributes qtype, axis, block_size and
// group_shape. DynamicQuantize and DynamicDequantize are the operators of that name in oneDNN Graph.
#include "core/attributes.h"
#include "core/layout.h"
#include "kernels/dispatch.h"

namespace dynq {
namespace {

constexpr Type kFloats[] = {kFloat, kFloat16, kBfloat16};
constexpr Type kCodes[] = {kUint8, kInt8, kUint4, kInt4};
constexpr Type kZeroPoints[] = {kUint8, kInt8, kInt32, kUint4, kInt4};

// The codes that kernels compute; they are narrowed to 4 bits afterwards.
CodeKind kind_of(Type codes) { return codes == kInt8 || codes == kInt4 ? kS8 : kU8; }

// dst = saturate(round(src / scales + zps))
class DynamicQuantize : public Node {
 public:
  static constexpr const char* kName = "DynamicQuantize";

  explicit DynamicQuantize(const Attributes& attributes)
      : granularity_(kName, attributes), output_dtype_(given_output_dtype(attributes)) {
    const std::string arithmetic = attributes.text("arithmetic", "onnx");
    if (arithmetic != "onnx" && arithmetic != "onednn" && arithmetic != "wrapping")
      throw Error(std::string(kName) + ": arithmetic is '" + arithmetic + "', expected onnx, onednn or wrapping");
    arithmetic_ = arithmetic == "onnx" ? kOnnx : arithmetic == "onednn" ? kOneDnn : kWrapping;
  }

  // The attribute output_dtype, or kNone if it is absent or 0.
  static Type given_output_dtype(const Attributes& attributes) {
    if (attributes.integer("output_dtype", kNone) == kNone) return kNone;
    return read_any_code_type(kName, attributes, "output_dtype", kNone);
  }

  // output_dtype, by default the type of zps unless it is int32, otherwise uint8.
  static Type output_type(Type output_dtype, Type zps) {
    if (output_dtype != kNone) return output_dtype;
    return zps == kNone || zps == kInt32 ? kUint8 : zps;
  }

  void compute(Context& context) const override {
    const Tensor src = context.input(0), scales = context.input(1), zps = context.input(2);
    const Groups groups = granularity_.groups(src.shape, scales.shape, zps);
    const Type type = output_type(output_dtype_, zps.type);
    const CodeKind kind = kind_of(type);
    const ElementwiseKernels& kernels = active_kernels();
    const QuantizeKernel* direct = nullptr;
    if (arithmetic_ == kOnnx && src.type == kFloat16)
      direct = bits_of(type) == 8 ? kernels.quantize_f16[kOnnx][kind] : kernels.quantize_4bits_f16[kind];
    else if (arithmetic_ == kOnnx && src.type == kFloat && bits_of(type) == 4)
      direct = kernels.quantize_4bits[kind];
    const QuantizeWork work = {{src, context.output(0, src.shape), type, scales, zps},
                               kernels.quantize[arithmetic_][kind],
                               kPortableKernels.quantize[arithmetic_][kind],
                               direct};
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
    const CodeKind kind = kind_of(src.type);
    const ElementwiseKernels& kernels = active_kernels();
    const DequantizeKernel* direct = nullptr;
    if (scales.type == kFloat16)
      direct = bits_of(src.type) == 8 ? kernels.dequantize_f16[kind] : kernels.dequantize_4bits_f16[kind];
    else if (scales.type == kFloat && bits_of(src.type) == 4)
      direct = kernels.dequantize_4bits[kind];
    const DequantizeWork work = {{src, context.output(0, src.shape), scales.type, scales, zps},
                                 kernels.dequantize[kind],
                                 kPortableKernels.dequantize[kind],
                                 direct};
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
    const FakeQuantizeWork work = {
        {src, context.output(0, src.shape), kFloat, scales, zps}, active_kernels().fake_quantize, low, low + 255.0f};
    run_grouped(src.shape, groups, work, context);
  }

 private:
  Granularity granularity_;
};

}  // namespace

Operator dynamic_quantize() {
  // The output of the first signature of some input types is the one without output_dtype.
  std::vector<Signature> signatures;
  for (const Type src : kFloats)
    for (const Type zps : kZeroPoints) {
      const Type first = DynamicQuantize::output_type(kNone, zps);
      signatures.push_back({{src, src, zps}, {first}});
      for (const Type dst : kCodes)
        if (dst != first) signatures.push_back({{src, src, zps}, {dst}});
    }
  return {DynamicQuantize::kName, 2, signatures, make_node<DynamicQuantize>,
          [](const Attributes& attributes, const std::vector<Type>& inputs) {
            return DynamicQuantize::output_type(DynamicQuantize::given_output_dtype(attributes),
                                                inputs.size() > 2 ? inputs[2] : kNone);
          }};
}

Operator dynamic_dequantize() {
  std::vector<Signature> signatures;
  for (const Type scales : kFloats)
    for (const Type src : kCodes)
      for (const Type zps : kZeroPoints) signatures.push_back({{src, scales, zps}, {scales}});
  return {DynamicDequantize::kName, 2, signatures, make_node<DynamicDequantize>,
          [](const Attributes&, const std::vector<Type>& inputs) { return inputs[1]; }};
}

Operator dynamic_fake_quantize() {
  return {DynamicFakeQuantize::kName,
          3,
          {{{kFloat, kFloat, kUint8}, {kFloat}}, {{kFloat, kFloat, kInt8}, {kFloat}}},
          make_node<DynamicFakeQuantize>,
          always_float};
}

}  // namespace dynq
