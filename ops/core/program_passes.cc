#include "core/program_passes.h"

#include <algorithm>
#include <cassert>
#include <string>
#include <utility>

namespace dynq {
namespace {

using Kind = ProgramValue::Kind;
using Place = PlacedOperand::Place;

// Orders the values into passes. Stage by stage: first what is computed of numbers, then what is computed of elements.
class Compiler {
 public:
  Compiler(const ProgramText& program, Type code_type, bool reads_outputs)
      : program_(program),
        code_type_(code_type),
        reads_outputs_(reads_outputs),
        needed_(size()),
        uses_(size()),
        tiles_(size(), -1),
        stored_(size(), -1),
        is_computed_(size()) {
    result_.slots.assign(size(), -1);
  }

  ProgramPasses compile(const char* op) {
    int last = 0;
    for (const int output : program_.outputs)
      if (output >= 0) need(output);
    for (size_t i = 0; i < size(); ++i) {
      const ProgramValue& value = program_.values[i];
      if (needed_[i] && !value.is_vector && value.kind != Kind::kLiteral) result_.slots[i] = result_.slot_count++;
      if (needed_[i]) last = std::max(last, value.stage);
    }
    for (int stage = 0; stage <= last; ++stage) {
      add_numbers(stage);
      add_elements(stage);
    }
    if (reductions_ > kMaxReductions)
      throw Error(std::string(op) + ": program has " + std::to_string(reductions_) +
                  " reductions that do not depend on each other, expected at most " + std::to_string(kMaxReductions));
    for (size_t i = 0; i < size(); ++i)
      if (program_.values[i].kind == Kind::kRow && result_.slots[i] >= 0)
        result_.row_values.push_back(static_cast<int>(i));
    remove_unread_numbers();
    choose_kernels();
    for (PlacedPass& pass : result_.passes)
      if (pass.is_of_numbers) place_numbers(pass);
    return std::move(result_);
  }

 private:
  size_t size() const { return program_.values.size(); }
  const ProgramValue& at(int value) const { return program_.at(value); }
  int slot_of(int value) const { return result_.slots[static_cast<size_t>(value)]; }

  void need(int value) {
    if (needed_[static_cast<size_t>(value)]) return;
    needed_[static_cast<size_t>(value)] = true;
    for (const int argument : at(value).arguments) need(argument);
  }

  void add_numbers(int stage) {
    begin();
    for (size_t i = 0; i < size(); ++i) {
      const ProgramValue& value = program_.values[i];
      if (!needed_[i] || value.is_vector || value.stage != stage || value.kind != Kind::kStep) continue;
      compute(static_cast<int>(i));
      is_computed_[i] = true;
      emit(StepKind::kStore, {Place::kSlot, result_.slots[i]});
      for (size_t output = 0; output < kProgramOutputs; ++output)
        if (program_.outputs[output] == static_cast<int>(i) && !takes_vectors(output))
          store(program_.outputs[output], output);
    }
    for (size_t output = 0; output < kProgramOutputs; ++output)
      if (const int value = program_.outputs[output];
          value >= 0 && !takes_vectors(output) && at(value).stage == stage && at(value).kind != Kind::kStep)
        store(value, output);
    finish(true);
  }

  void add_elements(int stage) {
    begin();
    std::vector<size_t> sinks;  // reductions
    for (size_t i = 0; i < size(); ++i)
      if (needed_[i] && program_.values[i].kind == Kind::kReduction && program_.values[i].stage == stage + 1)
        sinks.push_back(i);
    for (const size_t sink : sinks) use(at(static_cast<int>(sink)).arguments[0]);
    for (size_t output = 0; output < kProgramOutputs; ++output)
      if (stores(output, stage)) use(program_.outputs[output]);
    int reductions = 0;
    for (const size_t sink : sinks) {
      evaluate(at(static_cast<int>(sink)).arguments[0]);
      emit(at(static_cast<int>(sink)).step, {Place::kSlot, result_.slots[sink]});
      is_computed_[sink] = true;
      ++reductions;
    }
    for (size_t output = 0; output < kProgramOutputs; ++output)
      if (stores(output, stage)) store(program_.outputs[output], output);
    reductions_ = std::max(reductions_, reductions);
    finish(false);
    for (size_t output = 0; output < kProgramOutputs; ++output)
      if (reads_outputs_ && stores(output, stage) && !takes_codes(output))
        stored_[static_cast<size_t>(program_.outputs[output])] = static_cast<int>(output);
  }

  bool stores(size_t output, int stage) const {
    const int value = program_.outputs[output];
    return value >= 0 && takes_vectors(output) && at(value).stage == stage;
  }

  void store(int value, size_t output) {
    if (takes_vectors(output) && takes_codes(output) && is_clipped_as_codes(value)) value = at(value).arguments[0];
    evaluate(value);
    emit(StepKind::kStore, {Place::kOutput, static_cast<int>(output)});
  }

  void begin() {
    steps_.clear();
    acc_ = -1;
    std::fill(uses_.begin(), uses_.end(), 0);
    std::fill(tiles_.begin(), tiles_.end(), -1);
    used_tiles_ = 0;
  }

  // Sets the steps of a pass over numbers.
  void place_numbers(PlacedPass& pass) {
    pass.first_number_step = result_.number_steps;
    result_.number_steps += static_cast<int64_t>(pass.steps.size());
    for (const PlacedStep& placed : pass.steps) {
      NumberStep step = {{placed.kind, {}, {}}, 0, 0};
      step.offset_a = place_number(placed.a, step.step.a);
      step.offset_b = place_number(placed.b, step.step.b);
      if (placed.a.place == Place::kOutput) {
        const auto output = static_cast<size_t>(placed.a.index);
        if (takes_codes(output)) step.step.kind = store_of(code_type_);
        pass.stores.push_back({output, step.offset_a});
      }
      pass.number_steps.push_back(step);
    }
  }

  // Returns the offset of a slot or an output; -1 for other operands: their address is set. No operand is a tile: each
  // number that is computed has a slot.
  int64_t place_number(const PlacedOperand& operand, StepOperand& at) const {
    constexpr int64_t kSize = sizeof(float), kSlot = kMaxPassRows * kSize;
    static constexpr float kNothing = 0;
    if (operand.place == Place::kSlot) {
      at = {nullptr, 0, kSize, true};
      return operand.index * kSlot;
    }
    if (operand.place == Place::kOutput) {
      at = {nullptr, 0, takes_codes(static_cast<size_t>(operand.index)) ? 1 : kSize, true};
      return (result_.slot_count + operand.index) * kSlot;
    }
    assert(operand.place != Place::kTile);
    const bool is_literal = operand.place == Place::kLiteral;
    const float* number = is_literal ? &program_.literals[static_cast<size_t>(operand.index)] : &kNothing;
    at = {reinterpret_cast<const char*>(number), 0, 0, false};
    return -1;
  }

  // Numbers that only the next step reads stay in registers.
  void remove_unread_numbers() {
    std::vector<bool> is_read(static_cast<size_t>(result_.slot_count));
    const auto stores = [](const PlacedStep& step) { return step.kind == StepKind::kStore || is_reduction(step.kind); };
    for (const PlacedPass& pass : result_.passes)
      for (const PlacedStep& step : pass.steps)
        for (const PlacedOperand& operand : {step.a, step.b})
          if (operand.place == Place::kSlot && !stores(step)) is_read[static_cast<size_t>(operand.index)] = true;
    for (PlacedPass& pass : result_.passes) {
      const auto is_unread = [&](const PlacedStep& step) {
        return step.kind == StepKind::kStore && step.a.place == Place::kSlot &&
               !is_read[static_cast<size_t>(step.a.index)];
      };
      pass.steps.erase(std::remove_if(pass.steps.begin(), pass.steps.end(), is_unread), pass.steps.end());
    }
  }

  // Which kernels can run a pass over elements in place of its steps.
  void choose_kernels() {
    std::optional<RangePass> range;  // of x
    for (PlacedPass& pass : result_.passes) {
      if (pass.is_of_numbers) continue;
      pass.range = range_of(pass.steps, !reads_outputs_);
      if (pass.range) range = pass.range;
      pass.known_range = range;
      if (!pass.range) pass.quantization = QuantizePass::of(pass.steps, program_.literals, code_type_);
    }
  }

  void finish(bool is_of_numbers) {
    if (!steps_.empty()) {
      const bool stores_codes = std::any_of(steps_.begin(), steps_.end(), [&](const PlacedStep& step) {
        return step.a == PlacedOperand{Place::kOutput, static_cast<int>(ProgramOutput::kCodes)};
      });
      const bool reduces =
          std::any_of(steps_.begin(), steps_.end(), [](const PlacedStep& step) { return is_reduction(step.kind); });
      result_.passes.push_back({is_of_numbers, steps_, {}, {}, {}, stores_codes, reduces, {}, 0, {}});
    }
    result_.tile_count = std::max(result_.tile_count, used_tiles_);
  }

  // Counts how often a pass over elements reads each value.
  void use(int value) {
    if (uses_[static_cast<size_t>(value)]++ > 0 || !at(value).is_vector) return;
    for (const int argument : at(value).arguments) use(argument);
  }

  void emit(StepKind kind, PlacedOperand a = {}, PlacedOperand b = {}) { steps_.push_back({kind, a, b}); }

  // Where the numbers of a value are in memory, or Place::kNone.
  PlacedOperand place_of(int value) const {
    const ProgramValue& found = at(value);
    switch (found.kind) {
      case Kind::kLiteral:
        return {Place::kLiteral, found.index};
      case Kind::kX:
        return {Place::kX, 0};
      case Kind::kColumn:
      case Kind::kTensor:
        return {Place::kOperand, found.index};
      case Kind::kRow:
        return {Place::kSlot, slot_of(value)};
      case Kind::kStep:
      case Kind::kReduction:
        break;
    }
    if (is_computed_[static_cast<size_t>(value)]) return {Place::kSlot, slot_of(value)};
    if (const int output = stored_[static_cast<size_t>(value)]; output >= 0) return {Place::kOutput, output};
    const int tile = tiles_[static_cast<size_t>(value)];
    return tile < 0 ? PlacedOperand{} : PlacedOperand{Place::kTile, tile};
  }

  // Computes a value into the accumulator.
  void evaluate(int value) {
    if (acc_ == value) return;
    if (const PlacedOperand place = place_of(value); place.place != Place::kNone) {
      emit(StepKind::kLoad, place);
      acc_ = value;
      return;
    }
    compute(value);
    if (uses_[static_cast<size_t>(value)] > 1) keep(value);
  }

  void compute(int value) {
    const ProgramValue& computed = at(value);
    const std::vector<int>& arguments = computed.arguments;
    if (arguments.size() == 1) {
      evaluate(arguments[0]);
      emit(computed.step);
    } else if (arguments.size() == 2) {
      const bool swaps = computed.swapped != StepKind::kLoad && place_of(arguments[0]).place != Place::kNone &&
                         (arguments[1] == acc_ || place_of(arguments[1]).place == Place::kNone);
      const int first = arguments[swaps ? 1 : 0], second = arguments[swaps ? 0 : 1];
      const PlacedOperand operand = in_memory(second);
      evaluate(first);
      emit(swaps ? computed.swapped : computed.step, operand);
    } else {
      const PlacedOperand a = in_memory(arguments[1]), b = in_memory(arguments[2]);
      evaluate(arguments[0]);
      emit(computed.step, a, b);
    }
    acc_ = value;
  }

  // Whether a value is clipped to the range of codes, as the step that stores codes does.
  bool is_clipped_as_codes(int value) const {
    const ProgramValue& clip = at(value);
    if (clip.kind != Kind::kStep || clip.step != StepKind::kClip || acc_ == value) return false;
    const bool is_signed = code_type_ == kInt8;
    const float bounds[] = {is_signed ? -128.0f : 0.0f, is_signed ? 127.0f : 255.0f};
    for (size_t i = 0; i < 2; ++i) {
      const ProgramValue& bound = at(clip.arguments[i + 1]);
      if (bound.kind != Kind::kLiteral || program_.literals[static_cast<size_t>(bound.index)] != bounds[i])
        return false;
    }
    return uses_[static_cast<size_t>(value)] == 1 && bits_of(code_type_) == 8;
  }

  PlacedOperand in_memory(int value) {
    if (place_of(value).place == Place::kNone) {
      evaluate(value);
      keep(value);
    }
    return place_of(value);
  }

  // Stores the accumulator, which is this value.
  void keep(int value) {
    int& tile = tiles_[static_cast<size_t>(value)];
    if (tile >= 0) return;
    tile = used_tiles_++;
    emit(StepKind::kStore, {Place::kTile, tile});
  }

  const ProgramText& program_;
  const Type code_type_;
  const bool reads_outputs_;
  ProgramPasses result_;
  std::vector<bool> needed_;
  std::vector<int> uses_, tiles_;  // in the current pass
  std::vector<int> stored_;        // the output that an earlier pass has stored, of vectors
  std::vector<bool> is_computed_;  // numbers
  std::vector<PlacedStep> steps_;
  int acc_ = -1, used_tiles_ = 0, reductions_ = 0;
};

}  // namespace

NumberMemory::NumberMemory(const ProgramPasses& passes)
    : numbers_((passes.slot_count + static_cast<int64_t>(kProgramOutputs)) * kMaxPassRows) {
  const char* const memory = reinterpret_cast<const char*>(numbers_.get());
  steps_.reserve(static_cast<size_t>(passes.number_steps));
  for (const PlacedPass& pass : passes.passes)
    for (const NumberStep& placed : pass.number_steps) {
      Step& step = steps_.emplace_back(placed.step);
      if (placed.offset_a >= 0) step.a.at = memory + placed.offset_a;
      if (placed.offset_b >= 0) step.b.at = memory + placed.offset_b;
    }
}

ProgramPasses compile_program(const char* op, const ProgramText& program, Type code_type, bool reads_outputs) {
  return Compiler(program, code_type, reads_outputs).compile(op);
}

}  // namespace dynq
