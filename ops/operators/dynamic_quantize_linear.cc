// DynamicQuantizeLinear: ONNX's operator. DynamicQuantizeDequantizeLinear: the same, then DequantizeLinear, in one
// pass.
#include "core/linear_quantizer.h"

namespace dynq {
namespace {

template <bool kToCodes>
class LinearNode : public Node {
 public:
  static constexpr const char* kName = kToCodes ? "DynamicQuantizeLinear" : "DynamicQuantizeDequantizeLinear";

  explicit LinearNode(const Attributes&) : quantizer_(kName, kToCodes) {}

  void compute(Context& context) const override {
    const Tensor src = context.input(0);
    void* const dst = context.output(0, src.shape);
    float* const scale = kToCodes ? static_cast<float*>(context.output(1, {})) : nullptr;
    uint8_t* const zero_point = kToCodes ? static_cast<uint8_t*>(context.output(2, {})) : nullptr;
    quantizer_.run(context, src, dst, scale, zero_point);
  }

 private:
  const LinearQuantizer quantizer_;
};

}  // namespace

Operator dynamic_quantize_linear() {
  return {LinearNode<true>::kName,
          1,
          {{{kFloat}, {kUint8, kFloat, kUint8}}, {{kFloat16}, {kUint8, kFloat, kUint8}}},
          make_node<LinearNode<true>>,
          [](const Attributes&, const std::vector<Type>&) { return kUint8; }};
}

Operator dynamic_quantize_dequantize_linear() {
  return {LinearNode<false>::kName,
          1,
          {{{kFloat}, {kFloat}}, {{kFloat16}, {kFloat16}}},
          make_node<LinearNode<false>>,
          type_of_input<0>};
}

}  // namespace dynq
