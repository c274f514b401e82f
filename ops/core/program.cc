#include "core/program.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "core/formats.h"
#include "core/parallel.h"
#include "core/scratch.h"
#include "kernels/dispatch.h"

namespace dynq {
namespace {

constexpr int64_t kMostRows = 16;          // that a pass takes at once; even, since two 4-bit codes share a byte
constexpr int64_t kBatchElements = 16384;  // of these rows: they stay in the first-level cache
constexpr int64_t kMostParts = 256;        // of a long row

using Place = PlacedOperand::Place;

}  // namespace

// The memory of one task, and the steps with the addresses of its rows.
class Program::Run {
 public:
  Run(const Program& program, const ProgramTensors& tensors)
      : program_(program),
        tensors_(tensors),
        passes_(program.passes_of(tensors)),
        kernel_(active_kernels().run_pass),
        src_(storage_of(tensors.src_type)),
        codes_(storage_of(program.code_type_)),
        slots_(slot_memory_.allocate(passes_.slot_count * kMostRows)),
        tiles_(aligned(tile_memory_.allocate((passes_.tile_count + 1) * kTileElements + kAlignment / kSize))) {}

  void run(int64_t row, int64_t rows) {
    if (tensors_.cols > 0) prepare(row, 0, rows, tensors_.cols);
    read_rows(row, rows);
    for (const PlacedPass& pass : passes_.passes) {
      if (pass.is_of_numbers)
        run_numbers(pass, row, rows);
      else if (tensors_.cols > 0)
        run_elements(pass, row, 0, rows, tensors_.cols, true);
      else
        reduce_nothing(pass, rows);
    }
    if (tensors_.cols > 0) narrow(row, 0, rows, tensors_.cols);
  }

  // Runs the same rows again and again; the only pass has the addresses of the first time.
  void run_again(int64_t row, int64_t rows) {
    if (steps_ == nullptr || passes_.passes.size() > 1)
      run(row, rows);
    else
      kernel_({steps_, step_count_, rows, tensors_.cols, true});
  }

  // Reads the operands that have a number for each row.
  void read_rows(int64_t row, int64_t rows) {
    for (size_t v = 0; v < program_.text_.values.size(); ++v) {
      const ProgramValue& value = program_.text_.values[v];
      if (value.kind != ProgramValue::Kind::kRow || passes_.slots[v] < 0) continue;
      const auto operand = static_cast<size_t>(value.index);
      for (int64_t i = 0; i < rows; ++i)
        slot(passes_.slots[v])[i] = load(tensors_.operands[operand] + (row + i) % tensors_.operand_rows[operand]);
    }
  }

  void run_numbers(const PlacedPass& pass, int64_t row, int64_t rows) {
    place_steps(pass, row, 0, rows);
    kernel_({steps_, step_count_, 1, rows, true});
    if (takes_4_bits())
      for (const PlacedStep& step : pass.steps)
        if (step.a.place == Place::kOutput && step.a.index == static_cast<int>(ProgramOutput::kZeroPoint))
          narrow_zero_points(row, rows);
  }

  // Columns [col, col + cols) of some rows. begins_row: these are the first ones of a row, for reductions.
  void run_elements(const PlacedPass& pass, int64_t row, int64_t col, int64_t rows, int64_t cols, bool begins_row) {
    place_steps(pass, row, col, cols);
    const Pass all = {steps_, step_count_, rows, cols, begins_row};
    kernel_(all);
    for (int64_t i = 0; i < step_count_; ++i)
      if (is_reduction(steps_[i].kind) && steps_[i].kind != StepKind::kReduceSum)
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
      if (is_reduction(step.kind)) std::fill_n(slot(step.a.index), rows, identity_of(step.kind));
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

  // Where a step reads or writes an operand, from row `row` and column `col` on. The elements of a pass of numbers are
  // rows.
  StepOperand place(const PlacedOperand& operand, bool is_of_numbers, int64_t row, int64_t col, int64_t cols) {
    static constexpr float kNothing = 0;
    const auto index = static_cast<size_t>(operand.index);
    switch (operand.place) {
      case Place::kSlot:
        if (is_of_numbers) return {address(slot(operand.index)), 0, kSize, true};
        return {address(slot(operand.index)), kSize, 0, false};
      case Place::kX:
        return x(row, col, cols);
      case Place::kOperand: {
        const int64_t stride = program_.text_.forms[index] == OperandForm::kTensor ? tensors_.operand_stride : 0;
        return {address(tensors_.operands[index] + row * stride + col), stride * kSize, kSize, true};
      }
      case Place::kOutput:
        return output(operand.index, row, col, cols);
      case Place::kTile:
        return {address(tile(operand.index)), 0, 0, true};
      case Place::kLiteral:
        return {address(&program_.text_.literals[index]), 0, 0, false};
      default:
        return {address(&kNothing), 0, 0, false};
    }
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

  void place_steps(const PlacedPass& pass, int64_t row, int64_t col, int64_t cols) {
    steps_ = step_memory_.allocate(static_cast<int64_t>(pass.steps.size()));
    step_count_ = 0;
    for (const PlacedStep& step : pass.steps)
      steps_[step_count_++] = {kind_of(step), place(step.a, pass.is_of_numbers, row, col, cols),
                               place(step.b, pass.is_of_numbers, row, col, cols)};
  }

  // The kind of a step; of a store, that of the output's type.
  StepKind kind_of(const PlacedStep& step) const {
    if (step.kind == StepKind::kStore && step.a.place == Place::kOutput) {
      const auto output = static_cast<size_t>(step.a.index);
      const bool is_signed = program_.code_type_ == kInt8 || program_.code_type_ == kInt4;
      if (takes_codes(output)) return is_signed ? StepKind::kStoreInt8 : StepKind::kStoreUint8;
      if (takes_vectors(output) && tensors_.dst_type == kFloat16) return StepKind::kStoreF16;
    }
    return step.kind;
  }

  // The first zero that reduction number `index` reduces in a row: kernels may return any of them.
  float first_zero(const Pass& pass, int64_t index, int64_t row) {
    float* found = tile(passes_.tile_count);
    std::vector<Step> steps;
    for (int64_t col = 0; col < pass.cols; col += kTileElements) {
      steps.clear();
      for (int64_t i = 0; i < index; ++i) {
        Step step = pass.steps[i];
        if (is_reduction(step.kind)) continue;
        for (StepOperand* operand : {&step.a, &step.b})
          if (operand->at != nullptr) operand->at += row * operand->row_bytes + col * operand->element_bytes;
        steps.push_back(step);
      }
      steps.push_back({StepKind::kStore, {address(found), 0, kSize, true}, {}});
      const int64_t cols = std::min(kTileElements, pass.cols - col);
      kernel_({steps.data(), static_cast<int64_t>(steps.size()), 1, cols, true});
      for (int64_t i = 0; i < cols; ++i)
        if (found[i] == 0) return found[i];
    }
    return 0;
  }

  const Program& program_;
  const ProgramTensors& tensors_;
  const ProgramPasses& passes_;
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

namespace {

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
      passes_of_float16_(compile_program(op, text_, code_type, false)) {}

const ProgramPasses& Program::passes_of(const ProgramTensors& tensors) const {
  return tensors.dst_type == kFloat16 ? passes_of_float16_ : passes_;
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
  const int64_t wanted = kBatchElements / std::max<int64_t>(tensors.cols, 1) / 2 * 2;
  const int64_t batch = std::clamp<int64_t>(wanted, tensors.cols % 2 == 0 && passes_.slot_count > 0 ? 1 : 2, kMostRows);
  for (int64_t row = begin; row < end; row += batch) run.run(row, std::min(batch, end - row));
}

RepeatedProgram::RepeatedProgram(const Program& program, const ProgramTensors& tensors) : rows_(tensors.rows) {
  for (int64_t row = 0; row < rows_; row += kMostRows)
    runs_.push_back(std::make_unique<Program::Run>(program, tensors));
}

RepeatedProgram::~RepeatedProgram() = default;

void RepeatedProgram::run() {
  int64_t row = 0;
  for (const auto& part : runs_) {
    part->run_again(row, std::min(kMostRows, rows_ - row));
    row += kMostRows;
  }
}

namespace {

bool stores_codes(const PlacedPass& pass) {
  return std::any_of(pass.steps.begin(), pass.steps.end(), [](const PlacedStep& step) {
    return step.a.place == Place::kOutput && step.a.index == static_cast<int>(ProgramOutput::kCodes);
  });
}

}  // namespace

void Program::run_long_row(const ProgramTensors& tensors, int64_t row, Context& context) const {
  Run all(*this, tensors);
  all.read_rows(row, 1);
  const int64_t cols = tensors.cols, parts = part_count(cols, kMostParts);
  const int slots = passes_.slot_count;
  const auto begin = [&](int64_t part) { return part == parts ? cols : cols * part / parts / 64 * 64; };
  for (const PlacedPass& pass : passes_of(tensors).passes) {
    if (pass.is_of_numbers) {
      all.run_numbers(pass, row, 1);
      continue;
    }
    std::vector<float> numbers(static_cast<size_t>(parts * slots));
    run_tasks(context, parts, [&](int64_t part) {
      Run run(*this, tensors);
      const int64_t col = begin(part), count = begin(part + 1) - col;
      for (int i = 0; i < slots; ++i) *run.slot(i) = *all.slot(i);
      run.prepare(row, col, 1, count);
      run.run_elements(pass, row, col, 1, count, part == 0);
      if (stores_codes(pass)) run.narrow(row, col, 1, count);
      for (int i = 0; i < slots; ++i) numbers[static_cast<size_t>(part * slots + i)] = *run.slot(i);
    });
    for (const PlacedStep& step : pass.steps) {
      if (!is_reduction(step.kind)) continue;
      float best = numbers[static_cast<size_t>(step.a.index)];
      for (int64_t part = 1; part < parts; ++part) {
        const float number = numbers[static_cast<size_t>(part * slots + step.a.index)];
        if (step.kind == StepKind::kReduceMax ? number > best : number < best) best = number;
      }
      *all.slot(step.a.index) = best;
    }
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
