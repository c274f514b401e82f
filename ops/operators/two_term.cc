// TwoTermQuantize: symmetric dynamic quantization to two int8 codes for each element: the second one is that of what
// the first one leaves. float16 is converted to float32, batch by batch.
#include <algorithm>
#include <atomic>
#include <cstring>

#include "core/formats.h"
#include "core/parallel.h"
#include "core/rows.h"
#include "core/scratch.h"
#include "kernels/dispatch.h"

namespace dynq {
namespace {

constexpr int64_t kScaledRows = 256;  // rows with scales that are computed at once

class TwoTermQuantize : public Node {
 public:
  static constexpr const char* kName = "TwoTermQuantize";

  explicit TwoTermQuantize(const Attributes& attributes) : rows_(kName, attributes) {}

  void compute(Context& context) const override {
    const Tensor src = context.input(0);
    if (src.shape.rank == 0) throw Error(std::string(kName) + ": src is a scalar, expected at least one dimension");
    const Rows rows = rows_.rows_of(src.shape);
    Shape codes = src.shape;
    codes.dims[rows.axis] *= 2;
    Run run(src);
    run.rows = rows.count;
    run.cols = rows.cols;
    run.line = rows.blocks;
    run.dst = static_cast<int8_t*>(context.output(0, codes));
    run.scales = static_cast<float*>(context.output(1, rows.parameters));
    if (run.rows == 0) return;
    if (are_split(run.rows, run.cols))
      for (int64_t row = 0; row < run.rows; ++row) long_row(run, row, context);
    else
      short_rows(run, context);
  }

 private:
  struct Run {
    explicit Run(const Tensor& tensor) : src(tensor) {}

    const ElementwiseKernels& table = active_kernels();
    FloatReader src;
    int8_t* dst = nullptr;
    float* scales = nullptr;
    int64_t rows = 1, cols = 1;
    int64_t line = 1;  // rows with adjacent codes, followed by their remainders
  };

  struct Batch {
    float low[kScaledRows], abs_max[kScaledRows], inverse[kScaledRows];
    Scratch<float, kBatchElements> src;
  };

  void short_rows(const Run& run, Context& context) const {
    const int64_t cols = std::max<int64_t>(run.cols, 1), rows = std::max<int64_t>(1, kTaskElements / cols);
    const int64_t together = std::clamp<int64_t>(kBatchElements / cols, 1, kScaledRows);
    run_tasks(context, (run.rows + rows - 1) / rows, [&](int64_t task) {
      const int64_t last = std::min(run.rows, (task + 1) * rows);
      Batch batch;
      for (int64_t row = task * rows; row < last; row += together) {
        const int64_t count = std::min(together, last - row);
        const float* src = run.src.read(row * run.cols, count * run.cols, batch.src);
        std::fill_n(batch.abs_max, count, 0.0f);
        const bool all_finite = run.cols == 0 || widen(run, src, count, run.cols, batch.abs_max);
        find_scales(batch.abs_max, count, batch.inverse, run.scales + row);
        for (int64_t i = 0; i < count && !all_finite; ++i)
          if (has_nan(src + i * run.cols, run.cols)) store(run.scales + row + i, kNan);
        for (int64_t i = 0, some; i < count; i += some) {  // rows of one line
          some = std::min(run.line - (row + i) % run.line, count - i);
          quantize(run, src + i * run.cols, row + i, 0, {some, run.cols, run.cols}, batch.inverse + i);
        }
      }
    });
  }

  void long_row(const Run& run, int64_t row, Context& context) const {
    const Parts parts(run.cols);
    float abs_max[kMaxParts] = {}, inverse;
    std::atomic<bool> any_nan = false;
    run_tasks(context, parts.count, [&](int64_t part) {
      Batch batch;
      const float* src = run.src.read(row * run.cols + parts.begin(part), parts.size(part), batch.src);
      if (!widen(run, src, 1, parts.size(part), abs_max + part) && has_nan(src, parts.size(part))) any_nan = true;
    });
    find_scales(std::max_element(abs_max, abs_max + parts.count), 1, &inverse, run.scales + row);
    if (any_nan) store(run.scales + row, kNan);
    run_tasks(context, parts.count, [&](int64_t part) {
      Batch batch;
      const int64_t first = parts.begin(part), size = parts.size(part);
      const float* src = run.src.read(row * run.cols + first, size, batch.src);
      quantize(run, src, row, first, {1, size, size}, &inverse);
    });
  }

  // Widens abs_max by the elements of adjacent rows. NaN is ignored. Returns whether all elements are finite.
  static bool widen(const Run& run, const float* src, int64_t rows, int64_t cols, float* abs_max) {
    float low[kScaledRows];
    return run.table.row_ranges[kAbsMax](src, rows, cols, cols, low, abs_max);
  }

  static bool has_nan(const float* src, int64_t count) {
    for (int64_t i = 0; i < count; ++i)
      if (const float number = load(src + i); number != number) return true;
    return false;
  }

  static void find_scales(const float* abs_max, int64_t rows, float* inverses, float* scales) {
    float found[kScaledRows];
    for (int64_t i = 0; i < rows; ++i) {
      inverses[i] = 127.0f / abs_max[i];
      found[i] = abs_max[i] / 127.0f / 254.0f;
    }
    std::memcpy(scales, found, static_cast<size_t>(rows) * sizeof(float));
  }

  // Quantizes adjacent rows of one line from number `row` on, or the part of a row that begins at column `col`.
  static void quantize(const Run& run, const float* src, int64_t row, int64_t col, const Extent& extent,
                       const float* inverses) {
    const int64_t length = run.line * run.cols, line = row / run.line, first = row % run.line * run.cols + col;
    int8_t* codes = run.dst + 2 * line * length + first;
    run.table.two_terms({extent, src, codes, codes + length, inverses});
  }

  RowAttributes rows_;
};

}  // namespace

Operator two_term_quantize() {
  Operator op = {TwoTermQuantize::kName,
                 1,
                 {{{kFloat}, {kInt8, kFloat}}, {{kFloat16}, {kInt8, kFloat}}},
                 make_node<TwoTermQuantize>,
                 [](const Attributes&, const std::vector<Type>&) { return kInt8; }};
  op.columns_input = Operator::kNoInput;
  return op;
}

}  // namespace dynq
