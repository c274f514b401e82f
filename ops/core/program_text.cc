#include "core/program_text.h"

#include <algorithm>
#include <cstring>
#include <locale>
#include <map>
#include <sstream>
#include <utility>

#include "kernels/numbers.h"

namespace dynq {
namespace {

using Kind = ProgramValue::Kind;

constexpr size_t kMaxSteps = 64;
constexpr int kMaxNesting = 64;  // nested expressions

constexpr const char* kOutputNames[kProgramOutputs] = {"codes", "zero_point", "dst", "dst_2", "scale", "number"};

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
    {"Sigmoid", 1, StepKind::kSigmoid},
    {"Gelu", 1, StepKind::kGelu},
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
    {"PRelu", 2, StepKind::kLeakyRelu},
    {"Clip", 3, StepKind::kClip},
    {"Where", 3, StepKind::kWhere},
    {"ReduceMax", 1, StepKind::kReduceMax},
    {"ReduceMin", 1, StepKind::kReduceMin},
    {"ReduceSum", 1, StepKind::kReduceSum},
};

// Reads the text by recursive descent, and creates a value for each expression.
class Parser {
 public:
  Parser(const char* op, const std::string& text, size_t operands) : op_(op), text_(text), operands_(operands) {}

  ProgramText parse() {
    std::fill_n(program_.outputs, kProgramOutputs, -1);
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
    for (const int value : program_.outputs) has_output |= value >= 0;
    if (!has_output) fail("an output: codes, zero_point, dst, dst_2, scale or number");
    return std::move(program_);
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

  // The operand that a name as row1 means: its number from 0 on, or kMaxOperands.
  size_t operand_of(const std::string& name, const char* prefix) const {
    const size_t length = std::strlen(prefix);
    if (name.size() != length + 1 || name.compare(0, length, prefix) != 0) return kMaxOperands;
    const auto number = static_cast<size_t>(name.back() - '1');
    return name.back() >= '1' && number < operands_ ? number : kMaxOperands;
  }

  bool is_input(const std::string& name) const {
    return name == "x" || name == "inf" || operand_of(name, "row") < kMaxOperands ||
           operand_of(name, "column") < kMaxOperands || operand_of(name, "tensor") < kMaxOperands;
  }

  int expression(int depth) {
    if (depth > kMaxNesting) fail("at most " + std::to_string(kMaxNesting) + " nested expressions");
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
    program_.literals.push_back(is_negative ? -number : number);
    return add({Kind::kLiteral, {}, {}, {}, static_cast<int>(program_.literals.size()) - 1, false, 0});
  }

  int input_of(const std::string& name) {
    if (name == "x") return add({Kind::kX, {}, {}, {}, 0, true, 0});
    struct Prefix {
      const char* text;
      Kind kind;
      OperandForm form;
    };
    for (const Prefix& prefix :
         {Prefix{"row", Kind::kRow, OperandForm::kRow}, Prefix{"column", Kind::kColumn, OperandForm::kColumn},
          Prefix{"tensor", Kind::kTensor, OperandForm::kTensor}}) {
      const size_t operand = operand_of(name, prefix.text);
      if (operand == kMaxOperands) continue;
      OperandForm& form = program_.forms[operand];
      if (form != OperandForm::kUnused) fail("one form of operand " + std::to_string(operand + 1));
      form = prefix.form;
      return add({prefix.kind, {}, {}, {}, static_cast<int>(operand), form != OperandForm::kRow, 0});
    }
    return -1;
  }

  int call(const std::string& name, int depth) {
    const Operation* found = nullptr;
    for (const Operation& each : kOperations)
      if (name == each.name) found = &each;
    if (found == nullptr) fail("an operation instead of " + name);
    ProgramValue value = {
        is_reduction(found->step) ? Kind::kReduction : Kind::kStep, found->step, found->swapped, {}, 0, false, 0};
    if (found->takes_one) value.arguments.push_back(literal(1, false));
    value.is_condition =
        found->is_logical || (found->step >= StepKind::kEqual && found->step <= StepKind::kGreaterOrEqual);
    while (value.arguments.size() < found->arguments) {
      if (value.arguments.size() > (found->takes_one ? 1u : 0u)) expect(',');
      value.arguments.push_back(expression(depth + 1));
    }
    expect(')');
    check_arguments(name, *found, value.arguments);
    if (++steps_ > kMaxSteps) fail("at most " + std::to_string(kMaxSteps) + " operations");
    for (const int argument : value.arguments) {
      const ProgramValue& given = program_.at(argument);
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
    const auto at = [&](size_t i) -> const ProgramValue& { return program_.at(arguments[i]); };
    if (operation.step == StepKind::kClip || name == "LeakyRelu")
      for (size_t i = 1; i < arguments.size(); ++i)
        if (at(i).kind != Kind::kLiteral) fail(name + " with numbers after its first argument");
    const size_t conditions = operation.step == StepKind::kWhere ? 1 : operation.is_logical ? arguments.size() : 0;
    for (size_t i = operation.takes_one ? 1 : 0; i < conditions; ++i)
      if (!at(i).is_condition) fail(name + " of a comparison");
  }

  int add(const ProgramValue& value) {
    program_.values.push_back(value);
    return static_cast<int>(program_.values.size()) - 1;
  }

  void set_output(size_t output, int value) {
    if (takes_vectors(output) != program_.at(value).is_vector)
      fail(std::string(kOutputNames[output]) + " to be a number for each " +
           (takes_vectors(output) ? "element" : "row"));
    program_.outputs[output] = value;
  }

  ProgramText program_;
  const char* op_;
  const std::string& text_;
  const size_t operands_;
  size_t at_ = 0, steps_ = 0;
  std::map<std::string, int> names_;
};

}  // namespace

ProgramText parse_program(const char* op, const std::string& text, size_t operands) {
  return Parser(op, text, operands).parse();
}

}  // namespace dynq
