// DynamicQuantizeLinear: ONNX's operator. DynamicQuantizeDequantizeLinear: the same, then DequantizeLinear, in one
// pass. Both are programs whose one row is the whole tensor.
#include "core/formats.h"
#include "core/program.h"
#include "core/scratch.h"

namespace dynq {
namespace {

// The range is that of `numbers`. ONNX Runtime's zero point is 255 if the quotient is NaN.
std::string program_of(const std::string& numbers, bool to_codes) {
  return "low = Clip(ReduceMin(" + numbers + "), -inf, 0.0); high = Clip(ReduceMax(" + numbers +
         "), 0.0, inf); range = Sub(high, low); s = Where(Equal(range, 0.0), 1.0, Div(range, 255.0)); "
         "above = Clip(Sub(0.0, Div(low, s)), 0.0, 255.0); "
         "z = Uint8(Where(Equal(above, above), above, 255.0)); code = Add(Round(Div(x, s)), z); " +
         (to_codes ? "codes = code; scale = s; zero_point = z" : "dst = Mul(Sub(Uint8(code), z), s)");
}

template <bool kToCodes>
class LinearNode : public Node {
 public:
  static constexpr const char* kName = kToCodes ? "DynamicQuantizeLinear" : "DynamicQuantizeDequantizeLinear";

  explicit LinearNode(const Attributes&)
      : program_(kName, program_of("x", kToCodes), 0, kUint8),
        of_numbers_(kName, program_of("Where(Equal(x, x), x, 0.0)", kToCodes), 0, kUint8) {}

  void compute(Context& context) const override {
    const Tensor src = context.input(0);
    ProgramTensors tensors = {};
    tensors.rows = 1;
    tensors.cols = src.shape.elements();
    tensors.src = src.data;
    tensors.src_type = tensors.dst_type = src.type;
    tensors.src_stride = tensors.dst_stride = tensors.operand_stride = tensors.cols;
    const auto set = [&](ProgramOutput output, size_t index, const Shape& shape) {
      tensors.outputs[static_cast<size_t>(output)] = context.output(index, shape);
    };
    set(kToCodes ? ProgramOutput::kCodes : ProgramOutput::kDst, 0, src.shape);
    if (kToCodes) {
      set(ProgramOutput::kScale, 1, {});
      set(ProgramOutput::kZeroPoint, 2, {});
    }
    (is_nan(src, 0) && !is_nan(src, tensors.cols - 1) ? of_numbers_ : program_).run_all(tensors, context);
  }

 private:
  static bool is_nan(const Tensor& src, int64_t element) {
    Scratch<float, 1> memory;
    const float number = element < src.shape.elements() ? load(FloatReader(src).read(element, 1, memory)) : 0.0f;
    return number != number;
  }

  Program program_;     // the range is NaN if the first element is
  Program of_numbers_;  // ignores it, as ONNX Runtime does unless the last element is NaN
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
