// DynamicFakeQuantize: DynamicQuantize, then DynamicDequantize, in one pass and without the codes.
#include "operators/layout.h"
#include "operators/operators.h"

namespace dynq {
namespace {

constexpr char kName[] = "DynamicFakeQuantize";

class DynamicFakeQuantize : public Node {
 public:
  explicit DynamicFakeQuantize(const Attributes& attributes) : granularity_(kName, attributes) {}

  void compute(Context& context) const override {
    const Tensor src = context.input(0), scales = context.input(1), zps = context.input(2);
    const Groups groups = granularity_.groups(src.shape, scales.shape, zps);
    const float low = zps.type == kInt8 ? -128.0f : 0.0f;
    const Affine affine{low, low + 255.0f, low, 0.0f};  // a NaN becomes the lowest code, as QuantizeLinear has it
    run_grouped(
        src.shape, groups,
        {src.data, sizeof(float), context.output(0, src.shape), sizeof(float), static_cast<const float*>(scales.data),
         zps, active_kernels().affine[kDivide][kRoundThenAdd][kToFloat], nullptr, &affine},
        context);
  }

 private:
  Granularity granularity_;
};

}  // namespace

Operator dynamic_fake_quantize() {
  return {kName,
          3,
          {{{kFloat, kFloat, kUint8}, {kFloat}}, {{kFloat, kFloat, kInt8}, {kFloat}}},
          [](const Attributes& attributes) -> std::unique_ptr<Node> {
            return std::make_unique<DynamicFakeQuantize>(attributes);
          },
          [](const Attributes&, const std::vector<Type>&) { return kFloat; }};
}

}  // namespace dynq
