// ChannelGate: multiplies channels by a gate of their means (squeeze and excitation): mean, product, function, product,
// and then a program for each element, which reads the gate's number of its channel.
//
// Everything runs as programs, so that sums have the order of their step ReduceSum on every CPU.
#include <algorithm>
#include <string>

#include "core/parallel.h"
#include "core/program.h"
#include "core/scratch.h"

namespace dynq {
namespace {

constexpr const char* kName = "ChannelGate";
constexpr size_t kOperands = 1;                      // of the program: the numbers of channels
constexpr int64_t kTaskProducts = int64_t{1} << 18;  // of float

class ChannelGate : public Node {
 public:
  explicit ChannelGate(const Attributes& attributes)
      : sum_(kName, "number = ReduceSum(x)", 0, kInt8),
        product_(kName, "number = Add(ReduceSum(Mul(x, column1)), row2)", 2, kInt8),
        function_(kName, text_of(attributes), kOperands, kInt8, ProgramOutput::kDst2),
        gate_(kName, text_of(attributes), kOperands, kInt8, ProgramOutput::kDst) {
    const Program whole(kName, text_of(attributes), kOperands, kInt8);
    const OperandForm form = whole.form(0);
    if (!whole.is_elementwise(true) || !whole.has_output(ProgramOutput::kDst2))
      throw Error(std::string(kName) +
                  ": program has reductions or other outputs than dst and dst_2, expected these two");
    if (function_.reads_rows() || (form != OperandForm::kRow && form != OperandForm::kUnused))
      throw Error(std::string(kName) + ": program reads an operand that is not there, expected only row1, for dst");
  }

  void compute(Context& context) const override {
    const Tensor src = context.input(0);
    if (src.shape.rank < 3)
      throw Error(std::string(kName) + ": src has shape " + src.shape.text() + ", expected at least 3 dimensions");
    const int64_t samples = src.shape.dims[0], channels = src.shape.dims[1];
    const Tensor inner_weight = context.input(1);
    const int64_t inner = inner_weight.shape.rank == 2 ? inner_weight.shape.dims[0] : 0;
    if (inner < 1)
      throw Error(std::string(kName) + ": weight_1 has shape " + inner_weight.shape.text() +
                  ", expected [hidden, channels], not empty");
    const float* const weights[] = {checked(inner_weight, "weight_1", {2, {inner, channels}}),
                                    checked(context.input(3), "weight_2", {2, {channels, inner}})};
    const float* const biases[] = {checked(context.input(2), "bias_1", {1, {inner}}),
                                   checked(context.input(4), "bias_2", {1, {channels}})};
    void* const dst = context.output(0, src.shape);
    if (src.shape.elements() == 0) return;

    const int64_t planes = samples * channels;
    ProgramTensors tensors = rows_of(src.data, planes, src.shape.elements() / planes);
    Scratch<float, 1024> memory;
    float* const means = memory.allocate(tensors.rows * 2);
    float* const numbers = means + tensors.rows;  // of the gate
    tensors.outputs[static_cast<size_t>(ProgramOutput::kNumber)] = means;
    sum_.run_all(tensors, context);
    const auto count = static_cast<float>(tensors.cols);
    for (int64_t i = 0; i < tensors.rows; ++i) means[i] /= count;

    const int64_t tasks = std::clamp(tensors.rows * inner * 2 / kTaskProducts, int64_t{1}, samples);
    run_tasks(context, tasks, [&](int64_t task) {
      Scratch<float, 512> of_task;
      float* const sums = of_task.allocate(2 * inner);
      float* const hidden = sums + inner;
      for (int64_t sample = samples * task / tasks; sample < samples * (task + 1) / tasks; ++sample) {
        multiply(weights[0], biases[0], inner, channels, means + sample * channels, sums);
        ProgramTensors vector = rows_of(sums, 1, inner);
        vector.outputs[static_cast<size_t>(ProgramOutput::kDst2)] = hidden;
        function_.run(vector, 0, 1);
        multiply(weights[1], biases[1], channels, inner, hidden, numbers + sample * channels);
      }
    });
    tensors.outputs[static_cast<size_t>(ProgramOutput::kDst)] = dst;
    tensors.operands[0] = numbers;
    tensors.operand_rows[0] = tensors.rows;
    gate_.run_all(tensors, context);
  }

 private:
  // Without a program, nothing happens between the products and behind them.
  static std::string text_of(const Attributes& attributes) { return attributes.text("program", "dst = x; dst_2 = x"); }

  static const float* checked(const Tensor& tensor, const char* name, const Shape& expected) {
    if (!(tensor.shape == expected))
      throw Error(std::string(kName) + ": " + name + " has shape " + tensor.shape.text() + ", expected " +
                  expected.text());
    return static_cast<const float*>(tensor.data);
  }

  static ProgramTensors rows_of(const void* src, int64_t rows, int64_t cols) {
    ProgramTensors tensors = {};
    tensors.rows = rows;
    tensors.cols = cols;
    tensors.src = src;
    tensors.src_type = tensors.dst_type = kFloat;
    tensors.src_stride = tensors.dst_stride = tensors.operand_stride = cols;
    return tensors;
  }

  // A matrix of weights times a vector, plus the bias.
  void multiply(const float* weights, const float* bias, int64_t rows, int64_t cols, const float* by, float* to) const {
    ProgramTensors tensors = rows_of(weights, rows, cols);
    tensors.operands[0] = by;
    tensors.operands[1] = bias;
    tensors.operand_rows[0] = 1;
    tensors.operand_rows[1] = rows;
    tensors.outputs[static_cast<size_t>(ProgramOutput::kNumber)] = to;
    product_.run(tensors, 0, rows);
  }

  const Program sum_, product_, function_, gate_;
};

}  // namespace

Operator channel_gate() {
  Operator op = {
      kName, 5, {{{kFloat, kFloat, kFloat, kFloat, kFloat}, {kFloat}}}, make_node<ChannelGate>, always_float};
  op.columns_input = Operator::kNoInput;
  return op;
}

}  // namespace dynq
