// A run of a program on some rows of tensors.
#pragma once

#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "core/formats.h"
#include "core/program.h"
#include "core/row_extremes.h"
#include "core/scratch.h"
#include "kernels/dispatch.h"

namespace dynq {

// The memory of one task, and the steps with the addresses of its rows. A run takes at most kMaxPassRows rows at once,
// an even number, since two 4-bit codes share a byte.
class Program::Run {
 public:
  // `numbers`: a run with numbers that this run reads, if it runs no pass that writes numbers.
  Run(const Program& program, const ProgramTensors& tensors, const Run* numbers = nullptr)
      : program_(program),
        tensors_(tensors),
        passes_(program.passes_of(tensors)),
        table_(active_kernels()),
        src_(storage_of(tensors.src_type)),
        codes_(storage_of(program.code_type_)),
        tiles_(aligned(memory_.allocate((passes_.tile_count + 1) * kTileElements + kAlignment / kSize))),
        numbers_(numbers == nullptr && passes_.has_numbers() ? program.memories_of(tensors).take(passes_) : nullptr),
        slots_(numbers != nullptr    ? numbers->slots_
               : numbers_ != nullptr ? numbers_->slots()
                                     : nullptr) {}
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;
  ~Run() {
    if (numbers_ != nullptr) program_.memories_of(tensors_).give(std::move(numbers_));
  }

  void run(int64_t row, int64_t rows) {
    all_finite_ = is_widened_ = false;
    read_rows(row, rows);
    const Part whole = {row, 0, rows, tensors_.cols};
    for (const PlacedPass& pass : passes_.passes) {
      if (pass.is_of_numbers) {
        run_numbers(pass, row, rows);
      } else if (tensors_.cols > 0) {
        run_elements(pass, whole, true);
      } else {
        reduce_nothing(pass, rows);
      }
    }
  }

  // Runs the same rows again and again; the only pass has the addresses of the first time.
  void run_again(int64_t row, int64_t rows) {
    if (steps_ == nullptr || passes_.passes.size() > 1)
      run(row, rows);
    else
      table_.run_pass({steps_, step_count_, rows, tensors_.cols, true});
  }

  // Reads the operands that have a number for each row.
  void read_rows(int64_t row, int64_t rows) {
    for (const int v : passes_.row_values) {
      const auto operand = static_cast<size_t>(program_.text_.at(v).index);
      for (int64_t i = 0; i < rows; ++i)
        slot(passes_.slots[static_cast<size_t>(v)])[i] =
            load(tensors_.operands[operand] + (row + i) % tensors_.operand_rows[operand]);
      pad(passes_.slots[static_cast<size_t>(v)], rows);
    }
  }

  // A pass over numbers. It computes whole vectors, since parts of them take much longer: outputs are copied.
  void run_numbers(const PlacedPass& pass, int64_t row, int64_t rows) {
    const Step* const steps = numbers_->steps() + pass.first_number_step;
    table_.run_pass({steps, static_cast<int64_t>(pass.number_steps.size()), 1, padded(rows), true});
    for (const auto& [which, offset] : pass.stores) {
      const char* from = address(slots_) + offset;
      auto* to = static_cast<char*>(tensors_.outputs[which]);
      const int64_t size = takes_codes(which) ? 1 : kSize;
      if (takes_codes(which) && takes_4_bits())
        narrow_zero_points(reinterpret_cast<const uint8_t*>(from), row, rows);
      else
        std::memcpy(to + row * size, from, static_cast<size_t>(rows * size));
    }
  }

  // Columns [col, col + cols) of some rows.
  struct Part {
    int64_t row, col, rows, cols;
  };

  // begins_row: the part has the first columns of a row, for reductions.
  void run_elements(const PlacedPass& pass, const Part& part, bool begins_row) {
    if (pass.range && find_ranges(*pass.range, part)) return pad_reductions(pass, part.rows);
    if (pass.quantization && quantize(*pass.quantization, pass.known_range, part)) return;
    widen(part);
    if (stores_wide_codes(pass)) bytes_ = byte_memory_.allocate(part.rows * part.cols);
    place_steps(pass, part.row, part.col, part.cols);
    const Pass all = {steps_, step_count_, part.rows, part.cols, begins_row};
    table_.run_pass(all);
    for (int64_t i = 0; i < step_count_; ++i)
      if (is_reduction(steps_[i].kind) && steps_[i].kind != StepKind::kReduceSum)
        for (int64_t j = 0; j < part.rows; ++j) {
          float& number = *(reinterpret_cast<float*>(const_cast<char*>(steps_[i].a.at)) + j);
          if (number == 0) number = reduced_row(all, j).first_zero(i);
          if (number != number && part.cols == tensors_.cols) number = reduced_row(all, j).extreme(i, part.row + j);
        }
    pad_reductions(pass, part.rows);
    if (stores_wide_codes(pass)) narrow_codes(part);
  }

  // The number of step number `reduction` of one row, if a NaN is one of the row's first elements.
  float extreme(const PlacedPass& pass, size_t reduction, int64_t row) {
    widen({row, 0, 1, tensors_.cols});
    place_steps(pass, row, 0, tensors_.cols);
    const Pass all = {steps_, step_count_, 1, tensors_.cols, true};
    return reduced_row(all, 0).extreme(static_cast<int64_t>(reduction), row);
  }

  float* slot(int index) { return slots_ + index * kMaxPassRows; }

  // Repeats the number of the last row up to a whole vector.
  void pad(int index, int64_t rows) {
    float* numbers = slot(index);
    std::fill(numbers + rows, numbers + padded(rows), numbers[rows - 1]);
  }

  // Whether a pass has found that all elements of the rows are finite.
  bool all_finite() const { return all_finite_; }
  void set_all_finite(bool all_finite) { all_finite_ = all_finite; }

  // Begins with another part of the rows: their numbers are known.
  void begin_part(bool all_finite) {
    all_finite_ = all_finite;
    is_widened_ = false;
  }

  // The reductions of rows without elements.
  void reduce_nothing(const PlacedPass& pass, int64_t rows) {
    for (const PlacedStep& step : pass.steps)
      if (is_reduction(step.kind)) std::fill_n(slot(step.a.index), padded(rows), identity_of(step.kind));
  }

 private:
  using Place = PlacedOperand::Place;

  // Longer rows gain from kernels of one row.
  static constexpr int64_t kShort = 512, kShortOfFloat16 = 64;
  static constexpr int64_t kSize = sizeof(float), kAlignment = 64;  // of tiles

  static constexpr int64_t kRowsOfVectors = 16;
  static constexpr int64_t padded(int64_t rows) {
    return (rows + kRowsOfVectors - 1) / kRowsOfVectors * kRowsOfVectors;
  }

  void pad_reductions(const PlacedPass& pass, int64_t rows) {
    for (const PlacedStep& step : pass.steps)
      if (is_reduction(step.kind)) pad(step.a.index, rows);
  }

  static float* aligned(float* memory) {
    const auto address = reinterpret_cast<uintptr_t>(memory);
    return memory + (-address & (kAlignment - 1)) / kSize;
  }

  static const char* address(const void* at) { return static_cast<const char*>(at); }

  bool takes_4_bits() const { return codes_.narrow != nullptr; }

  // Whether a pass stores codes of 4 bits, which its steps store as bytes.
  bool stores_wide_codes(const PlacedPass& pass) const { return takes_4_bits() && pass.stores_codes; }

  float* tile(int index) { return tiles_ + index * kTileElements; }

  const void* src_at(const Part& part, int64_t i) const {
    return element(tensors_.src, src_, (part.row + i) * tensors_.src_stride + part.col);
  }

  // Converts float16.
  void widen(const Part& part) {
    if (src_.widen == nullptr || is_widened_) return;
    widened_ = widened_memory_.allocate(part.rows * part.cols);
    const int64_t together = tensors_.src_stride == part.cols ? part.rows : 1;
    for (int64_t i = 0; i < part.rows; i += together)
      src_.widen(src_at(part, i), widened_ + i * part.cols, together * part.cols);
    is_widened_ = true;
  }

  void narrow_codes(const Part& part) {
    codes_.narrow(bytes_, element(tensors_.outputs[0], codes_, part.row * tensors_.cols + part.col),
                  part.rows * part.cols);
  }

  // Runs the kernel of ranges. Returns false if elements are not finite, for which steps have to run.
  bool find_ranges(const RangePass& pass, const Part& part) {
    float *high = slot(pass.high), *low = pass.low < 0 ? high : slot(pass.low);
    if (!read_ranges(pass.extremes, part, low, high)) return all_finite_ = false;
    if (pass.is_number >= 0) std::fill_n(slot(pass.is_number), part.rows, 1.0f);
    for (int64_t i = 0; i < part.rows && pass.extremes == kMinMax; ++i) {
      if (low[i] != 0 && high[i] != 0) continue;
      const float zero = src_.widen == nullptr ? first_zero(static_cast<const uint32_t*>(src_at(part, i)), part.cols)
                                               : first_zero(static_cast<const uint16_t*>(src_at(part, i)), part.cols);
      if (low[i] == 0) low[i] = zero;
      if (high[i] == 0) high[i] = zero;
    }
    return all_finite_ = true;
  }

  // Reads the ranges of rows; the ends may be any zeros. Returns false if elements are not finite.
  bool read_ranges(Extremes extremes, const Part& part, float* low, float* high) {
    const bool is_float16 = src_.widen != nullptr;
    const RangeKernel direct = (is_float16 ? table_.ranges_f16 : table_.ranges)[extremes];
    if (direct != nullptr && part.cols > (is_float16 ? kShortOfFloat16 : kShort)) {
      for (int64_t i = 0; i < part.rows; ++i) {
        const Range range = direct(src_at(part, i), part.cols);
        if (range.not_finite != 0) return false;
        low[i] = range.low;
        high[i] = range.high;
      }
      return true;
    }
    widen(part);
    std::fill_n(low, part.rows, kInfinity);
    std::fill_n(high, part.rows, extremes == kAbsMax ? 0.0f : -kInfinity);
    const StepOperand from = x(part.row, part.col, part.cols);
    return table_.row_ranges[extremes](reinterpret_cast<const float*>(from.at), part.rows, part.cols,
                                       from.row_bytes / kSize, low, high);
  }

  // The first zero of a row with one, given as bits: kernels may return any of them.
  template <class Bits>
  static float first_zero(const Bits* row, int64_t cols) {
    constexpr int64_t kSome = 64;
    constexpr auto kMagnitude = static_cast<Bits>(static_cast<Bits>(~Bits{0}) >> 1);
    for (int64_t col = 0; col < cols; col += kSome) {
      const int64_t end = std::min(cols, col + kSome);
      int32_t any = 0;
      for (int64_t i = col; i < end; ++i) any |= (load(row + i) & kMagnitude) == 0;
      for (int64_t i = col; any != 0 && i < end; ++i)
        if (const Bits bits = load(row + i); (bits & kMagnitude) == 0) return bits == 0 ? 0.0f : -0.0f;
    }
    return 0;
  }

  // Runs the kernel of a pass that quantizes rows. Returns false if it is not exact: if elements are not finite, or
  // steps clip their codes.
  bool quantize(const QuantizePass& pass, const std::optional<RangePass>& known, const Part& part) {
    QuantizedRows rows;
    const RowNumbers numbers = {slots_, kMaxPassRows, program_.text_.literals.data()};
    if (known) {
      const RowRanges ranges = {known->low < 0 ? nullptr : slot(known->low), slot(known->high)};
      if (!all_finite_ || !pass.find(numbers, ranges, part.rows, rows)) return false;
    } else {
      float low[kMaxPassRows], high[kMaxPassRows];
      if (!read_ranges(kMinMax, part, low, high) || !pass.find(numbers, {low, high}, part.rows, rows)) return false;
    }
    const bool is_float16 = src_.widen != nullptr && pass.takes_float16(rows, part.rows);
    return pass.stores_codes()
               ? (is_float16 && store_codes(pass, rows, part, true)) || store_codes(pass, rows, part, false)
               : (is_float16 && store_floats(pass, rows, part, true)) || store_floats(pass, rows, part, false);
  }

  // The elements of x for a kernel, and how they are placed. is_stored: float16 as it is stored.
  const void* source(const Part& part, bool is_stored, int64_t& stride) {
    stride = tensors_.src_stride;
    if (is_stored || src_.widen == nullptr) return src_at(part, 0);
    widen(part);
    stride = part.cols;
    return widened_;
  }

  bool store_codes(const QuantizePass& pass, const QuantizedRows& rows, const Part& part, bool is_stored) {
    const CodeKind kind = store_of(program_.code_type_) == StepKind::kStoreInt8 ? kS8 : kU8;
    const bool are_bytes = part.cols % 2 == 0 && part.cols >= kMinColumnsOf4Bits;
    QuantizeKernel kernel = takes_4_bits() && are_bytes ? pass.quantizer_to_4_bits(table_, kind, is_stored) : nullptr;
    const bool is_direct = !takes_4_bits() || kernel != nullptr;
    if (kernel == nullptr) kernel = pass.quantizer(table_, kind, is_stored);
    if (kernel == nullptr) return false;
    int64_t stride;
    const void* src = source(part, is_stored, stride);
    if (part.rows > 1 && stride != part.cols) return false;
    void* dst = element(tensors_.outputs[0], codes_, part.row * tensors_.cols + part.col);
    if (!is_direct) {
      dst = bytes_ = byte_memory_.allocate(part.rows * part.cols);
    }
    // Codes are adjacent, as the elements of src are, or there is one row.
    kernel({{part.rows, part.cols, stride}, src, dst, rows.scales, rows.offsets, false});
    if (!is_direct) narrow_codes(part);
    return true;
  }

  bool store_floats(const QuantizePass& pass, const QuantizedRows& rows, const Part& part, bool is_stored) {
    const BoundedKernel kernel = pass.fake_quantizer(table_, is_stored);
    if (kernel == nullptr) return false;
    const bool narrows = tensors_.dst_type == kFloat16 && !is_stored;
    int64_t stride;
    const void* src = source(part, is_stored, stride);
    // Kernels have one stride.
    if (part.rows > 1 && stride != (narrows ? part.cols : tensors_.dst_stride)) return false;
    void* dst =
        element(tensors_.outputs[static_cast<size_t>(pass.output())], src_, part.row * tensors_.dst_stride + part.col);
    float* narrowed = narrows ? narrowed_memory_.allocate(part.rows * part.cols) : nullptr;
    kernel({{part.rows, part.cols, stride},
            src,
            narrows ? narrowed : dst,
            rows.scales,
            rows.factors,
            rows.zero_points,
            pass.keeps_negative_zero()});
    if (narrows) src_.narrow(narrowed, dst, part.rows * part.cols);
    return true;
  }

  // Where a step of a pass over elements reads or writes an operand, from row `row` and column `col` on.
  void place(const PlacedOperand& operand, int64_t row, int64_t col, int64_t cols, StepOperand& to) {
    static constexpr float kNothing = 0;
    const auto index = static_cast<size_t>(operand.index);
    switch (operand.place) {
      case Place::kSlot:
        to = {address(slot(operand.index)), kSize, 0, false};
        break;
      case Place::kX:
        to = x(row, col, cols);
        break;
      case Place::kOperand: {
        const int64_t stride = program_.text_.forms[index] == OperandForm::kTensor ? tensors_.operand_stride : 0;
        to = {address(tensors_.operands[index] + row * stride + col), stride * kSize, kSize, true};
        break;
      }
      case Place::kOutput:
        to = output(operand.index, row, col, cols);
        break;
      case Place::kTile:
        to = {address(tile(operand.index)), 0, 0, true};
        break;
      case Place::kLiteral:
        to = {address(&program_.text_.literals[index]), 0, 0, false};
        break;
      default:
        to = {address(&kNothing), 0, 0, false};
        break;
    }
  }

  StepOperand x(int64_t row, int64_t col, int64_t cols) const {
    if (src_.widen != nullptr) return {address(widened_), cols * kSize, kSize, true};
    return {address(static_cast<const float*>(tensors_.src) + row * tensors_.src_stride + col),
            tensors_.src_stride * kSize, kSize, true};
  }

  StepOperand output(int index, int64_t row, int64_t col, int64_t cols) {
    const auto which = static_cast<size_t>(index);
    auto* to = static_cast<char*>(tensors_.outputs[which]);
    if (takes_codes(which)) {
      if (takes_4_bits()) return {address(bytes_), cols, 1, true};
      return {to + row * tensors_.cols + col, tensors_.cols, 1, true};
    }
    const int64_t size = bits_of(tensors_.dst_type) / 8;
    return {to + (row * tensors_.dst_stride + col) * size, tensors_.dst_stride * size, size, true};
  }

  // Two zero points share a byte. A task takes an even number of rows, but long rows one by one.
  void narrow_zero_points(const uint8_t* from, int64_t row, int64_t rows) const {
    auto* to = static_cast<uint8_t*>(tensors_.outputs[static_cast<size_t>(ProgramOutput::kZeroPoint)]);
    for (int64_t i = 0; i < rows; ++i) {
      uint8_t code;
      codes_.narrow(from + i, &code, 1);
      uint8_t& pair = to[(row + i) / 2];
      pair = static_cast<uint8_t>((row + i) % 2 == 0 ? code : pair | code << 4);
    }
  }

  void place_steps(const PlacedPass& pass, int64_t row, int64_t col, int64_t cols) {
    steps_ = step_memory_.allocate(static_cast<int64_t>(pass.steps.size()));
    step_count_ = 0;
    for (const PlacedStep& step : pass.steps) {
      Step& placed = steps_[step_count_++];
      placed.kind = kind_of(step);
      place(step.a, row, col, cols, placed.a);
      place(step.b, row, col, cols, placed.b);
    }
  }

  // The kind of a step; of a store, that of the output's type.
  StepKind kind_of(const PlacedStep& step) const {
    if (step.kind == StepKind::kStore && step.a.place == Place::kOutput) {
      const auto output = static_cast<size_t>(step.a.index);
      if (takes_codes(output)) return store_of(program_.code_type_);
      if (takes_vectors(output) && tensors_.dst_type == kFloat16) return StepKind::kStoreF16;
    }
    return step.kind;
  }

  ReducedRow reduced_row(const Pass& pass, int64_t row) { return {table_, pass, row, tile(passes_.tile_count)}; }

  const Program& program_;
  const ProgramTensors& tensors_;
  const ProgramPasses& passes_;
  const ElementwiseKernels& table_;
  const Storage src_, codes_;
  Scratch<float, 8 * kTileElements> memory_;
  Scratch<Step, 24> step_memory_;
  float* const tiles_;
  std::unique_ptr<NumberMemory> numbers_;
  float* const slots_;
  bool is_widened_ = false, all_finite_ = false;
  Scratch<float, kTileElements> widened_memory_, narrowed_memory_;
  float* widened_ = nullptr;
  Scratch<uint8_t, kTileElements> byte_memory_;
  uint8_t* bytes_ = nullptr;
  Step* steps_ = nullptr;
  int64_t step_count_ = 0;
};

}  // namespace dynq
