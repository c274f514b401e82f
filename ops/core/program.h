// Programs: short lists of steps over the rows of a tensor, written as text.
//
//   r = ReduceMax(Abs(x)); s = Div(r, 127.0); codes = Clip(Round(Div(x, s)), -128.0, 127.0); scale = s
//
// ort_dynq/operators/program.py documents the language. A value is a vector, the elements of a row, or a number, one
// for each row. When a session opens, a program is read (program_text.h) and compiled (program_passes.h): to passes
// over the elements of rows, and between them passes over the numbers of several rows. kernels/programs.h has the steps
// of a pass.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/operator.h"
#include "core/program_passes.h"
#include "core/program_text.h"

namespace dynq {

// The tensors of one run, as rows. `rows` x `cols` elements.
struct ProgramTensors {
  int64_t rows, cols;
  const void* src;
  Type src_type;                                   // float32 or float16
  int64_t src_stride, dst_stride, operand_stride;  // from row to row, in elements
  const float* operands[kMaxOperands];
  int64_t operand_rows[kMaxOperands];  // the number of numbers that recur, for an operand of rows
  void* outputs[kProgramOutputs];      // null: not assigned
  Type dst_type;
};

class Program {
 public:
  // The name of the operator is for messages. `code_type` is the type of the outputs codes and zero_point. Throws Error
  // if the text is not a valid program. `only`: the program has no other output.
  Program(const char* op, const std::string& text, size_t operands, Type code_type,
          std::optional<ProgramOutput> only = std::nullopt);

  bool has_output(ProgramOutput output) const { return text_.outputs[static_cast<size_t>(output)] >= 0; }
  OperandForm form(size_t operand) const { return text_.forms[operand]; }
  bool reads_rows() const { return !passes_.row_values.empty(); }  // operands with a number for each row

  // Whether the program only changes elements: it has no reductions, and assigns dst and no other output, but perhaps
  // dst_2.
  bool is_elementwise(bool may_have_dst_2 = false) const;

  // Whether the program only clips x to these bounds, as a kernel may do itself.
  bool is_clip(float& low, float& high) const;

  // Reads the operands, which begin at input number `first`, and checks their shapes. A row of src consists of its
  // dimensions from `axis` on.
  void set_operands(Context& context, size_t first, const Shape& src, size_t axis, ProgramTensors& tensors) const;

  // Runs the program on rows [begin, end), on the calling thread.
  void run(const ProgramTensors& tensors, int64_t begin, int64_t end) const;

  // Runs it on all rows, on the threads of the context.
  void run_all(const ProgramTensors& tensors, Context& context) const;

 private:
  class Run;

  int64_t longest_row() const;
  void run_long_row(const ProgramTensors& tensors, int64_t row, Context& context) const;
  void run_parts(const PlacedPass& pass, const ProgramTensors& tensors, int64_t row, Run& all, Context& context) const;
  void join_parts(const PlacedPass& pass, const std::vector<float>& numbers, int64_t row, Run& all) const;

  friend class RepeatedProgram;

  const ProgramPasses& passes_of(const ProgramTensors& tensors) const;
  NumberMemories& memories_of(const ProgramTensors& tensors) const;
  bool has_sums() const;
  bool is_of_elements_only() const;
  int64_t rows_of_operand(size_t index, const Shape& shape, const Shape& src, size_t axis) const;

  const std::string op_;
  const size_t operands_;
  const Type code_type_;
  const ProgramText text_;
  const ProgramPasses passes_, passes_of_float16_;
  mutable NumberMemories memories_, memories_of_float16_;
  const bool ignores_rows_;    // an element depends on no number of its row, and on no number of its column
  const int64_t longest_row_;  // that is not split
};

// A program that runs on the same tensors again and again. Its steps get their addresses once, which takes longer than
// the steps of a short row.
class RepeatedProgram {
 public:
  // An elementwise program of float32: its operands are tensors or columns. The program and the tensors must outlive
  // this object.
  RepeatedProgram(const Program& program, const ProgramTensors& tensors);
  ~RepeatedProgram();

  void run();

 private:
  const int64_t rows_;
  std::vector<std::unique_ptr<Program::Run>> runs_;  // each of some rows
};

// The program of a product, as its attribute `program` says: it changes the elements of the result.
class Tail {
 public:
  static constexpr size_t kOperands = 3;

  Tail(const char* op, const Attributes& attributes);

  bool is_clip(float& low, float& high) const { return program_.is_clip(low, high); }

  // Reads the operands of a run: its result has this shape. Operands begin at input number `first`.
  ProgramTensors tensors(Context& context, size_t first, const Shape& shape, size_t axis) const;

  // Changes rows [begin, end) of the result, `cols` columns from number `col` on, on the calling thread.
  void run(const ProgramTensors& tensors, float* dst, int64_t begin, int64_t end, int64_t col, int64_t cols) const;

 private:
  Program program_;
};

// A product's operator with a program: the same signatures, then the program's operands.
Operator with_program(Operator product, const char* name, std::unique_ptr<Node> (*create)(const Attributes&));

}  // namespace dynq
