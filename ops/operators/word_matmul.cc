// WordMatMul: floats times packed weights of 12 bits, to float32.
//
// Each block of 256 elements of a row of src becomes words of 13 bits with a step of their own, so that sums of a block
// are exact in int32. kernels/portable_compressed.cc has the arithmetic. Tasks are some columns of a matrix, or some of
// its rows.
//
// WordMatMulProgram is the same, and then a program for each element of the result, while it is in the cache.
#include <algorithm>
#include <cstring>
#include <optional>

#include "core/matrices.h"
#include "core/parallel.h"
#include "core/program.h"
#include "core/rounding.h"
#include "core/scratch.h"
#include "core/verbose.h"
#include "core/words.h"
#include "kernels/dispatch.h"

namespace dynq {
namespace {

constexpr int64_t kPanelColumns = kMaxPanelColumns;
constexpr int64_t kPieceRows = 96, kPieceColumns = 512;  // their words and results fit the second-level cache
constexpr int64_t kTaskProducts = 1 << 19;               // of the smallest task: some microseconds
constexpr int64_t kRowsToRead = 4;                       // reading a weight takes as long as so many products

enum Input { kSrc, kWeight, kColumnScale, kBias, kInputs };

// What all tasks of a run share.
struct Run {
  const float* src;       // [all_rows, depth]
  const int16_t* weight;  // [stack, panels, depth / 2, 32, 2]
  const float *scales, *bias;
  int64_t all_rows, rows, depth, columns;  // `rows`: of a matrix of src
  float* dst;

  int64_t panel_stride() const { return round_up(depth, kWordPair) * kPanelColumns; }
};

// Which tasks there are: of a pair of matrices, column_tasks * row_tasks.
struct Cut {
  int64_t panels, row_units, column_tasks, row_tasks;

  Cut(const Run& run, int64_t pairs)
      : panels(divide_up(run.columns, kPanelColumns)), row_units(divide_up(run.rows, kPieceRows)) {
    const int64_t work = pairs * panels * kPanelColumns * run.depth * (run.rows + kRowsToRead);
    const int64_t of_pair = divide_up(std::min(work / kTaskProducts, kMaxTasks), pairs);
    column_tasks = std::clamp<int64_t>(of_pair, 1, panels);
    row_tasks = std::clamp<int64_t>(divide_up(of_pair, column_tasks), 1, row_units);
  }
};

class WordMatMul : public Node {
 public:
  explicit WordMatMul(const Attributes&, const char* name = "WordMatMul") : name_(name) {}

  void compute(Context& context) const override {
    const Tensor src = context.input(kSrc), weight = context.input(kWeight), scale = context.input(kColumnScale);
    const Tensor bias = context.input(kBias);
    Shape result;
    MatrixPairs pairs;
    Run run = check(src.shape, weight.shape, scale.shape, bias.shape, result, pairs);
    run.weight = static_cast<const int16_t*>(weight.data);
    range_.check(name_, context, kWeight);
    ProgramTensors operands;
    if (tail_) operands = tail_->tensors(context, kInputs, result, result.rank - 1);
    run.dst = static_cast<float*>(context.output(0, result));
    if (result.elements() == 0) return;
    run.src = static_cast<const float*>(src.data);
    run.scales = static_cast<const float*>(scale.data);
    run.bias = static_cast<const float*>(bias.data);
    multiply(context, run, pairs, operands);
  }

 private:
  [[noreturn]] void fail(const std::string& message) const { throw Error(std::string(name_) + ": " + message); }

  Run check(const Shape& src, const Shape& weight, const Shape& scale, const Shape& bias, Shape& result,
            MatrixPairs& pairs) const {
    if (src.rank == 0) fail("src is a scalar, expected rank 1 or more");
    if (bias.rank == 0) fail("bias is a scalar, expected one element for each column");
    constexpr size_t kMaxBiasRank = kMaxRank - 3;  // weight has three dimensions more
    if (bias.rank > kMaxBiasRank)
      fail("bias has rank " + std::to_string(bias.rank) + ", expected at most " + std::to_string(kMaxBiasRank));
    Run run = {};
    run.depth = src.dims[src.rank - 1];
    run.columns = bias.dims[bias.rank - 1];
    Shape stack = bias;
    --stack.rank;
    Shape packed = stack;
    for (const int64_t dim :
         {divide_up(run.columns, kPanelColumns), divide_up(run.depth, kWordPair), kPanelColumns, kWordPair})
      packed.dims[packed.rank++] = dim;
    if (!(weight == packed))
      fail("weight has shape " + weight.text() + ", expected " + packed.text() + ", packed for src of shape " +
           src.text() + " and bias of shape " + bias.text());
    if (!(scale == bias)) fail("column_scale has shape " + scale.text() + ", expected that of bias, " + bias.text());
    if (!find_pairs(src, stack, result, pairs))
      fail("src has shape " + src.text() + ", expected [..., M, K] with leading dimensions that broadcast" +
           (stack.rank == 0 ? "" : ", for stacked weights of shape " + stack.text()));
    result.dims[result.rank++] = run.columns;
    run.rows = pairs.rows;
    run.all_rows = 1;
    for (size_t i = 0; i + 1 < src.rank; ++i) run.all_rows *= src.dims[i];
    return run;
  }

  void multiply(Context& context, const Run& run, const MatrixPairs& found, const ProgramTensors& operands) const {
    const WordBlocks words(run.all_rows, run.depth);
    quantize(context, run, words);
    Scratch<MatrixPair, 32> memory;
    MatrixPair* const pairs = memory.allocate(found.count);
    found.write(pairs);
    const Cut cut(run, found.count);
    const int64_t of_pair = cut.column_tasks * cut.row_tasks, all_rows = found.count * run.rows;
    if (is_verbose())
      std::fprintf(stderr, "ort_dynq: %s %lldx%lldx%lld: %s\n", name_, static_cast<long long>(all_rows),
                   static_cast<long long>(run.depth), static_cast<long long>(run.columns), active_isa().name);
    run_last_tasks(context, found.count * of_pair, [&](int64_t task) {
      const MatrixPair& pair = pairs[task / of_pair];
      const int64_t of_rows = task % of_pair / cut.column_tasks, of_columns = task % cut.column_tasks;
      const int64_t begin = cut.row_units * of_rows / cut.row_tasks * kPieceRows;
      const int64_t end = std::min(run.rows, cut.row_units * (of_rows + 1) / cut.row_tasks * kPieceRows);
      const int64_t first = cut.panels * of_columns / cut.column_tasks * kPanelColumns;
      const int64_t last = std::min(run.columns, cut.panels * (of_columns + 1) / cut.column_tasks * kPanelColumns);
      for (int64_t col = first; col < last; col += kPieceColumns)
        for (int64_t row = begin; row < end; row += kPieceRows)
          multiply_piece(run, words, pair, {row, std::min(row + kPieceRows, end)},
                         {col, std::min(col + kPieceColumns, last)}, operands);
    });
  }

  static void quantize(Context& context, const Run& run, const WordBlocks& words) {
    const int64_t tasks = part_count(run.all_rows * run.depth, run.all_rows);
    run_tasks(context, tasks, [&](int64_t task) {
      words.quantize(run.src, run.all_rows * task / tasks, run.all_rows * (task + 1) / tasks);
    });
  }

  struct Range {
    int64_t begin, end;
  };

  void multiply_piece(const Run& run, const WordBlocks& words, const MatrixPair& pair, Range rows, Range cols,
                      const ProgramTensors& operands) const {
    const int64_t count = rows.end - rows.begin, width = cols.end - cols.begin;
    const int64_t row = pair.result * run.rows + rows.begin, column = pair.right * run.columns + cols.begin;
    float* const dst = run.dst + row * run.columns + cols.begin;
    for (int64_t r = 0; r < count; ++r)
      std::memcpy(dst + r * run.columns, run.bias + column, static_cast<size_t>(width) * sizeof(float));
    const int64_t panels = pair.right * divide_up(run.columns, kPanelColumns) + cols.begin / kPanelColumns;
    words.multiply(pair.left * run.rows + rows.begin, count,
                   {run.weight + panels * run.panel_stride(), run.scales + column, width}, dst, run.columns);
    if (tail_) tail_->run(operands, run.dst, row, row + count, cols.begin, width);
  }

  const char* const name_;
  const WordRange range_;

 protected:
  std::optional<Tail> tail_;
};

class WordMatMulProgram : public WordMatMul {
 public:
  explicit WordMatMulProgram(const Attributes& attributes) : WordMatMul(attributes, "WordMatMulProgram") {
    tail_.emplace("WordMatMulProgram", attributes);
  }
};

}  // namespace

Operator word_matmul() {
  Operator op = {
      "WordMatMul", kInputs, {{{kFloat, kInt16, kFloat, kFloat}, {kFloat}}}, make_node<WordMatMul>, always_float};
  op.columns_input = kBias;
  op.stack_input = kWeight;
  return op;
}

Operator word_matmul_program() {
  return with_program(word_matmul(), "WordMatMulProgram", make_node<WordMatMulProgram>);
}

}  // namespace dynq
