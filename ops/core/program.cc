#include "core/program.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <vector>

#include "core/parallel.h"
#include "core/program_run.h"
#include "core/rows.h"

namespace dynq {
namespace {

constexpr int64_t kPassElements = 16384;  // of the rows that a pass takes at once: they stay in the caches

ProgramText with_only(std::optional<ProgramOutput> only, ProgramText program) {
  for (size_t i = 0; only && i < kProgramOutputs; ++i)
    if (i != static_cast<size_t>(*only)) program.outputs[i] = -1;
  return program;
}

}  // namespace

Program::Program(const char* op, const std::string& text, size_t operands, Type code_type,
                 std::optional<ProgramOutput> only)
    : op_(op),
      operands_(operands),
      code_type_(code_type),
      text_(with_only(only, parse_program(op, text, operands))),
      passes_(compile_program(op, text_, code_type, true)),
      passes_of_float16_(compile_program(op, text_, code_type, false)),
      ignores_rows_(is_of_elements_only()),
      longest_row_(longest_row()) {}

const ProgramPasses& Program::passes_of(const ProgramTensors& tensors) const {
  return tensors.dst_type == kFloat16 ? passes_of_float16_ : passes_;
}

NumberMemories& Program::memories_of(const ProgramTensors& tensors) const {
  return tensors.dst_type == kFloat16 ? memories_of_float16_ : memories_;
}

bool Program::is_elementwise(bool may_have_dst_2) const {
  for (size_t i = 0; i < kProgramOutputs; ++i)
    if (!(may_have_dst_2 && i == static_cast<size_t>(ProgramOutput::kDst2)) &&
        (text_.outputs[i] >= 0) != (i == static_cast<size_t>(ProgramOutput::kDst)))
      return false;
  for (const PlacedPass& pass : passes_.passes)
    for (const PlacedStep& step : pass.steps)
      if (is_reduction(step.kind)) return false;
  return true;
}

bool Program::is_of_elements_only() const {
  for (const OperandForm form : text_.forms)
    if (form == OperandForm::kRow || form == OperandForm::kColumn) return false;
  return is_elementwise(true);
}

bool Program::has_sums() const {
  for (const PlacedPass& pass : passes_.passes)
    for (const PlacedStep& step : pass.steps)
      if (step.kind == StepKind::kReduceSum) return true;
  return false;
}

bool Program::is_clip(float& low, float& high) const {
  const int value = text_.outputs[static_cast<size_t>(ProgramOutput::kDst)];
  if (!is_elementwise()) return false;
  if (text_.at(value).kind == ProgramValue::Kind::kX) return true;
  if (text_.at(value).step != StepKind::kClip) return false;
  const std::vector<int>& arguments = text_.at(value).arguments;
  const auto argument = [&](size_t i) -> const ProgramValue& { return text_.at(arguments[i]); };
  if (argument(0).kind != ProgramValue::Kind::kX) return false;
  low = text_.literals[static_cast<size_t>(argument(1).index)];
  high = text_.literals[static_cast<size_t>(argument(2).index)];
  return true;
}

void Program::set_operands(Context& context, size_t first, const Shape& src, size_t axis,
                           ProgramTensors& tensors) const {
  for (size_t i = 0; i < operands_; ++i) {
    if (text_.forms[i] == OperandForm::kUnused) continue;
    const Tensor operand = context.input(first + i);
    tensors.operands[i] = static_cast<const float*>(operand.data);
    tensors.operand_rows[i] = rows_of_operand(i, operand.shape, src, axis);
  }
}

// Checks the shape of an operand. Returns how many rows have numbers of their own, if it has numbers of rows.
int64_t Program::rows_of_operand(size_t index, const Shape& shape, const Shape& src, size_t axis) const {
  const OperandForm form = text_.forms[index];
  if (form == OperandForm::kUnused) return 1;
  bool fits = shape.rank <= src.rank, repeats = false;
  const size_t missing = fits ? src.rank - shape.rank : 0;
  int64_t rows = 1;
  for (size_t i = src.rank; fits && i-- > 0;) {
    const int64_t length = i < missing ? 1 : shape.dims[i - missing];
    const bool is_of_row = i >= axis;
    if (form == OperandForm::kTensor || (form == OperandForm::kColumn && is_of_row)) {
      fits = length == src.dims[i];
    } else if (form == OperandForm::kColumn || is_of_row) {
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
  const int64_t cols = tensors.cols;
  if (ignores_rows_ && tensors.src_stride == cols && tensors.dst_stride == cols && tensors.operand_stride == cols) {
    // Adjacent rows are as one: short rows would end in parts of vectors.
    for (int64_t col = 0, end_col = (end - begin) * cols; col < end_col; col += kPassElements) {
      run.begin_part(false);
      for (const PlacedPass& pass : passes_of(tensors).passes)
        if (pass.is_of_numbers)
          run.run_numbers(pass, begin, 1);
        else
          run.run_elements(pass, {begin, col, 1, std::min(kPassElements, end_col - col)}, true);
    }
    return;
  }
  const int64_t wanted = kPassElements / std::max<int64_t>(tensors.cols, 1) / 2 * 2;
  const int64_t batch =
      std::clamp<int64_t>(wanted, tensors.cols % 2 == 0 && passes_.slot_count > 0 ? 1 : 2, kMaxPassRows);
  for (int64_t row = begin; row < end; row += batch) run.run(row, std::min(batch, end - row));
}

void Program::run_all(const ProgramTensors& tensors, Context& context) const {
  if (tensors.rows == 0) return;
  if (tensors.cols > longest_row_ && tensors.rows < kFewRows && (tensors.cols % 2 == 0 || tensors.rows == 1)) {
    for (int64_t row = 0; row < tensors.rows; ++row) run_long_row(tensors, row, context);
    return;
  }
  const int64_t rows = std::max<int64_t>(2, kTaskElements / std::max<int64_t>(tensors.cols, 1) / 2 * 2);
  run_tasks(context, (tensors.rows + rows - 1) / rows,
            [&](int64_t task) { run(tensors, task * rows, std::min(tensors.rows, (task + 1) * rows)); });
}

// The longest row that is not split. Sums have no parts, since that would change the order of the additions.
int64_t Program::longest_row() const {
  if (has_sums()) return INT64_MAX;
  return is_elementwise() ? kLongRow / 2 : kLongRow;
}

RepeatedProgram::RepeatedProgram(const Program& program, const ProgramTensors& tensors) : rows_(tensors.rows) {
  for (int64_t row = 0; row < rows_; row += kMaxPassRows)
    runs_.push_back(std::make_unique<Program::Run>(program, tensors));
}

RepeatedProgram::~RepeatedProgram() = default;

void RepeatedProgram::run() {
  int64_t row = 0;
  for (const auto& part : runs_) {
    part->run_again(row, std::min(kMaxPassRows, rows_ - row));
    row += kMaxPassRows;
  }
}

void Program::run_long_row(const ProgramTensors& tensors, int64_t row, Context& context) const {
  Run all(*this, tensors);
  all.read_rows(row, 1);
  for (const PlacedPass& pass : passes_of(tensors).passes)
    if (pass.is_of_numbers)
      all.run_numbers(pass, row, 1);
    else
      run_parts(pass, tensors, row, all, context);
}

// Runs a pass over the parts of a long row. `all` has the numbers of the row.
void Program::run_parts(const PlacedPass& pass, const ProgramTensors& tensors, int64_t row, Run& all,
                        Context& context) const {
  const Parts parts(tensors.cols);
  const int slots = passes_.slot_count;
  const bool converts = tensors.src_type != kFloat || tensors.dst_type != kFloat || bits_of(code_type_) < 8;
  // Parts share the numbers, unless they write their own.
  std::vector<float> numbers(pass.reduces ? static_cast<size_t>(parts.count * slots) : 0);
  std::atomic<bool> all_finite = true;
  run_tasks(context, parts.count, [&](int64_t part) {
    Run run(*this, tensors, pass.reduces ? nullptr : &all);
    for (int i = 0; i < slots && pass.reduces; ++i) *run.slot(i) = *all.slot(i);
    const int64_t some = pass.reduces || !converts ? parts.size(part) : kPassElements, end = parts.begin(part + 1);
    for (int64_t col = parts.begin(part); col < end; col += some) {
      run.begin_part(all.all_finite());
      run.run_elements(pass, {row, col, 1, std::min(some, end - col)}, part == 0);
    }
    if (!run.all_finite()) all_finite = false;
    for (int i = 0; i < slots && pass.reduces; ++i) numbers[static_cast<size_t>(part * slots + i)] = *run.slot(i);
  });
  all.set_all_finite(all_finite);
  join_parts(pass, numbers, row, all);
}

// Reduces the numbers of the parts of a row, [part][slot].
void Program::join_parts(const PlacedPass& pass, const std::vector<float>& numbers, int64_t row, Run& all) const {
  const auto slots = static_cast<size_t>(passes_.slot_count);
  for (size_t i = 0; i < pass.steps.size(); ++i) {
    const PlacedStep& step = pass.steps[i];
    if (!is_reduction(step.kind)) continue;
    const bool is_max = step.kind == StepKind::kReduceMax;
    const auto slot = static_cast<size_t>(step.a.index);
    float best = numbers[slot];
    for (size_t at = slots + slot; at < numbers.size(); at += slots)
      if (is_max ? numbers[at] > best : numbers[at] < best) best = numbers[at];
    *all.slot(step.a.index) = best != best ? all.extreme(pass, i, row) : best;
    all.pad(step.a.index, 1);
  }
}

Tail::Tail(const char* op, const Attributes& attributes)
    : program_(op, attributes.text("program", kIdentityProgram), kOperands, kInt8) {
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
    if (program_.form(i) == OperandForm::kColumn || program_.form(i) == OperandForm::kTensor) part.operands[i] += col;
  program_.run(part, begin, end);
}

Operator with_program(Operator product, const char* name, std::unique_ptr<Node> (*create)(const Attributes&)) {
  product.name = name;
  product.required_inputs += Tail::kOperands;
  product.create = create;
  for (Signature& signature : product.signatures)
    signature.inputs.insert(signature.inputs.end(), Tail::kOperands, kFloat);
  return product;
}

}  // namespace dynq
