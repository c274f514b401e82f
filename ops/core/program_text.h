// The text of a program, read into values. core/program.h explains programs.
#pragma once

#include <string>
#include <vector>

#include "core/operator.h"
#include "kernels/programs.h"

namespace dynq {

enum class ProgramOutput { kCodes, kZeroPoint, kDst, kDst2, kScale, kNumber };
constexpr size_t kProgramOutputs = 6;
constexpr size_t kMaxOperands = 8;
constexpr const char* kIdentityProgram = "dst = x";  // of a node without the attribute

constexpr bool takes_vectors(size_t output) {
  return output == static_cast<size_t>(ProgramOutput::kCodes) || output == static_cast<size_t>(ProgramOutput::kDst) ||
         output == static_cast<size_t>(ProgramOutput::kDst2);
}

constexpr bool takes_codes(size_t output) {
  return output == static_cast<size_t>(ProgramOutput::kCodes) ||
         output == static_cast<size_t>(ProgramOutput::kZeroPoint);
}

constexpr bool is_reduction(StepKind step) { return step >= StepKind::kReduceMax; }

// How a program reads an operand.
enum class OperandForm { kUnused, kRow, kColumn, kTensor };

// What an expression computes.
struct ProgramValue {
  enum class Kind { kLiteral, kX, kRow, kColumn, kTensor, kStep, kReduction };
  Kind kind;
  StepKind step;               // of kStep and kReduction, with the first argument in the accumulator
  StepKind swapped;            // of two arguments, with the second one there; kLoad: there is none
  std::vector<int> arguments;  // earlier values
  int index;                   // of a literal or an operand
  bool is_vector;              // or a number
  int stage;                   // the first pass that can compute it
  bool is_condition = false;   // 1 or 0
};

struct ProgramText {
  std::vector<ProgramValue> values;
  std::vector<float> literals;
  OperandForm forms[kMaxOperands] = {};
  int outputs[kProgramOutputs];  // values; -1: not assigned

  const ProgramValue& at(int value) const { return values[static_cast<size_t>(value)]; }
};

// The name of the operator is for messages; `operands` is how many operands it has. Throws Error if the text is no
// valid program.
ProgramText parse_program(const char* op, const std::string& text, size_t operands);

}  // namespace dynq
