#include "core/program.h"

#include <algorithm>
#include <cstring>
#include <locale>
#include <map>
#include <memory>
#include <sstream>

#include "core/formats.h"
#include "core/parallel.h"
#include "core/scratch.h"
#include "kernels/dispatch.h"

namespace dynq {
namespace {

constexpr size_t kMostSteps = 64;
constexpr int kDeepest = 64;               // nested expressions
constexpr int64_t kMostRows = 16;          // that a pass takes at once; even, since two 4-bit codes share a byte
constexpr int64_t kBatchElements = 16384;  // of these rows: they stay in the first-level cache
constexpr int64_t kMostParts = 256;        // of a long row

constexpr const char* kOutputNames[kProgramOutputs] = {"codes", "zero_point", "dst", "dst_2", "scale", "number"};

constexpr bool takes_vectors(size_t output) {
  return output == static_cast<size_t>(ProgramOutput::kCodes) || output == static_cast<size_t>(ProgramOutput::kDst) ||
         output == static_cast<size_t>(ProgramOutput::kDst2);
}

constexpr bool takes_codes(size_t output) {
  return output == static_cast<size_t>(ProgramOutput::kCodes) ||
         output == static_cast<size_t>(ProgramOutput::kZeroPoint);
}

// The operations of the language. `swapped` exchanges the arguments of a step with two. An operation with `takes_one`
// has the number 1 as its first argument, which the text leaves out.
struct Operation {
  const char* name;
  size_t arguments;
  StepKind step;
  StepKind swapped = StepKind::kLoad;
  bool takes_one = false;
  bool is_logical = false;  // of conditions
};

constexpr Operation kOperations[] = {
    {"Abs", 1, StepKind::kAbs},
    {"Neg", 1, StepKind::kNeg},
    {"Sqrt", 1, StepKind::kSqrt},
    {"Reciprocal", 2, StepKind::kDiv, StepKind::kDivInto, true},
    {"Round", 1, StepKind::kRound},
    {"Floor", 1, StepKind::kFloor},
    {"Ceil", 1, StepKind::kCeil},
    {"Sign", 1, StepKind::kSign},
    {"Not", 2, StepKind::kSub, StepKind::kSubFrom, true, true},
    {"Float16", 1, StepKind::kToFloat16},
    {"Int8", 1, StepKind::kToInt8},
    {"Uint8", 1, StepKind::kToUint8},
    {"Int32", 1, StepKind::kToInt32},
    {"Add", 2, StepKind::kAdd, StepKind::kAdd},
    {"Sub", 2, StepKind::kSub, StepKind::kSubFrom},
    {"Mul", 2, StepKind::kMul, StepKind::kMul},
    {"Div", 2, StepKind::kDiv, StepKind::kDivInto},
    {"Max", 2, StepKind::kMax, StepKind::kMax},
    {"Min", 2, StepKind::kMin, StepKind::kMin},
    {"Equal", 2, StepKind::kEqual, StepKind::kEqual},
    {"Less", 2, StepKind::kLess, StepKind::kGreater},
    {"LessOrEqual", 2, StepKind::kLessOrEqual, StepKind::kGreaterOrEqual},
    {"Greater", 2, StepKind::kGreater, StepKind::kLess},
    {"GreaterOrEqual", 2, StepKind::kGreaterOrEqual, StepKind::kLessOrEqual},
    {"And", 2, StepKind::kMul, StepKind::kMul, false, true},
    {"Or", 2, StepKind::kMax, StepKind::kMax, false, true},
    {"LeakyRelu", 2, StepKind::kLeakyRelu},
    {"Clip", 3, StepKind::kClip},
    {"Where", 3, StepKind::kWhere},
    {"ReduceMax", 1, StepKind::kReduceMax},
    {"ReduceMin", 1, StepKind::kReduceMin},
};

constexpr bool is_reduction(StepKind step) { return step == StepKind::kReduceMax || step == StepKind::kReduceMin; }

}  // namespace

// Reads the text by recursive descent, and creates a value for each expression.
class Program::Parser {
 public:
  Parser(Program& program, const char* op, const std::string& text, size_t operands)
      : program_(program), op_(op), text_(text), operands_(operands) {}

  void parse() {
    std::fill_n(program_.outputs_, kProgramOutputs, -1);
    do {
      if (skip_space() == text_.size() && !names_.empty()) break;  // after the last semicolon
      const std::string name = word();
      if (name.empty()) fail("a name");
      if (names_.count(name) != 0 || is_input(name)) fail("a name that has no value yet instead of " + name);
      expect('=');
      names_[name] = expression(0);
      for (size_t i = 0; i < kProgramOutputs; ++i)
        if (name == kOutputNames[i]) set_output(i, names_[name]);
    } while (accept(';'));
    if (skip_space() != text_.size()) fail("';' or the end");
    bool has_output = false;
    for (const int value : program_.outputs_) has_output |= value >= 0;
    if (!has_output) fail("an output: codes, zero_point, dst, dst_2, scale or number");
  }

 private:
  [[noreturn]] void fail(const std::string& expected) const {
    throw Error(std::string(op_) + ": program, character " + std::to_string(at_ + 1) + ": expected " + expected);
  }

  size_t skip_space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
    return at_;
  }

  bool accept(char c) {
    if (skip_space() == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  void expect(char c) {
    if (!accept(c)) fail(std::string("'") + c + "'");
  }

  static bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
  static bool is_digit(char c) { return c >= '0' && c <= '9'; }

  // A name; empty if there is none.
  std::string word() {
    const size_t begin = skip_space();
    while (at_ < text_.size() && (is_letter(text_[at_]) || (at_ > begin && is_digit(text_[at_])))) ++at_;
    return text_.substr(begin, at_ - begin);
  }

  // The operand that a name as row1 means: its number from 0 on, or kMostOperands.
  size_t operand_of(const std::string& name, const char* prefix) const {
    const size_t length = std::strlen(prefix);
    if (name.size() != length + 1 || name.compare(0, length, prefix) != 0) return kMostOperands;
    const auto number = static_cast<size_t>(name.back() - '1');
    return name.back() >= '1' && number < operands_ ? number : kMostOperands;
  }

  bool is_input(const std::string& name) const {
    return name == "x" || name == "inf" || operand_of(name, "row") < kMostOperands ||
           operand_of(name, "column") < kMostOperands || operand_of(name, "tensor") < kMostOperands;
  }

  int expression(int depth) {
    if (depth > kDeepest) fail("at most " + std::to_string(kDeepest) + " nested expressions");
    const bool is_negative = accept('-');
    if (skip_space() < text_.size() && (is_digit(text_[at_]) || text_[at_] == '.'))
      return literal(number(), is_negative);
    const std::string name = word();
    if (name == "inf") return literal(kInfinity, is_negative);
    if (is_negative) fail("a number after '-'");
    if (accept('(')) return call(name, depth);
    if (const auto found = names_.find(name); found != names_.end()) return found->second;
    const int input = input_of(name);
    if (input < 0) fail(name.empty() ? "an expression" : "a name that has a value instead of " + name);
    return names_[name] = input;
  }

  float number() {
    const size_t begin = at_;
    while (at_ < text_.size() &&
           (is_digit(text_[at_]) || text_[at_] == '.' || text_[at_] == 'e' || text_[at_] == 'E' ||
            ((text_[at_] == '-' || text_[at_] == '+') && (text_[at_ - 1] == 'e' || text_[at_ - 1] == 'E'))))
      ++at_;
    std::istringstream stream(text_.substr(begin, at_ - begin));
    stream.imbue(std::locale::classic());  // strtof() depends on the process's locale
    double value = 0;
    if (!(stream >> value) || stream.peek() != std::istringstream::traits_type::eof()) fail("a number");
    return static_cast<float>(value);
  }

  int literal(float number, bool is_negative) {
    program_.literals_.push_back(is_negative ? -number : number);
    return add({Kind::kLiteral, {}, {}, {}, static_cast<int>(program_.literals_.size()) - 1, false, 0, -1});
  }

  int input_of(const std::string& name) {
    if (name == "x") return add({Kind::kX, {}, {}, {}, 0, true, 0, -1});
    struct Prefix {
      const char* text;
      Kind kind;
      Form form;
    };
    for (const Prefix& prefix : {Prefix{"row", Kind::kRow, Form::kRow}, Prefix{"column", Kind::kColumn, Form::kColumn},
                                 Prefix{"tensor", Kind::kTensor, Form::kTensor}}) {
      const size_t operand = operand_of(name, prefix.text);
      if (operand == kMostOperands) continue;
      Form& form = program_.forms_[operand];
      if (form != Form::kUnused) fail("one form of operand " + std::to_string(operand + 1));
      form = prefix.form;
      return add({prefix.kind, {}, {}, {}, static_cast<int>(operand), form != Form::kRow, 0, -1});
    }
    return -1;
  }

  int call(const std::string& name, int depth) {
    const Operation* found = nullptr;
    for (const Operation& each : kOperations)
      if (name == each.name) found = &each;
    if (found == nullptr) fail("an operation instead of " + name);
    Value value = {
        is_reduction(found->step) ? Kind::kReduction : Kind::kStep, found->step, found->swapped, {}, 0, false, 0, -1};
    if (found->takes_one) value.arguments.push_back(literal(1, false));
    value.is_condition =
        found->is_logical || (found->step >= StepKind::kEqual && found->step <= StepKind::kGreaterOrEqual);
    while (value.arguments.size() < found->arguments) {
      if (value.arguments.size() > (found->takes_one ? 1u : 0u)) expect(',');
      value.arguments.push_back(expression(depth + 1));
    }
    expect(')');
    check_arguments(name, *found, value.arguments);
    if (++steps_ > kMostSteps) fail("at most " + std::to_string(kMostSteps) + " operations");
    for (const int argument : value.arguments) {
      const Value& given = program_.values_[static_cast<size_t>(argument)];
      value.is_vector |= given.is_vector;
      value.stage = std::max(value.stage, given.stage);
    }
    if (value.kind == Kind::kReduction) {
      if (!value.is_vector) fail("elements to reduce, not numbers of rows");
      value.is_vector = false;
      ++value.stage;  // its argument's pass computes it, the next one reads it
    }
    return add(value);
  }

  void check_arguments(const std::string& name, const Operation& operation, const std::vector<int>& arguments) const {
    const auto at = [&](size_t i) -> const Value& { return program_.values_[static_cast<size_t>(arguments[i])]; };
    if (operation.step == StepKind::kClip || operation.step == StepKind::kLeakyRelu)
      for (size_t i = 1; i < arguments.size(); ++i)
        if (at(i).kind != Kind::kLiteral) fail(name + " with numbers after its first argument");
    const size_t conditions = operation.step == StepKind::kWhere ? 1 : operation.is_logical ? arguments.size() : 0;
    for (size_t i = operation.takes_one ? 1 : 0; i < conditions; ++i)
      if (!at(i).is_condition) fail(name + " of a comparison");
  }

  int add(const Value& value) {
    program_.values_.push_back(value);
    return static_cast<int>(program_.values_.size()) - 1;
  }

  void set_output(size_t output, int value) {
    if (takes_vectors(output) != program_.values_[static_cast<size_t>(value)].is_vector)
      fail(std::string(kOutputNames[output]) + " to be a number for each " +
           (takes_vectors(output) ? "element" : "row"));
    program_.outputs_[output] = value;
  }

  Program& program_;
  const char* op_;
  const std::string& text_;
  const size_t operands_;
  size_t at_ = 0, steps_ = 0;
  std::map<std::string, int> names_;
};

// Orders the values into passes. Stage by stage: first what is computed of numbers, then what is computed of elements.
class Program::Compiler {
 public:
  explicit Compiler(Program& program)
      : program_(program), needed_(size()), uses_(size()), tiles_(size(), -1), is_computed_(size()) {}

  void compile() {
    int last = 0;
    for (const int output : program_.outputs_)
      if (output >= 0) need(output);
    for (size_t i = 0; i < size(); ++i) {
      Value& value = program_.values_[i];
      if (needed_[i] && !value.is_vector && value.kind != Kind::kLiteral) value.slot = program_.slots_++;
      if (needed_[i]) last = std::max(last, value.stage);
    }
    for (int stage = 0; stage <= last; ++stage) {
      add_numbers(stage);
      add_elements(stage);
    }
  }

 private:
  size_t size() const { return program_.values_.size(); }
  const Value& at(int value) const { return program_.values_[static_cast<size_t>(value)]; }

  void need(int value) {
    if (needed_[static_cast<size_t>(value)]) return;
    needed_[static_cast<size_t>(value)] = true;
    for (const int argument : at(value).arguments) need(argument);
  }

  void add_numbers(int stage) {
    begin();
    for (size_t i = 0; i < size(); ++i) {
      const Value& value = program_.values_[i];
      if (!needed_[i] || value.is_vector || value.stage != stage || value.kind != Kind::kStep) continue;
      compute(static_cast<int>(i));
      is_computed_[i] = true;
      emit(StepKind::kStore, {Place::kSlot, value.slot});
    }
    for (size_t output = 0; output < kProgramOutputs; ++output)
      if (const int value = program_.outputs_[output]; value >= 0 && !takes_vectors(output) && at(value).stage == stage)
        store(value, output);
    finish(true);
  }

  void add_elements(int stage) {
    begin();
    std::vector<size_t> sinks;  // reductions
    for (size_t i = 0; i < size(); ++i)
      if (needed_[i] && program_.values_[i].kind == Kind::kReduction && program_.values_[i].stage == stage + 1)
        sinks.push_back(i);
    for (const size_t sink : sinks) use(at(static_cast<int>(sink)).arguments[0]);
    for (size_t output = 0; output < kProgramOutputs; ++output)
      if (stores(output, stage)) use(program_.outputs_[output]);
    int reductions = 0;
    for (const size_t sink : sinks) {
      evaluate(at(static_cast<int>(sink)).arguments[0]);
      emit(at(static_cast<int>(sink)).step, {Place::kSlot, at(static_cast<int>(sink)).slot});
      is_computed_[sink] = true;
      ++reductions;
    }
    for (size_t output = 0; output < kProgramOutputs; ++output)
      if (stores(output, stage)) store(program_.outputs_[output], output);
    program_.reductions_ = std::max(program_.reductions_, reductions);
    finish(false);
  }

  bool stores(size_t output, int stage) const {
    const int value = program_.outputs_[output];
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

  void finish(bool is_of_numbers) {
    if (!steps_.empty()) program_.passes_.push_back({is_of_numbers, steps_});
    program_.tiles_ = std::max(program_.tiles_, used_tiles_);
  }

  // Counts how often a pass over elements reads each value.
  void use(int value) {
    if (uses_[static_cast<size_t>(value)]++ > 0 || !at(value).is_vector) return;
    for (const int argument : at(value).arguments) use(argument);
  }

  void emit(StepKind kind, PlacedOperand a = {}, PlacedOperand b = {}) { steps_.push_back({kind, a, b}); }

  // Where the numbers of a value are in memory, or Place::kNone.
  PlacedOperand place_of(int value) const {
    const Value& found = at(value);
    switch (found.kind) {
      case Kind::kLiteral:
        return {Place::kLiteral, found.index};
      case Kind::kX:
        return {Place::kX, 0};
      case Kind::kColumn:
      case Kind::kTensor:
        return {Place::kOperand, found.index};
      case Kind::kRow:
        return {Place::kSlot, found.slot};
      case Kind::kStep:
      case Kind::kReduction:
        break;
    }
    if (is_computed_[static_cast<size_t>(value)]) return {Place::kSlot, found.slot};
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
    const Value& computed = at(value);
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
    const Value& clip = at(value);
    if (clip.kind != Kind::kStep || clip.step != StepKind::kClip || acc_ == value) return false;
    const bool is_signed = program_.code_type_ == kInt8;
    const float bounds[] = {is_signed ? -128.0f : 0.0f, is_signed ? 127.0f : 255.0f};
    for (size_t i = 0; i < 2; ++i) {
      const Value& bound = at(clip.arguments[i + 1]);
      if (bound.kind != Kind::kLiteral || program_.literals_[static_cast<size_t>(bound.index)] != bounds[i])
        return false;
    }
    return uses_[static_cast<size_t>(value)] == 1 && bits_of(program_.code_type_) == 8;
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

  Program& program_;
  std::vector<bool> needed_;
  std::vector<int> uses_, tiles_;  // in the current pass
  std::vector<bool> is_computed_;  // numbers
  std::vector<PlacedStep> steps_;
  int acc_ = -1, used_tiles_ = 0;
};

// The memory of one task, and the steps with the addresses of its rows.
class Program::Run {
 public:
  Run(const Program& program, const ProgramTensors& tensors)
      : program_(program),
        tensors_(tensors),
        kernel_(active_kernels().run_pass),
        src_(storage_of(tensors.src_type)),
        codes_(storage_of(program.code_type_)),
        slots_(slot_memory_.allocate(program.slots_ * kMostRows)),
        tiles_(aligned(tile_memory_.allocate((program.tiles_ + 1) * kTileElements + kAlignment / kSize))) {}

  void run(int64_t row, int64_t rows) {
    if (tensors_.cols > 0) prepare(row, 0, rows, tensors_.cols);
    read_rows(row, rows);
    for (const PlacedPass& pass : program_.passes_) {
      if (pass.is_of_numbers)
        run_numbers(pass, row, rows);
      else if (tensors_.cols > 0)
        run_elements(pass, row, 0, rows, tensors_.cols, true);
      else
        reduce_nothing(pass, rows);
    }
    if (tensors_.cols > 0) narrow(row, 0, rows, tensors_.cols);
  }

  // The numbers of one long row, whose parts other tasks run.
  void read_rows(int64_t row, int64_t rows) {
    for (const Value& value : program_.values_) {
      if (value.kind != Kind::kRow || value.slot < 0) continue;
      const auto operand = static_cast<size_t>(value.index);
      for (int64_t i = 0; i < rows; ++i)
        slot(value.slot)[i] = load(tensors_.operands[operand] + (row + i) % tensors_.operand_rows[operand]);
    }
  }

  void run_numbers(const PlacedPass& pass, int64_t row, int64_t rows) {
    begin_steps(pass);
    for (const PlacedStep& step : pass.steps) {
      const auto place = [&](const PlacedOperand& operand) -> StepOperand {
        switch (operand.place) {
          case Place::kSlot:
            return {address(slot(operand.index)), 0, kSize, true};
          case Place::kOutput:
            return output(operand.index, row, 0, kSize);
          case Place::kTile:
            return {address(tile(operand.index)), 0, 0, true};
          default:
            return literal(operand);
        }
      };
      add_step(step, place(step.a), place(step.b));
    }
    kernel_({steps_, step_count_, 1, rows, true});
    if (takes_4_bits())
      for (const PlacedStep& step : pass.steps)
        if (step.a.place == Place::kOutput && step.a.index == static_cast<int>(ProgramOutput::kZeroPoint))
          narrow_zero_points(row, rows);
  }

  // Columns [col, col + cols) of some rows. begins_row: these are the first ones of a row, for reductions.
  void run_elements(const PlacedPass& pass, int64_t row, int64_t col, int64_t rows, int64_t cols, bool begins_row) {
    begin_steps(pass);
    for (const PlacedStep& step : pass.steps) {
      const auto place = [&](const PlacedOperand& operand) -> StepOperand {
        switch (operand.place) {
          case Place::kSlot:
            return {address(slot(operand.index)), kSize, 0, false};
          case Place::kX:
            return x(row, col, cols);
          case Place::kOperand: {
            const auto index = static_cast<size_t>(operand.index);
            const int64_t stride = program_.forms_[index] == Form::kTensor ? tensors_.operand_stride : 0;
            return {address(tensors_.operands[index] + row * stride + col), stride * kSize, kSize, true};
          }
          case Place::kOutput:
            return output(operand.index, row, col, cols);
          case Place::kTile:
            return {address(tile(operand.index)), 0, 0, true};
          default:
            return literal(operand);
        }
      };
      add_step(step, place(step.a), place(step.b));
    }
    const Pass all = {steps_, step_count_, rows, cols, begins_row};
    kernel_(all);
    for (int64_t i = 0; i < step_count_; ++i)
      if (is_reduction(steps_[i].kind))
        for (int64_t j = 0; j < rows; ++j)
          if (float& number = *(reinterpret_cast<float*>(const_cast<char*>(steps_[i].a.at)) + j); number == 0)
            number = first_zero(all, i, j);
  }

  // Converts float16, and provides memory for 4-bit codes.
  void prepare(int64_t row, int64_t col, int64_t rows, int64_t cols) {
    if (src_.widen != nullptr) {
      widened_.resize(static_cast<size_t>(rows * cols));
      for (int64_t i = 0; i < rows; ++i)
        src_.widen(element(tensors_.src, src_, (row + i) * tensors_.src_stride + col), widened_.data() + i * cols,
                   cols);
    }
    if (takes_4_bits() && program_.has_output(ProgramOutput::kCodes)) bytes_.resize(static_cast<size_t>(rows * cols));
  }

  void narrow(int64_t row, int64_t col, int64_t rows, int64_t cols) {
    if (takes_4_bits() && program_.has_output(ProgramOutput::kCodes))
      codes_.narrow(bytes_.data(), element(tensors_.outputs[0], codes_, row * tensors_.cols + col), rows * cols);
  }

  float* slot(int index) { return slots_ + index * kMostRows; }

  // The reductions of rows without elements.
  void reduce_nothing(const PlacedPass& pass, int64_t rows) {
    for (const PlacedStep& step : pass.steps)
      if (is_reduction(step.kind))
        std::fill_n(slot(step.a.index), rows, step.kind == StepKind::kReduceMax ? -kInfinity : kInfinity);
  }

 private:
  static constexpr int64_t kSize = sizeof(float), kAlignment = 64;  // of tiles

  static float* aligned(float* memory) {
    const auto address = reinterpret_cast<uintptr_t>(memory);
    return memory + (-address & (kAlignment - 1)) / kSize;
  }

  static const char* address(const void* at) { return static_cast<const char*>(at); }

  bool takes_4_bits() const { return codes_.narrow != nullptr; }

  float* tile(int index) { return tiles_ + index * kTileElements; }

  StepOperand literal(const PlacedOperand& operand) const {
    static constexpr float kNothing = 0;
    const bool is_literal = operand.place == Place::kLiteral;
    return {address(is_literal ? &program_.literals_[static_cast<size_t>(operand.index)] : &kNothing), 0, 0, false};
  }

  StepOperand x(int64_t row, int64_t col, int64_t cols) const {
    if (src_.widen != nullptr) return {address(widened_.data()), cols * kSize, kSize, true};
    return {address(static_cast<const float*>(tensors_.src) + row * tensors_.src_stride + col),
            tensors_.src_stride * kSize, kSize, true};
  }

  StepOperand output(int index, int64_t row, int64_t col, int64_t cols) {
    const auto which = static_cast<size_t>(index);
    auto* to = static_cast<char*>(tensors_.outputs[which]);
    if (!takes_vectors(which)) {
      const int64_t size = takes_codes(which) ? 1 : static_cast<int64_t>(sizeof(float));
      return {takes_codes(which) && takes_4_bits() ? address(zero_points_) : to + row * size, 0, size, true};
    }
    if (takes_codes(which)) {
      if (takes_4_bits()) return {address(bytes_.data()), cols, 1, true};
      return {to + row * tensors_.cols + col, tensors_.cols, 1, true};
    }
    const int64_t size = bits_of(tensors_.dst_type) / 8;
    return {to + (row * tensors_.dst_stride + col) * size, tensors_.dst_stride * size, size, true};
  }

  // Two zero points share a byte. A task takes an even number of rows, but long rows one by one.
  void narrow_zero_points(int64_t row, int64_t rows) const {
    auto* to = static_cast<uint8_t*>(tensors_.outputs[static_cast<size_t>(ProgramOutput::kZeroPoint)]);
    for (int64_t i = 0; i < rows; ++i) {
      uint8_t code;
      codes_.narrow(zero_points_ + i, &code, 1);
      uint8_t& pair = to[(row + i) / 2];
      pair = static_cast<uint8_t>((row + i) % 2 == 0 ? code : pair | code << 4);
    }
  }

  void begin_steps(const PlacedPass& pass) {
    steps_ = step_memory_.allocate(static_cast<int64_t>(pass.steps.size()));
    step_count_ = 0;
  }

  void add_step(const PlacedStep& step, const StepOperand& a, const StepOperand& b) {
    StepKind kind = step.kind;
    if (step.a.place == Place::kOutput) {
      const auto output = static_cast<size_t>(step.a.index);
      const bool is_signed = program_.code_type_ == kInt8 || program_.code_type_ == kInt4;
      if (takes_codes(output))
        kind = is_signed ? StepKind::kStoreInt8 : StepKind::kStoreUint8;
      else if (takes_vectors(output) && tensors_.dst_type == kFloat16)
        kind = StepKind::kStoreF16;
    }
    steps_[step_count_++] = {kind, a, b};
  }

  // The first zero that reduction number `index` reduces in a row: kernels may return any of them.
  float first_zero(const Pass& pass, int64_t index, int64_t row) {
    float* found = tile(program_.tiles_);
    std::vector<Step> steps;
    for (int64_t col = 0; col < pass.cols; col += kTileElements) {
      steps.clear();
      for (int64_t i = 0; i <= index; ++i) {
        Step step = pass.steps[i];
        if (i == index) step = {StepKind::kStore, {address(found), 0, kSize, true}, {}};
        if (i < index && is_reduction(step.kind)) continue;
        for (StepOperand* operand : {&step.a, &step.b})
          if (operand->at != nullptr) operand->at += row * operand->row_bytes + col * operand->element_bytes;
        steps.push_back(step);
      }
      const int64_t cols = std::min(kTileElements, pass.cols - col);
      kernel_({steps.data(), static_cast<int64_t>(steps.size()), 1, cols, true});
      for (int64_t i = 0; i < cols; ++i)
        if (found[i] == 0) return found[i];
    }
    return 0;
  }

  const Program& program_;
  const ProgramTensors& tensors_;
  const PassKernel kernel_;
  const Storage src_, codes_;
  Scratch<float, 16 * kMostRows> slot_memory_;
  Scratch<float, 4 * kTileElements> tile_memory_;
  Scratch<Step, 24> step_memory_;
  float *const slots_, *const tiles_;
  std::vector<float> widened_;
  std::vector<uint8_t> bytes_;
  Step* steps_ = nullptr;
  int64_t step_count_ = 0;
  uint8_t zero_points_[kMostRows];
};

Program::Program(const char* op, const std::string& text, size_t operands, Type code_type)
    : op_(op), operands_(operands), code_type_(code_type) {
  Parser(*this, op, text, operands).parse();
  Compiler(*this).compile();
  if (reductions_ > kMostReductions)
    throw Error(std::string(op) + ": program has " + std::to_string(reductions_) +
                " reductions that do not depend on each other, expected at most " + std::to_string(kMostReductions));
}

bool Program::is_elementwise() const {
  for (size_t i = 0; i < kProgramOutputs; ++i)
    if ((outputs_[i] >= 0) != (i == static_cast<size_t>(ProgramOutput::kDst))) return false;
  return reductions_ == 0;
}

bool Program::is_clip(float& low, float& high) const {
  const int value = outputs_[static_cast<size_t>(ProgramOutput::kDst)];
  if (!is_elementwise() || values_[static_cast<size_t>(value)].step != StepKind::kClip) return false;
  const std::vector<int>& arguments = values_[static_cast<size_t>(value)].arguments;
  const auto argument = [&](size_t i) -> const Value& { return values_[static_cast<size_t>(arguments[i])]; };
  if (argument(0).kind != Kind::kX) return false;
  low = literals_[static_cast<size_t>(argument(1).index)];
  high = literals_[static_cast<size_t>(argument(2).index)];
  return true;
}

void Program::set_operands(Context& context, size_t first, const Shape& src, size_t axis,
                           ProgramTensors& tensors) const {
  for (size_t i = 0; i < operands_; ++i) {
    const Tensor operand = context.input(first + i);
    tensors.operands[i] = static_cast<const float*>(operand.data);
    tensors.operand_rows[i] = rows_of_operand(i, operand.shape, src, axis);
  }
}

// Checks the shape of an operand. Returns how many rows have numbers of their own, if it has numbers of rows.
int64_t Program::rows_of_operand(size_t index, const Shape& shape, const Shape& src, size_t axis) const {
  const Form form = forms_[index];
  if (form == Form::kUnused) return 1;
  bool fits = shape.rank <= src.rank, repeats = false;
  const size_t missing = fits ? src.rank - shape.rank : 0;
  int64_t rows = 1;
  for (size_t i = src.rank; fits && i-- > 0;) {
    const int64_t length = i < missing ? 1 : shape.dims[i - missing];
    const bool is_of_row = i >= axis;
    if (form == Form::kTensor || (form == Form::kColumn && is_of_row)) {
      fits = length == src.dims[i];
    } else if (form == Form::kColumn || is_of_row) {
      fits = length == 1;
    } else {
      // The numbers recur as a whole: a dimension that repeats them has no other dimension before it.
      fits = length == 1 || (length == src.dims[i] && !repeats);
      repeats |= length != src.dims[i];
      rows *= length;
    }
  }
  if (!fits) {
    static constexpr const char* kExpected[] = {"", "numbers of rows", "numbers of the elements of a row",
                                                "src's shape"};
    throw Error(op_ + ": operand_" + std::to_string(index + 1) + " has shape " + shape.text() + ", expected " +
                kExpected[static_cast<size_t>(form)] + " for src of shape " + src.text());
  }
  return rows;
}

void Program::run(const ProgramTensors& tensors, int64_t begin, int64_t end) const {
  Run run(*this, tensors);
  const int64_t wanted = kBatchElements / std::max<int64_t>(tensors.cols, 1) / 2 * 2;
  const int64_t batch = std::clamp<int64_t>(wanted, tensors.cols % 2 == 0 && slots_ > 0 ? 1 : 2, kMostRows);
  for (int64_t row = begin; row < end; row += batch) run.run(row, std::min(batch, end - row));
}

void Program::run_long_row(const ProgramTensors& tensors, int64_t row, Context& context) const {
  Run all(*this, tensors);
  all.read_rows(row, 1);
  const int64_t cols = tensors.cols, parts = part_count(cols, kMostParts);
  const auto begin = [&](int64_t part) { return part == parts ? cols : cols * part / parts / 64 * 64; };
  for (const PlacedPass& pass : passes_) {
    if (pass.is_of_numbers) {
      all.run_numbers(pass, row, 1);
      continue;
    }
    std::vector<float> numbers(static_cast<size_t>(parts * slots_));
    run_tasks(context, parts, [&](int64_t part) {
      Run run(*this, tensors);
      const int64_t col = begin(part), count = begin(part + 1) - col;
      for (int i = 0; i < slots_; ++i) *run.slot(i) = *all.slot(i);
      run.prepare(row, col, 1, count);
      run.run_elements(pass, row, col, 1, count, part == 0);
      run.narrow(row, col, 1, count);
      for (int i = 0; i < slots_; ++i) numbers[static_cast<size_t>(part * slots_ + i)] = *run.slot(i);
    });
    for (const PlacedStep& step : pass.steps) {
      if (!is_reduction(step.kind)) continue;
      float best = numbers[static_cast<size_t>(step.a.index)];
      for (int64_t part = 1; part < parts; ++part) {
        const float number = numbers[static_cast<size_t>(part * slots_ + step.a.index)];
        if (step.kind == StepKind::kReduceMax ? number > best : number < best) best = number;
      }
      *all.slot(step.a.index) = best;
    }
  }
}

Tail::Tail(const char* op, const Attributes& attributes)
    : program_(op, attributes.text("program", ""), kOperands, kInt8) {
  if (!program_.is_elementwise())
    throw Error(std::string(op) + ": program computes more than dst from each element, expected no reductions and no " +
                "other output");
}

ProgramTensors Tail::tensors(Context& context, size_t first, const Shape& shape, size_t axis) const {
  ProgramTensors tensors = {};
  tensors.src_type = tensors.dst_type = kFloat;
  tensors.cols = 1;
  for (size_t i = axis; i < shape.rank; ++i) tensors.cols *= shape.dims[i];
  tensors.src_stride = tensors.dst_stride = tensors.operand_stride = tensors.cols;
  program_.set_operands(context, first, shape, axis, tensors);
  return tensors;
}

void Tail::run(const ProgramTensors& tensors, float* dst, int64_t begin, int64_t end, int64_t col, int64_t cols) const {
  ProgramTensors part = tensors;
  part.cols = cols;
  part.src = part.outputs[static_cast<size_t>(ProgramOutput::kDst)] = dst + col;
  for (size_t i = 0; i < kOperands; ++i)
    if (program_.form(i) == Program::Form::kColumn || program_.form(i) == Program::Form::kTensor)
      part.operands[i] += col;
  program_.run(part, begin, end);
}

}  // namespace dynq
