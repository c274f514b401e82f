// AccumulatorDequantize: the int32 result of an integer matrix product becomes float32, in one pass.
//
//   dst = float(src - zero_point * column_sum) * (scale * column_scale) + bias
//
// src is the product of codes without their zero points; src - zero_point * column_sum is the product with the zero
// point of the left operand subtracted. scale and zero_point belong to rows, column_scale, column_sum (the sums of the
// weights) and bias to columns.
#include <algorithm>

#include "core/attributes.h"
#include "core/parallel.h"
#include "kernels/kernels.h"

namespace dynq {
namespace {

constexpr int64_t kFewRows = 8;      // with so few rows the columns' parameters are not reused enough to stay cached
constexpr int64_t kTaskRows = 1024;  // rows of a task, at most: it has their scales and zero points on the stack

class AccumulatorDequantize : public Node {
 public:
  static constexpr const char* kName = "AccumulatorDequantize";

  explicit AccumulatorDequantize(const Attributes& attributes)
      : order_(read_encoding(kName, attributes, "scale_order", kScalesFirst)) {}

  void compute(Context& context) const override {
    const Tensor src = context.input(0), scale = context.input(1), zero_point = context.input(2);
    if (src.shape.rank == 0) throw Error(std::string(kName) + ": src is a scalar, expected rank 1 or more");
    Run run;
    run.cols = src.shape.dims[src.shape.rank - 1];
    run.rows_per_scale = rows_per_scale(src.shape, scale.shape);
    if (zero_point.shape.elements() != 1 && !(zero_point.shape == scale.shape))
      throw Error(std::string(kName) + ": zero_point has shape " + zero_point.shape.text() +
                  ", expected that of scale, " + scale.shape.text() + ", or one element");
    run.column_scales = column<float>(context.input(3), "column_scale", run.cols);
    run.column_sums = column<int32_t>(context.input(4), "column_sum", run.cols);
    run.bias = column<float>(context.input(5), "bias", run.cols);
    run.src = static_cast<const int32_t*>(src.data);
    run.scales = static_cast<const float*>(scale.data);
    run.zero_point = zero_point;
    run.zps_vary = zero_point.shape.elements() != 1;
    run.dst = static_cast<float*>(context.output(0, src.shape));
    run.kernel = active_kernels().accumulators[order_];
    const int64_t elements = src.shape.elements();
    if (elements == 0) return;
    run.rows = elements / run.cols;
    run.task_cols = std::min(run.cols, kTaskElements);
    run.task_rows = std::min({run.rows, kTaskRows, kTaskElements / run.task_cols});
    run.col_tasks = (run.cols + run.task_cols - 1) / run.task_cols;
    if (run.rows <= kFewRows) run.prefetch_columns();
    const int64_t row_tasks = (run.rows + run.task_rows - 1) / run.task_rows;
    run_tasks(context, run.col_tasks * row_tasks, [&run](int64_t index) { run.task(index); });
  }

 private:
  struct Run {
    const int32_t* src;
    float* dst;
    int64_t rows, cols, rows_per_scale;
    const float* scales;
    Tensor zero_point;
    bool zps_vary;
    const float* column_scales;
    const int32_t* column_sums;
    const float* bias;
    AccumulatorKernel kernel;
    int64_t task_rows, task_cols, col_tasks;

    int32_t zero_point_of(int64_t row) const {
      const int64_t i = zps_vary ? row / rows_per_scale : 0;
      return zero_point.type == kInt8 ? static_cast<const int8_t*>(zero_point.data)[i]
                                      : static_cast<const uint8_t*>(zero_point.data)[i];
    }

    // Since these were last used, a whole matrix product has passed through the caches. Prefetching all of them at once
    // is faster than waiting for each in the kernel's loop.
    void prefetch_columns() const {
      constexpr int64_t kLine = 64 / sizeof(float);
      for (int64_t i = 0; i < cols; i += kLine) {
        __builtin_prefetch(column_sums + i);
        __builtin_prefetch(column_scales + i);
        __builtin_prefetch(bias + i);
      }
    }

    void task(int64_t index) const {
      const int64_t row = index / col_tasks * task_rows, col = index % col_tasks * task_cols;
      float row_scales[kTaskRows];
      int32_t row_zps[kTaskRows];
      const int64_t count = std::min(task_rows, rows - row);
      for (int64_t i = 0; i < count; ++i) {
        row_scales[i] = load(scales + (row + i) / rows_per_scale);
        row_zps[i] = zero_point_of(row + i);
      }
      const int64_t first = row * cols + col;
      kernel({{count, std::min(task_cols, cols - col), cols},
              src + first,
              dst + first,
              row_scales,
              row_zps,
              column_scales + col,
              column_sums + col,
              bias + col});
    }
  };

  // The number of adjacent rows that share a scale. The shape of scale is src's leading dimensions, then ones.
  static int64_t rows_per_scale(const Shape& src, const Shape& scale) {
    const bool is_one = scale.elements() == 1;
    bool fits = is_one ? scale.rank <= src.rank : scale.rank == src.rank && scale.dims[src.rank - 1] == 1;
    bool is_shared = is_one;
    int64_t rows = 1;
    for (size_t i = 0; i + 1 < src.rank && fits; ++i) {
      is_shared = is_shared || (scale.dims[i] == 1 && src.dims[i] != 1);
      if (is_shared) rows *= src.dims[i];
      fits = is_one || scale.dims[i] == (is_shared ? 1 : src.dims[i]);
    }
    if (!fits)
      throw Error(std::string(kName) + ": scale has shape " + scale.text() + ", src " + src.text() +
                  ": expected src's leading dimensions, then ones, or one element");
    return rows;
  }

  template <class T>
  static const T* column(const Tensor& tensor, const char* name, int64_t cols) {
    if (tensor.shape.rank != 1 || tensor.shape.dims[0] != cols)
      throw Error(std::string(kName) + ": " + name + " has shape " + tensor.shape.text() + ", expected " +
                  std::to_string(cols) + ", one element for each column of src");
    return static_cast<const T*>(tensor.data);
  }

  ScaleOrder order_;
};

}  // namespace

Operator accumulator_dequantize() {
  return {AccumulatorDequantize::kName,
          6,
          {{{kInt32, kFloat, kUint8, kFloat, kInt32, kFloat}, {kFloat}},
           {{kInt32, kFloat, kInt8, kFloat, kInt32, kFloat}, {kFloat}}},
          make_node<AccumulatorDequantize>,
          always_float};
}

}  // namespace dynq
