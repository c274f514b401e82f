// DynamicQuantize: dst = saturate(round(src / scales + zps)). oneDNN Graph's DynamicQuantize-1.
#include "operators/layout.h"
#include "operators/operators.h"

namespace dynq {
namespace {

constexpr char kName[] = "DynamicQuantize";

Type output_type(const Attributes& attributes, const std::vector<Type>& inputs) {
  const int64_t output_dtype = attributes.integer("output_dtype", kNone);
  if (output_dtype == kNone) return inputs.size() > 2 && inputs[2] == kInt8 ? kInt8 : kUint8;
  if (output_dtype != kUint8 && output_dtype != kInt8)
    throw Error(std::string(kName) + ": output_dtype is " + std::to_string(output_dtype) +
                ", expected 2 (uint8) or 3 (int8)");
  return static_cast<Type>(output_dtype);
}

class DynamicQuantize : public Node {
 public:
  explicit DynamicQuantize(const Attributes& attributes)
      : granularity_(kName, attributes), output_dtype_(static_cast<Type>(attributes.integer("output_dtype", kNone))) {
    output_type(attributes, {});  // throws if it is none
    const std::string arithmetic = attributes.text("arithmetic", "onnx");
    if (arithmetic != "onnx" && arithmetic != "onednn")
      throw Error(std::string(kName) + ": arithmetic is '" + arithmetic + "', expected onnx or onednn");
    arithmetic_ = arithmetic == "onnx" ? kOnnx : kOneDnn;
  }

  void compute(Context& context) const override {
    const Tensor src = context.input(0), scales = context.input(1), zps = context.input(2);
    const Groups groups = granularity_.groups(src.shape, scales.shape, zps);
    const bool is_signed = output_dtype_ == kNone ? zps.type == kInt8 : output_dtype_ == kInt8;
    const CodeType type = is_signed ? kS8 : kU8;
    const KernelTable& kernels = active_kernels();
    run_grouped(src.shape, groups,
                {src.data, sizeof(float), context.output(0, src.shape), 1, static_cast<const float*>(scales.data), zps,
                 kernels.quantize[arithmetic_][type], portable_kernels().quantize[arithmetic_][type]},
                context);
  }

 private:
  Granularity granularity_;
  Type output_dtype_;
  Arithmetic arithmetic_;
};

}  // namespace

Operator dynamic_quantize() {
  return {kName,
          2,
          {
              {{kFloat, kFloat, kUint8}, {kUint8}},
              {{kFloat, kFloat, kInt8}, {kInt8}},
              {{kFloat, kFloat, kInt32}, {kUint8}},
              {{kFloat, kFloat, kInt32}, {kInt8}},
              {{kFloat, kFloat, kUint8}, {kInt8}},
              {{kFloat, kFloat, kInt8}, {kUint8}},
          },
          [](const Attributes& attributes) -> std::unique_ptr<Node> {
            return std::make_unique<DynamicQuantize>(attributes);
          },
          output_type};
}

}  // namespace dynq
