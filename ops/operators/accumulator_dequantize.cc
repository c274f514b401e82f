// AccumulatorDequantize: what an integer matrix product has summed up becomes floats, in one pass.
//
//   dst = float(src - zero_point * column_sum) * (scale * column_scale) + bias
//
// src holds the products of codes as they are, zero points not taken off; src - zero_point * column_sum is what they
// would have been. Rows have a scale and a zero point each, or several share one; columns have theirs, sums of the
// weights and a bias.
#include <algorithm>

#include "kernels/kernels.h"
#include "operators/operators.h"

namespace dynq {
namespace {

constexpr char kName[] = "AccumulatorDequantize";
constexpr int64_t kFewRows = 8;           // the columns' parameters are not read often enough to stay cached
constexpr int64_t kTaskElements = 32768;  // as in layout.cc
constexpr int64_t kTaskRows = 1024;       // their scales are on a task's stack

class AccumulatorDequantize : public Node {
 public:
  explicit AccumulatorDequantize(const Attributes& attributes) {
    const int64_t order = attributes.integer("scale_order", kScalesFirst);
    if (order < 0 || order >= kScaleOrders)
      throw Error(std::string(kName) + ": scale_order is " + std::to_string(order) + ", expected 0 to " +
                  std::to_string(kScaleOrders - 1));
    order_ = static_cast<ScaleOrder>(order);
  }

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
    if (run.rows <= kFewRows) run.fetch_columns();
    const int64_t tasks = run.col_tasks * ((run.rows + run.task_rows - 1) / run.task_rows);
    if (tasks == 1)
      Run::task(&run, 0);
    else
      context.parallel_for(static_cast<size_t>(tasks), &Run::task, &run);
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

    // Since the columns' parameters were last used a whole matrix has passed through the caches. Asked for all at once,
    // they are there sooner than if the loop waits for each.
    void fetch_columns() const {
      constexpr int64_t kLine = 64 / sizeof(float);
      for (int64_t i = 0; i < cols; i += kLine) {
        __builtin_prefetch(column_sums + i);
        __builtin_prefetch(column_scales + i);
        __builtin_prefetch(bias + i);
      }
    }

    static void task(void* data, size_t index) {
      const Run& run = *static_cast<const Run*>(data);
      const int64_t row = static_cast<int64_t>(index) / run.col_tasks * run.task_rows;
      const int64_t col = static_cast<int64_t>(index) % run.col_tasks * run.task_cols;
      float scales[kTaskRows];
      int32_t zps[kTaskRows];
      const int64_t rows = std::min(run.task_rows, run.rows - row);
      for (int64_t i = 0; i < rows; ++i) {
        scales[i] = load(run.scales + (row + i) / run.rows_per_scale);
        zps[i] = run.zero_point_of(row + i);
      }
      const int64_t first = row * run.cols + col;
      run.kernel({run.src + first, run.dst + first, rows, std::min(run.task_cols, run.cols - col), run.cols, scales,
                  zps, run.column_scales + col, run.column_sums + col, run.bias + col});
    }
  };

  // How many rows in turn share a scale: it has src's leading dimensions, and 1 from some dimension on.
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
  return {kName,
          6,
          {{{kInt32, kFloat, kUint8, kFloat, kInt32, kFloat}, {kFloat}},
           {{kInt32, kFloat, kInt8, kFloat, kInt32, kFloat}, {kFloat}}},
          [](const Attributes& attributes) -> std::unique_ptr<Node> {
            return std::make_unique<AccumulatorDequantize>(attributes);
          },
          [](const Attributes&, const std::vector<Type>&) { return kFloat; }};
}

}  // namespace dynq
