// DynamicQuantizeLinear: ONNX's operator. DynamicQuantizeDequantizeLinear: the same, then DequantizeLinear, in one
// pass. Both are programs with the whole tensor as their one row.
#include "core/formats.h"
#include "core/program.h"
#include "core/row_extremes.h"
#include "core/scratch.h"

namespace dynq {
namespace {

constexpr size_t kEnds = 2;  // operands: the smallest and the largest element

// ONNX Runtime's zero point is 255 if the quotient is NaN. `number` is 0 if an element is NaN.
std::string program_of(const std::string& low, const std::string& high, bool to_codes) {
  return "low = Clip(" + low + ", -inf, 0.0); high = Clip(" + high +
         ", 0.0, inf); range = Sub(high, low); s = Where(Equal(range, 0.0), 1.0, Div(range, 255.0)); "
         "above = Clip(Sub(0.0, Div(low, s)), 0.0, 255.0); "
         "z = Uint8(Where(Equal(above, above), above, 255.0)); code = Add(Round(Div(x, s)), z); "
         "number = ReduceMin(Equal(x, x)); " +
         (to_codes ? "codes = code; scale = s; zero_point = z" : "dst = Mul(Sub(Uint8(code), z), s)");
}

template <bool kToCodes>
class LinearNode : public Node {
 public:
  static constexpr const char* kName = kToCodes ? "DynamicQuantizeLinear" : "DynamicQuantizeDequantizeLinear";

  explicit LinearNode(const Attributes&)
      : program_(kName, program_of("ReduceMin(x)", "ReduceMax(x)", kToCodes), kEnds, kUint8),
        with_nan_(kName, program_of("row1", "row2", kToCodes), kEnds, kUint8) {}

  void compute(Context& context) const override {
    const Tensor src = context.input(0);
    ProgramTensors tensors = {};
    tensors.rows = 1;
    tensors.cols = src.shape.elements();
    tensors.src = src.data;
    tensors.src_type = tensors.dst_type = src.type;
    tensors.src_stride = tensors.dst_stride = tensors.operand_stride = tensors.cols;
    float is_number = 1;
    tensors.outputs[static_cast<size_t>(ProgramOutput::kNumber)] = &is_number;
    const auto set = [&](ProgramOutput output, size_t index, const Shape& shape) {
      tensors.outputs[static_cast<size_t>(output)] = context.output(index, shape);
    };
    set(kToCodes ? ProgramOutput::kCodes : ProgramOutput::kDst, 0, src.shape);
    if (kToCodes) {
      set(ProgramOutput::kScale, 1, {});
      set(ProgramOutput::kZeroPoint, 2, {});
    }
    program_.run_all(tensors, context);
    if (is_number != 0) return;
    Scratch<float, 1024> memory;
    float ends[kEnds];
    extremes_of_tensor(FloatReader(src).read(0, tensors.cols, memory), tensors.cols, ends[0], ends[1]);
    for (size_t i = 0; i < kEnds; ++i) {
      tensors.operands[i] = ends + i;
      tensors.operand_rows[i] = 1;
    }
    with_nan_.run_all(tensors, context);
  }

 private:
  Program program_, with_nan_;
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
