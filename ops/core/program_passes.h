// The passes of a program: its values as steps of kernels. core/program.h explains programs.
#pragma once

#include <vector>

#include "core/program_text.h"

namespace dynq {

// An operand of a step, before the tensors are known.
struct PlacedOperand {
  enum class Place { kNone, kLiteral, kSlot, kX, kOperand, kTile, kOutput };
  Place place = Place::kNone;
  int index = 0;  // of the literal, the slot, ...
};

struct PlacedStep {
  StepKind kind;
  PlacedOperand a, b;
};

struct PlacedPass {
  bool is_of_numbers;  // over the numbers of several rows; otherwise over the elements of each row
  std::vector<PlacedStep> steps;
};

struct ProgramPasses {
  std::vector<PlacedPass> passes;  // in order
  std::vector<int> slots;          // of each value: where its numbers of rows are; -1: it has none
  int slot_count = 0;
  int tile_count = 0;  // buffers of kTileElements elements
};

// `code_type` is the type of codes. reads_outputs: later passes read float outputs, which are float32, instead of
// computing them again. Throws Error if a pass has too many reductions.
ProgramPasses compile_program(const char* op, const ProgramText& program, Type code_type, bool reads_outputs);

}  // namespace dynq
