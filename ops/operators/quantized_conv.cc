// QuantizedConv: a convolution of 8-bit codes by packed 8-bit weights, to float32 or float16.
//
// kernels/portable_products.cc has the arithmetic, core/conv_image.h the form in which kernels read the input. A run
// has three parts: check_conv() reads the inputs, Convolution chooses an implementation and the form of its axes
// (core/convolution_plan.cc), and cuts the output into parts: samples, tiles of positions, and channels.
//
// QuantizedConvProgram is the same, and then a program for each element of the output, while it is in the cache.
#include <cmath>
#include <optional>

#include "core/convolution.h"
#include "core/convolution_shape.h"
#include "core/program.h"

namespace dynq {
namespace {

class QuantizedConv : public Node {
 public:
  explicit QuantizedConv(const Attributes& attributes, const char* name = "QuantizedConv")
      : attributes_(name, attributes) {}

  void compute(Context& context) const override {
    const ConvInputs inputs(context);
    const ConvolutionShape shape = check_conv(attributes_, inputs);
    float lowest = -INFINITY, highest = INFINITY;
    const bool only_clips = tail_ && tail_->is_clip(lowest, highest);
    if (tail_ && !only_clips && inputs.bias.type != kFloat)
      throw Error(std::string(attributes_.op) + ": bias is " + name_of(inputs.bias.type) +
                  ", expected float32 for a program that does more than clip");
    ProgramTensors operands;
    if (tail_) operands = tail_->tensors(context, ConvInputs::kCount, shape.result, 2);
    void* const dst = context.output(0, shape.result);
    if (shape.result.elements() == 0) return;
    Convolution conv(attributes_, inputs, shape, dst);
    if (only_clips)
      conv.clip(lowest, highest);
    else if (tail_)
      conv.set_tail(*tail_, operands);
    conv.run(context);
  }

 private:
  ConvAttributes attributes_;

 protected:
  std::optional<Tail> tail_;
};

class QuantizedConvProgram : public QuantizedConv {
 public:
  explicit QuantizedConvProgram(const Attributes& attributes) : QuantizedConv(attributes, "QuantizedConvProgram") {
    tail_.emplace("QuantizedConvProgram", attributes);
  }
};

}  // namespace

Operator quantized_conv() {
  Operator op = {"QuantizedConv",
                 ConvInputs::kCount,
                 {{{kUint8, kFloat, kUint8, kInt8, kInt8, kFloat, kInt32, kFloat, kInt32}, {kFloat}},
                  {{kInt8, kFloat, kInt8, kInt8, kInt8, kFloat, kInt32, kFloat, kInt32}, {kFloat}},
                  {{kUint8, kFloat, kUint8, kInt8, kInt8, kFloat, kInt32, kFloat16, kInt32}, {kFloat16}},
                  {{kInt8, kFloat, kInt8, kInt8, kInt8, kFloat, kInt32, kFloat16, kInt32}, {kFloat16}}},
                 make_node<QuantizedConv>,
                 type_of_input<7>};
  op.columns_input = Operator::kNoInput;
  return op;
}

Operator quantized_conv_program() {
  return with_program(quantized_conv(), "QuantizedConvProgram", make_node<QuantizedConvProgram>);
}

}  // namespace dynq
