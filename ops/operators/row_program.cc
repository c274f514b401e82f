// RowProgram: a program over the rows of a tensor. core/program.h has the language.
#include <algorithm>

#include "core/attributes.h"
#include "core/parallel.h"
#include "core/program.h"
#include "core/rows.h"

namespace dynq {
namespace {

constexpr size_t kFirstOperand = 2, kOperands = 4;

class RowProgram : public Node {
 public:
  static constexpr const char* kName = "RowProgram";

  explicit RowProgram(const Attributes& attributes)
      : rows_(kName, attributes.integer("axis", -1), 0),
        code_type_(read_any_code_type(kName, attributes, "code_type", kUint8)),
        program_(kName, attributes.text("program", kIdentityProgram), kOperands, code_type_),
        long_row_(longest_of(program_)) {}

  void compute(Context& context) const override {
    const Tensor src = context.input(0), like = context.input(1);
    if (like.type != code_type_)
      fail("like is " + std::string(name_of(like.type)) + ", expected code_type, " + name_of(code_type_));
    const Rows rows_of_src = rows_.rows_of(src.shape);
    ProgramTensors tensors = {};
    tensors.rows = rows_of_src.count;
    tensors.cols = rows_of_src.cols;
    tensors.src = src.data;
    tensors.src_type = tensors.dst_type = src.type;
    tensors.src_stride = tensors.dst_stride = tensors.operand_stride = tensors.cols;
    program_.set_operands(context, kFirstOperand, src.shape, rows_of_src.axis, tensors);
    for (size_t i = 0; i < kProgramOutputs; ++i)  // an output that is not assigned is not made
      if (program_.has_output(static_cast<ProgramOutput>(i)))
        tensors.outputs[i] = context.output(i, takes_vectors(i) ? src.shape : rows_of_src.parameters);
    if (tensors.rows == 0) return;
    if (tensors.cols > long_row_ && tensors.rows < kFewRows && tensors.cols % 2 == 0) {
      for (int64_t row = 0; row < tensors.rows; ++row) program_.run_long_row(tensors, row, context);
      return;
    }
    const int64_t rows = std::max<int64_t>(2, kTaskElements / std::max<int64_t>(tensors.cols, 1) / 2 * 2);
    run_tasks(context, (tensors.rows + rows - 1) / rows,
              [&](int64_t task) { program_.run(tensors, task * rows, std::min(tensors.rows, (task + 1) * rows)); });
  }

 private:
  [[noreturn]] static void fail(const std::string& message) { throw Error(std::string(kName) + ": " + message); }

  // The longest row that is not split: sums have no parts.
  static int64_t longest_of(const Program& program) {
    if (program.has_sums()) return INT64_MAX;
    return program.is_elementwise() ? kLongRow / 2 : kLongRow;
  }

  RowAttributes rows_;
  Type code_type_;
  Program program_;
  int64_t long_row_;
};

}  // namespace

Operator row_program() {
  Operator op = {RowProgram::kName, kFirstOperand + kOperands, {}, make_node<RowProgram>, type_of_input<1>};
  for (const Type src : {kFloat, kFloat16})
    for (const Type code : {kUint8, kInt8, kUint4, kInt4})
      op.signatures.push_back({{src, code, kFloat, kFloat, kFloat, kFloat}, {code, code, src, src, kFloat, kFloat}});
  op.columns_input = Operator::kNoInput;
  return op;
}

}  // namespace dynq
