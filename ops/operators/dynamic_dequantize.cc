// DynamicDequantize: dst = (src - zps) * scales. oneDNN Graph's DynamicDequantize-1.
#include "operators/layout.h"
#include "operators/operators.h"

namespace dynq {
namespace {

constexpr char kName[] = "DynamicDequantize";

class DynamicDequantize : public Node {
 public:
  explicit DynamicDequantize(const Attributes& attributes) : granularity_(kName, attributes) {}

  void compute(Context& context) const override {
    const Tensor src = context.input(0), scales = context.input(1), zps = context.input(2);
    const Groups groups = granularity_.groups(src.shape, scales.shape, zps);
    const CodeType type = src.type == kInt8 ? kS8 : kU8;
    run_grouped(src.shape, groups,
                {src.data, 1, context.output(0, src.shape), sizeof(float), static_cast<const float*>(scales.data), zps,
                 active_kernels().dequantize[type], portable_kernels().dequantize[type]},
                context);
  }

 private:
  Granularity granularity_;
};

}  // namespace

Operator dynamic_dequantize() {
  return {kName,
          2,
          {
              {{kUint8, kFloat, kUint8}, {kFloat}},
              {{kInt8, kFloat, kInt8}, {kFloat}},
              {{kUint8, kFloat, kInt32}, {kFloat}},
              {{kInt8, kFloat, kInt32}, {kFloat}},
              {{kUint8, kFloat, kInt8}, {kFloat}},
              {{kInt8, kFloat, kUint8}, {kFloat}},
          },
          [](const Attributes& attributes) -> std::unique_ptr<Node> {
            return std::make_unique<DynamicDequantize>(attributes);
          },
          [](const Attributes&, const std::vector<Type>&) { return kFloat; }};
}

}  // namespace dynq
