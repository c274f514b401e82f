// QuantizedRecurrence: the steps of a recurrent layer: LSTM, GRU or RNN. `src` has the products of all inputs by their
// weights. At each step, the rows of the state are quantized and multiplied by the recurrent weights, and a program
// makes the next state of the sums. WordRecurrence is the same with words in place of codes of 8 bits.
//
// A task computes all steps of some sequences in one direction.
#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "core/attributes.h"
#include "core/parallel.h"
#include "core/program.h"
#include "core/rounding.h"
#include "core/scratch.h"
#include "core/states.h"
#include "core/sums.h"
#include "kernels/dispatch.h"
#include "kernels/numbers.h"

namespace dynq {
namespace {

constexpr int64_t kSplitRows = 16;                       // fewest sequences that are two tasks
constexpr int64_t kStrip = 64, kTaskProducts = 1 << 20;  // columns, and products of a part of a step
constexpr int64_t kLine = 16;                            // floats of a line of the caches
constexpr int64_t kMaxGates = 4, kMaxColumns = 3;
// Operands of the program: the gates; the second state; numbers of the elements of a state.
constexpr size_t kSecondState = 4, kFirstColumn = 5, kOperands = 8;
static_assert(kOperands <= kMaxOperands && kFirstColumn + kMaxColumns == kOperands);

// `data` broadcasts to [directions, batch, size].
struct State {
  const float* data;
  int64_t strides[3];
};

struct Sizes {
  int64_t steps, batch, directions, gates, columns, size;  // `size` elements of a state
};

// The tensors of one run.
struct Layer {
  Sizes n;
  const float* src;
  const void* weights;
  const float *scales, *bias, *columns;
  const int32_t* sums;  // of the weights; null with words
  State first, first_2;
  const int32_t* lengths;
  bool lengths_vary;
  float *dst, *last, *last_2;
};

// How the operators differ.
struct OfCodes {
  using States = StateCodes;
  static constexpr const char* kName = "QuantizedRecurrence";
  static constexpr size_t kBias = 4;  // its input
};

struct OfWords {
  using States = StateWords;
  static constexpr const char* kName = "WordRecurrence";
  static constexpr size_t kBias = 3;
};

template <class Form>
class Recurrence : public Node {
 public:
  explicit Recurrence(const Attributes& attributes)
      : size_(attributes.integer("hidden_size", 1)),
        direction_(read_encoding(kName, attributes, "direction", Direction::kForward)),
        last_gate_(read_encoding(kName, attributes, "last_gate", LastGate::kSum)),
        whole_(kName, attributes.text("program", kIdentityProgram), kOperands, kInt8) {
    if (size_ < 1 || size_ > kMaxSymmetricSumLength)
      fail("hidden_size is " + std::to_string(size_) + ", expected 1 to " + std::to_string(kMaxSymmetricSumLength));
    if (!whole_.is_elementwise(true)) fail("program has reductions, no dst, or another output than dst and dst_2");
    if (last_gate_ != LastGate::kResetState) return;
    if (!whole_.has_output(ProgramOutput::kDst2))
      fail("program has no dst_2, expected it for last_gate 2 (reset state)");
    const std::string text = attributes.text("program", kIdentityProgram);
    reset_.emplace(kName, text, kOperands, kInt8, ProgramOutput::kDst2);
    cell_.emplace(kName, text, kOperands, kInt8, ProgramOutput::kDst);
  }

  void compute(Context& context) const override {
    Layer layer = {};
    Sizes& n = layer.n;
    const Tensor src = context.input(0), weight = context.input(1);
    n.size = size_;
    n.directions = direction_ == Direction::kBidirectional ? 2 : 1;
    n.gates = src.shape.rank == 3 ? src.shape.dims[2] / (n.directions * size_) : 0;
    if (n.gates < 1 || n.gates > most_gates() || n.gates * n.directions * size_ != src.shape.dims[2])
      fail("src has shape " + src.shape.text() +
           ", expected [steps, batch, directions * gates * hidden_size] with 1 to " + std::to_string(most_gates()) +
           " gates, " + std::to_string(n.directions) + " directions and hidden_size " + std::to_string(size_));
    n.steps = src.shape.dims[0];
    n.batch = src.shape.dims[1];
    const int64_t columns = n.gates * size_;
    check_weight(weight.shape, n);
    if constexpr (!States::kHasSums) range_.check(kName, context, 1);
    constexpr size_t kBias = Form::kBias;
    layer.src = static_cast<const float*>(src.data);
    layer.weights = weight.data;
    layer.scales = static_cast<const float*>(of_columns(context.input(2), "column_scale", n.directions, columns));
    if constexpr (States::kHasSums)
      layer.sums = static_cast<const int32_t*>(of_columns(context.input(3), "column_sum", n.directions, columns));
    layer.bias = static_cast<const float*>(of_columns(context.input(kBias), "bias", n.directions, columns));
    layer.first = state_of(context.input(kBias + 1), "state", n);
    layer.first_2 = state_of(context.input(kBias + 2), "state_2", n);
    const Tensor lengths = context.input(kBias + 3);
    layer.lengths_vary = lengths.shape.elements() != 1;
    if (layer.lengths_vary && (lengths.shape.rank != 1 || lengths.shape.dims[0] != n.batch))
      fail("lengths has shape " + lengths.shape.text() + ", expected one element, or one for each of " +
           std::to_string(n.batch) + " sequences");
    layer.lengths = static_cast<const int32_t*>(lengths.data);
    const Tensor peepholes = context.input(kBias + 4);
    n.columns = peepholes.shape.rank == 2 ? peepholes.shape.dims[1] / size_ : 0;
    if (n.columns > kMaxColumns)
      fail("columns has shape " + peepholes.shape.text() + ", expected up to " + std::to_string(kMaxColumns) +
           " times hidden_size columns");
    layer.columns = static_cast<const float*>(of_columns(peepholes, "columns", n.directions, n.columns * size_));
    check_operands(n);

    const bool has_second = has_second_state();
    layer.dst = static_cast<float*>(context.output(0, {4, {n.steps, n.directions, n.batch, size_}}));
    layer.last = static_cast<float*>(context.output(1, {3, {n.directions, n.batch, size_}}));
    layer.last_2 =
        static_cast<float*>(context.output(2, has_second ? Shape{3, {n.directions, n.batch, size_}} : Shape{1, {0}}));
    if (n.batch == 0) return;
    // Threads that share the sequences need not wait for each other at each step.
    const bool is_split = n.directions == 1 && n.batch >= kSplitRows && n.batch <= kMaxStates;
    const int64_t parts = is_split ? 2 : divide_up(n.batch, kMaxStates), tasks = n.directions * parts;
    run_tasks(context, tasks, [&](int64_t task) {
      const int64_t part = task % parts, begin = n.batch * part / parts, end = n.batch * (part + 1) / parts;
      Sequences(*this, layer, task / parts, begin, end - begin, tasks == 1 ? &context : nullptr).run();
    });
  }

 private:
  using States = typename Form::States;
  using Weight = typename States::Weight;
  static constexpr const char* kName = Form::kName;

  // All steps of `rows` sequences in one direction.
  class Sequences {
   public:
    // A context: its threads share the products of a step.
    Sequences(const Recurrence& node, const Layer& layer, int64_t direction, int64_t first, int64_t rows,
              Context* context)
        : node_(node),
          layer_(layer),
          context_(context),
          n_(layer.n),
          direction_(direction),
          first_(first),
          rows_(rows),
          is_reverse_(node.direction_ == Direction::kReverse || direction == 1),
          columns_(n_.gates * n_.size),
          stride_((static_cast<int64_t>(kSecondState) + 1) * n_.size),
          work_(memory<float>(rows * stride_)),
          state_(memory<float>(rows * n_.size)),
          next_(memory<float>(rows * n_.size)),
          next_2_(memory<float>(rows * n_.size)),
          products_(memory<float>(rows * (n_.size + States::kColumns))),
          states_(weights(), rows),
          tensors_(tensors()),
          cell_(node.cell_ ? *node.cell_ : node.whole_, tensors_) {
      if (node.reset_) reset_.emplace(*node.reset_, tensors_);
      std::fill_n(work_.get(), rows * stride_, 0.0f);
      for (int64_t row = 0; row < rows; ++row) {
        const int64_t given = load(layer.lengths + (layer.lengths_vary ? first + row : 0));
        lengths_[row] = std::clamp<int64_t>(given, 0, n_.steps);
        read(layer.first, row, state_.get() + row * n_.size);
        if (node.has_second_state()) read(layer.first_2, row, second(row));
      }
    }

    void run() {
      const int64_t longest = *std::max_element(lengths_, lengths_ + rows_);
      for (int64_t step = 0; step < longest; ++step) {
        states_.quantize(state_.get());
        prefetch_inputs(step + 1);
        if (reset_) {
          reset(step, *reset_);
        } else {
          multiply(0, columns_, work_.get(), stride_);
          add_inputs(step);
        }
        cell_.run();
        keep(step);
      }
      const int64_t at = (direction_ * n_.batch + first_) * n_.size;
      for (int64_t row = 0; row < rows_; ++row) {
        if (lengths_[row] == 0) {  // as in ONNX Runtime
          std::fill_n(state_.get() + row * n_.size, n_.size, 0.0f);
          std::fill_n(second(row), n_.size, 0.0f);
        }
        copy(state_.get() + row * n_.size, layer_.last + at + row * n_.size);
        if (node_.has_second_state()) copy(second(row), layer_.last_2 + at + row * n_.size);
        for (int64_t step = lengths_[row]; step < n_.steps; ++step)
          std::memset(static_cast<void*>(output(step, row)), 0, static_cast<size_t>(n_.size) * sizeof(float));
      }
    }

   private:
    RecurrentWeights<Weight> weights() const {
      const int64_t first = direction_ * columns_, depth = round_up(n_.size, States::kDepth);
      return {static_cast<const Weight*>(layer_.weights) + direction_ * round_up(columns_, States::kColumns) * depth,
              layer_.scales + first,
              layer_.bias + first,
              States::kHasSums ? layer_.sums + first : nullptr,
              n_.size,
              columns_};
    }

    void copy(const float* from, float* to) const {
      std::memcpy(static_cast<void*>(to), from, static_cast<size_t>(n_.size) * sizeof(float));
    }

    float* gate(int64_t row, int64_t number) const { return work_.get() + row * stride_ + number * n_.size; }
    float* second(int64_t row) const { return gate(row, static_cast<int64_t>(kSecondState)); }

    float* output(int64_t step, int64_t row) const {
      return layer_.dst + ((step * n_.directions + direction_) * n_.batch + first_ + row) * n_.size;
    }

    // The place of a sequence's step in src and dst.
    int64_t place(int64_t step, int64_t row) const { return is_reverse_ ? lengths_[row] - 1 - step : step; }

    const float* input(int64_t step, int64_t row) const {
      const int64_t token = place(step, row) * n_.batch + first_ + row;
      return layer_.src + (token * n_.directions + direction_) * columns_;
    }

    // Reads the first state of a sequence: -0 becomes 0.
    void read(const State& state, int64_t row, float* to) const {
      const float* from = state.data + direction_ * state.strides[0] + (first_ + row) * state.strides[1];
      for (int64_t i = 0; i < n_.size; ++i) to[i] = load(from + i * state.strides[2]) + 0.0f;
    }

    // The products with columns [col, col + cols) of the weights; `col` begins a block of weights.
    void multiply(int64_t col, int64_t cols, float* to, int64_t stride) const {
      const int64_t strips = divide_up(cols, kStrip);
      const int64_t wanted = context_ == nullptr ? 1 : rows_ * cols * n_.size / kTaskProducts;
      const int64_t tasks = std::clamp<int64_t>(wanted, 1, strips);
      const auto multiply_part = [&](int64_t task) {
        const int64_t begin = strips * task / tasks * kStrip, end = strips * (task + 1) / tasks * kStrip;
        states_.multiply(col + begin, std::min(end, cols) - begin, to + begin, stride);
      };
      if (context_ == nullptr)
        multiply_part(0);
      else
        run_tasks(*context_, tasks, multiply_part);
    }

    // The inputs of the next step arrive in the caches during the products of this one: they may be large.
    void prefetch_inputs(int64_t step) const {
      for (int64_t row = 0; row < rows_; ++row) {
        if (step >= lengths_[row]) continue;
        const float* from = input(step, row);
        for (int64_t i = 0; i < columns_; i += kLine) ORT_DYNQ_PREFETCH(from + i);
      }
    }

    static void add(const float* from, int64_t count, float* __restrict to) {
      for (int64_t i = 0; i < count; ++i) to[i] += load(from + i);
    }

    // Adds the inputs of a step to the products, or puts those of the last gate beside them.
    void add_inputs(int64_t step) const {
      const bool is_separate = node_.last_gate_ == LastGate::kSeparateProducts;
      const int64_t summed = columns_ - (is_separate ? n_.size : 0);
      for (int64_t row = 0; row < rows_; ++row) {
        if (step >= lengths_[row]) continue;
        const float* from = input(step, row);
        add(from, summed, gate(row, 0));
        if (is_separate) copy(from + summed, gate(row, n_.gates));
      }
    }

    // The gates of a step if the last one has products of a state that the others reset.
    void reset(int64_t step, RepeatedProgram& program) {
      const int64_t others = columns_ - n_.size, col = others / States::kColumns * States::kColumns;
      if (others > 0) multiply(0, others, work_.get(), stride_);
      for (int64_t row = 0; row < rows_; ++row) {
        if (step >= lengths_[row]) continue;
        const float* from = input(step, row);
        add(from, others, gate(row, 0));
        copy(from + others, gate(row, n_.gates - 1));
      }
      program.run();
      states_.quantize(next_2_.get());
      multiply(col, columns_ - col, products_.get(), n_.size + States::kColumns);
      for (int64_t row = 0; row < rows_; ++row)
        add(products_.get() + row * (n_.size + States::kColumns) + others - col, n_.size, gate(row, n_.gates - 1));
    }

    // The tensors of the programs, in each step the same.
    ProgramTensors tensors() const {
      ProgramTensors tensors = {};
      tensors.rows = rows_;
      tensors.cols = tensors.src_stride = tensors.dst_stride = n_.size;
      tensors.operand_stride = stride_;
      tensors.src = state_.get();
      tensors.src_type = tensors.dst_type = kFloat;
      for (size_t i = 0; i < kFirstColumn; ++i) tensors.operands[i] = gate(0, static_cast<int64_t>(i));
      for (int64_t i = 0; i < n_.columns; ++i)
        tensors.operands[kFirstColumn + static_cast<size_t>(i)] =
            layer_.columns + (direction_ * n_.columns + i) * n_.size;
      tensors.outputs[static_cast<size_t>(ProgramOutput::kDst)] = next_.get();
      tensors.outputs[static_cast<size_t>(ProgramOutput::kDst2)] = next_2_.get();
      return tensors;
    }

    // Keeps the next states of the sequences that have this step; -0 becomes 0.
    void keep(int64_t step) {
      for (int64_t row = 0; row < rows_; ++row) {
        if (step >= lengths_[row]) continue;
        float* const state = state_.get() + row * n_.size;
        set(next_.get() + row * n_.size, state);
        copy(state, output(place(step, row), row));
        if (node_.has_second_state()) set(next_2_.get() + row * n_.size, second(row));
      }
    }

    void set(const float* from, float* __restrict to) const {
      for (int64_t i = 0; i < n_.size; ++i) to[i] = from[i] + 0.0f;
    }

    const Recurrence& node_;
    const Layer& layer_;
    Context* const context_;
    const Sizes n_;
    const int64_t direction_, first_, rows_;
    const bool is_reverse_;
    const int64_t columns_, stride_;  // `stride_`: of work_, which has the gates and the second state of a row
    const std::unique_ptr<float[]> work_, state_, next_, next_2_, products_;
    States states_;
    const ProgramTensors tensors_;
    RepeatedProgram cell_;
    std::optional<RepeatedProgram> reset_;
    int64_t lengths_[kMaxStates];
  };

  [[noreturn]] static void fail(const std::string& message) { throw Error(std::string(kName) + ": " + message); }

  bool has_second_state() const { return !reset_ && whole_.has_output(ProgramOutput::kDst2); }

  int64_t most_gates() const { return kMaxGates - (last_gate_ == LastGate::kSeparateProducts); }

  void check_weight(const Shape& shape, const Sizes& n) const {
    const Shape expected = {5,
                            {n.directions, divide_up(n.gates * n.size, States::kColumns),
                             divide_up(n.size, States::kDepth), States::kColumns, States::kDepth}};
    if (!(shape == expected)) fail("weight has shape " + shape.text() + ", expected " + expected.text());
  }

  static const void* of_columns(const Tensor& tensor, const char* name, int64_t directions, int64_t columns) {
    const Shape expected = {2, {directions, columns}};
    if (!(tensor.shape == expected))
      fail(std::string(name) + " has shape " + tensor.shape.text() + ", expected " + expected.text());
    return tensor.data;
  }

  static State state_of(const Tensor& tensor, const char* name, const Sizes& n) {
    const int64_t sizes[] = {n.directions, n.batch, n.size};
    State found = {static_cast<const float*>(tensor.data), {}};
    bool fits = tensor.shape.rank == 3;
    int64_t stride = 1;
    for (size_t i = 3; fits && i-- > 0;) {
      const int64_t length = tensor.shape.dims[i];
      fits = length == sizes[i] || length == 1;
      found.strides[i] = length == 1 ? 0 : stride;
      stride *= length;
    }
    if (!fits)
      fail(std::string(name) + " has shape " + tensor.shape.text() + ", expected dimensions that broadcast to " +
           Shape{3, {n.directions, n.batch, n.size}}.text());
    return found;
  }

  // Checks that the program reads what there is.
  void check_operands(const Sizes& n) const {
    const auto gates = static_cast<size_t>(n.gates + (last_gate_ == LastGate::kSeparateProducts));
    for (size_t i = 0; i < kOperands; ++i) {
      const OperandForm form = whole_.form(i);
      const bool is_tensor = i < gates || (i == kSecondState && has_second_state());
      const bool is_column = i >= kFirstColumn && i < kFirstColumn + static_cast<size_t>(n.columns);
      if (form != OperandForm::kUnused && !(form == OperandForm::kTensor && is_tensor) &&
          !(form == OperandForm::kColumn && is_column))
        fail("program reads operand " + std::to_string(i + 1) + ", which is not there in this form: there are " +
             std::to_string(gates) + " tensors from number 1 on, tensor5 for a program with a second state, and " +
             std::to_string(n.columns) + " columns from number 6 on");
    }
  }

  int64_t size_;
  Direction direction_;
  LastGate last_gate_;
  Program whole_;
  WordRange range_;                      // not of codes
  std::optional<Program> reset_, cell_;  // of last_gate 2: the parts of the program that give dst_2 and dst
};

}  // namespace

Operator quantized_recurrence() {
  Operator op = {OfCodes::kName,
                 9,
                 {{{kFloat, kInt8, kFloat, kInt32, kFloat, kFloat, kFloat, kInt32, kFloat}, {kFloat, kFloat, kFloat}}},
                 make_node<Recurrence<OfCodes>>,
                 always_float};
  op.columns_input = Operator::kNoInput;
  return op;
}

Operator word_recurrence() {
  Operator op = {OfWords::kName,
                 8,
                 {{{kFloat, kInt16, kFloat, kFloat, kFloat, kFloat, kInt32, kFloat}, {kFloat, kFloat, kFloat}}},
                 make_node<Recurrence<OfWords>>,
                 always_float};
  op.columns_input = Operator::kNoInput;
  return op;
}

}  // namespace dynq
