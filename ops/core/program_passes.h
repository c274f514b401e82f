// The passes of a program: its values as steps of kernels. core/program.h explains programs.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "core/program_kernels.h"

namespace dynq {

// A step over the numbers of rows. Slots have an offset in the memory of a run in place of an address.
struct NumberStep {
  Step step;
  int64_t offset_a, offset_b;  // in bytes; -1: the operand has an address
};

struct PlacedPass {
  bool is_of_numbers;  // over the numbers of several rows; otherwise over the elements of each row
  std::vector<PlacedStep> steps;
  std::optional<RangePass> range;  // if kernels of these kinds can run the pass
  std::optional<QuantizePass> quantization;
  std::optional<RangePass> known_range;  // of x: this pass finds it, or an earlier one
  bool stores_codes = false;
  bool reduces = false;
  std::vector<NumberStep> number_steps;        // the steps, if the pass is over numbers
  std::vector<std::pair<size_t, int>> stores;  // those of them that store an output: the step and the output
};

struct ProgramPasses {
  std::vector<PlacedPass> passes;  // in order
  std::vector<int> slots;          // of each value: where its numbers of rows are; -1: it has none
  std::vector<int> row_values;     // the values that are operands with numbers of rows, and have slots
  int slot_count = 0;
  int64_t number_steps = 0;  // of all passes over numbers
  int tile_count = 0;        // buffers of kTileElements elements
};

// `code_type` is the type of codes. reads_outputs: later passes read float outputs, which are float32, instead of
// computing them again. Throws Error if a pass has too many reductions.
ProgramPasses compile_program(const char* op, const ProgramText& program, Type code_type, bool reads_outputs);

}  // namespace dynq
