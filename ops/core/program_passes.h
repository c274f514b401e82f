// The passes of a program: its values as steps of kernels. core/program.h explains programs.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core/program_kernels.h"
#include "core/scratch.h"

namespace dynq {

// A step over the numbers of rows. Slots and outputs have an offset in the memory of numbers in place of an address.
struct NumberStep {
  Step step;
  int64_t offset_a, offset_b;  // in bytes; -1: the operand has an address
};

// An output of numbers: where a pass leaves them in the memory of numbers, in bytes.
struct NumberOutput {
  size_t output;
  int64_t offset;
};

struct PlacedPass {
  bool is_of_numbers;  // over the numbers of several rows; otherwise over the elements of each row
  std::vector<PlacedStep> steps;
  std::optional<RangePass> range;  // if kernels of these kinds can run the pass
  std::optional<QuantizePass> quantization;
  std::optional<RangePass> known_range;  // of x: this pass finds it, or an earlier one
  bool stores_codes = false;
  bool reduces = false;
  std::vector<NumberStep> number_steps;  // the steps, if the pass is over numbers
  int64_t first_number_step = 0;         // of all such steps of the program
  std::vector<NumberOutput> stores;      // those that it stores
};

struct ProgramPasses {
  std::vector<PlacedPass> passes;  // in order
  std::vector<int> slots;          // of each value: where its numbers of rows are; -1: it has none
  std::vector<int> row_values;     // the values that are operands with numbers of rows, and have slots
  int slot_count = 0;
  int64_t number_steps = 0;  // of all passes over numbers
  int tile_count = 0;        // buffers of kTileElements elements

  bool has_numbers() const { return slot_count > 0 || number_steps > 0; }
};

// The numbers of a run, which are in slots and then in outputs, and the steps over them. Setting the addresses of the
// steps takes longer than the steps of a few rows, so that a memory serves again and again.
class NumberMemory {
 public:
  explicit NumberMemory(const ProgramPasses& passes);

  float* slots() const { return numbers_.get(); }
  const Step* steps() const { return steps_.data(); }  // of all passes over numbers

 private:
  AlignedArray<float> numbers_;
  std::vector<Step> steps_;
};

// Keeps a memory for the next run. Several threads may take and give at the same time.
class NumberMemories {
 public:
  NumberMemories() = default;
  NumberMemories(const NumberMemories&) = delete;
  NumberMemories& operator=(const NumberMemories&) = delete;
  ~NumberMemories() { delete spare_.load(); }

  std::unique_ptr<NumberMemory> take(const ProgramPasses& passes) {
    std::unique_ptr<NumberMemory> spare(spare_.exchange(nullptr));
    return spare != nullptr ? std::move(spare) : std::make_unique<NumberMemory>(passes);
  }
  void give(std::unique_ptr<NumberMemory> memory) { delete spare_.exchange(memory.release()); }

 private:
  std::atomic<NumberMemory*> spare_{nullptr};
};

// `code_type` is the type of codes. reads_outputs: later passes read float outputs, which are float32, instead of
// computing them again. Throws Error if a pass has too many reductions.
ProgramPasses compile_program(const char* op, const ProgramText& program, Type code_type, bool reads_outputs);

}  // namespace dynq
