// RowProgram: a program over the rows of a tensor. core/program.h has the language.
#include "core/attributes.h"
#include "core/program.h"
#include "core/rows.h"

namespace dynq {
namespace {

constexpr size_t kFirstOperand = 2, kOperands = 4;

class RowProgram : public Node {
 public:
  static constexpr const char* kName = "RowProgram";

  explicit RowProgram(const Attributes& attributes)
      : rows_(kName, attributes),
        code_type_(read_any_code_type(kName, attributes, "code_type", kUint8)),
        program_(kName, attributes.text("program", kIdentityProgram), kOperands, code_type_) {}

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
    const Shape blocked = with_blocks(src.shape, rows_of_src);
    program_.set_operands(context, kFirstOperand, blocked, blocked.rank - src.shape.rank + rows_of_src.axis, tensors);
    for (size_t i = 0; i < kProgramOutputs; ++i)  // an output that is not assigned is not made
      if (program_.has_output(static_cast<ProgramOutput>(i)))
        tensors.outputs[i] = context.output(i, takes_vectors(i) ? src.shape : rows_of_src.parameters);
    program_.run_all(tensors, context);
  }

 private:
  [[noreturn]] static void fail(const std::string& message) { throw Error(std::string(kName) + ": " + message); }

  // The shape of src with its last dimension divided into blocks, if there are any.
  Shape with_blocks(Shape shape, const Rows& rows) const {
    if (!rows_.has_blocks()) return shape;
    if (shape.rank == kMaxRank)
      fail("src has rank " + std::to_string(kMaxRank) + ", expected at most " + std::to_string(kMaxRank - 1) +
           " with block_size");
    shape.dims[shape.rank - 1] = rows.blocks;
    shape.dims[shape.rank++] = rows.cols;
    return shape;
  }

  RowAttributes rows_;
  Type code_type_;
  Program program_;
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
