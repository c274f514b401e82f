// ReduceAbsMax and ReduceMinMax: the largest magnitude, or the smallest and the largest element, over some dimensions,
// in one pass.
//
// The dimensions are a run of `count` from `axis` on, or with `kept` all others. Either way src is a tensor of
//
//   outer x rows x cols x inner,   of which outer x cols remain,
//
// and is read in one of two ways: row by row, where inner is long enough for vectors, each row giving one number; or
// column by column, the vectors lying across them.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/kernels.h"
#include "operators/operators.h"

namespace dynq {
namespace {

constexpr int64_t kTaskElements = 32768;  // as in layout.cc
constexpr int64_t kManyUnits = 8;         // of work, which are handed out whole
constexpr int64_t kMostParts = 64;        // of one unit
constexpr int64_t kShortRow = 32;         // elements, below which rows are read as columns
constexpr int64_t kNarrowColumns = 64;    // columns, below which rows are joined
constexpr int64_t kJoinedColumns = 256;   // about so many together
constexpr int64_t kColumnTile = 1024;     // columns whose ranges stay in the first-level cache
constexpr float kInfinity = std::numeric_limits<float>::infinity();

template <bool kMagnitude>
class Range : public Node {
 public:
  static constexpr const char* kName = kMagnitude ? "ReduceAbsMax" : "ReduceMinMax";

  explicit Range(const Attributes& attributes)
      : axis_(attributes.integer("axis", -1)),
        count_(attributes.integer("count", 1)),
        kept_(flag(attributes, "reduce_others", 0)),
        keepdims_(flag(attributes, "keepdims", 1)) {}

  void compute(Context& context) const override {
    const Tensor src = context.input(0);
    const int64_t rank = static_cast<int64_t>(src.shape.rank);
    if (axis_ < -rank || axis_ > rank) fail("axis", axis_, -rank, rank, src.shape);
    const int64_t begin = axis_ < 0 ? axis_ + rank : axis_;
    if (count_ < 0 || begin + count_ > rank) fail("count", count_, 0, rank - begin, src.shape);
    Shape shape;
    int64_t sizes[3] = {1, 1, 1};  // before the run, of it, and behind it
    for (int64_t i = 0; i < rank; ++i) {
      const bool is_in_run = i >= begin && i < begin + count_;
      sizes[i < begin ? 0 : is_in_run ? 1 : 2] *= src.shape.dims[i];
      if (is_in_run == kept_)
        shape.dims[shape.rank++] = src.shape.dims[i];
      else if (keepdims_)
        shape.dims[shape.rank++] = 1;
    }
    Run run;
    run.src = static_cast<const float*>(src.data);
    run.low = kMagnitude ? nullptr : static_cast<float*>(context.output(0, shape));
    run.high = static_cast<float*>(context.output(kMagnitude ? 0 : 1, shape));
    if (kept_)
      run.describe(1, sizes[0], sizes[1], sizes[2]);
    else
      run.describe(sizes[0], sizes[1], sizes[2], 1);
    run.execute(context);
  }

 private:
  static bool flag(const Attributes& attributes, const char* name, int64_t absent) {
    const int64_t value = attributes.integer(name, absent);
    if (value != 0 && value != 1)
      throw Error(std::string(kName) + ": " + name + " is " + std::to_string(value) + ", expected 0 to 1");
    return value != 0;
  }

  [[noreturn]] static void fail(const char* name, int64_t value, int64_t low, int64_t high, const Shape& src) {
    throw Error(std::string(kName) + ": " + name + " is " + std::to_string(value) + ", expected " +
                std::to_string(low) + " to " + std::to_string(high) + " for src of shape " + src.text());
  }

  // The work is a number of units: each one output where rows are read, `cols` of them where columns are.
  struct Run {
    const KernelTable& table = active_kernels();
    const float* src;
    float *low, *high;
    int64_t outer, rows, cols, inner;
    bool by_column;
    int64_t units, unit_elements;
    int64_t joined = 1;   // by_column: so many rows are read as one
    int64_t results = 1;  // that a unit has before they are put together
    int64_t parts = 1, batch = 1, unit = 0;
    std::vector<float> partial;

    void describe(int64_t outer_, int64_t rows_, int64_t cols_, int64_t inner_) {
      outer = outer_, rows = rows_, cols = cols_, inner = inner_;
      if (cols == 1) inner *= rows, rows = 1;
      by_column = rows > 1 && inner < kShortRow;
      units = by_column ? outer : outer * cols;
      unit_elements = rows * inner * (by_column ? cols : 1);
      if (!by_column) return;
      const int64_t width = std::max<int64_t>(1, cols * inner);
      if (width < kNarrowColumns) joined = std::min(rows, kJoinedColumns / width);
      results = joined * cols * inner;
    }

    void execute(Context& context) {
      if (outer * cols == 0) return;
      if (rows * inner == 0) {  // what ReduceMin and ReduceMax have for nothing
        for (int64_t i = 0; i < outer * cols; ++i) put(i, kInfinity, -kInfinity);
        return;
      }
      if (units >= kManyUnits || unit_elements * units <= 2 * kTaskElements) {
        batch = std::max<int64_t>(1, kTaskElements / unit_elements);
        const int64_t tasks = (units + batch - 1) / batch;
        if (results > kJoinedColumns) partial.resize(static_cast<size_t>(2 * results * tasks));
        if (tasks == 1)
          run_batch(this, 0);
        else
          context.parallel_for(static_cast<size_t>(tasks), run_batch, this);
        return;
      }
      parts = std::min(kMostParts, unit_elements / kTaskElements);
      if (by_column) parts = std::min(parts, rows / joined);
      partial.resize(static_cast<size_t>(2 * results * parts));
      for (unit = 0; unit < units; ++unit) {
        context.parallel_for(static_cast<size_t>(parts), run_part, this);
        for (int64_t part = 1; part < parts; ++part) combine_all(part_low(part), part_low(0), results);
        finish(unit, part_low(0), part_low(0) + results);
      }
    }

    float* part_low(int64_t part) { return partial.data() + part * 2 * results; }

    static void run_part(void* data, size_t index) {
      Run& run = *static_cast<Run*>(data);
      const int64_t part = static_cast<int64_t>(index);
      run.reduce(run.unit, part, run.parts, run.part_low(part), run.part_low(part) + run.results);
    }

    static void run_batch(void* data, size_t index) {
      Run& run = *static_cast<Run*>(data);
      const int64_t first = static_cast<int64_t>(index) * run.batch, last = std::min(run.units, first + run.batch);
      float few[2 * kJoinedColumns];
      if (!run.by_column && run.rows == 1) {
        for (int64_t unit = first; unit < last; unit += kJoinedColumns)
          run.adjacent_rows(unit, std::min(kJoinedColumns, last - unit), few, few + kJoinedColumns);
        return;
      }
      float* results = run.results > kJoinedColumns ? run.part_low(static_cast<int64_t>(index)) : few;
      for (int64_t unit = first; unit < last; ++unit) {
        run.reduce(unit, 0, 1, results, results + run.results);
        run.finish(unit, results, results + run.results);
      }
    }

    static void begin(float* lowest, float* highest, int64_t count) {
      std::fill_n(lowest, count, kInfinity);
      std::fill_n(highest, count, kMagnitude ? 0.0f : -kInfinity);
    }

    static void combine(float low, float high, float& lowest, float& highest) {
      if (low < lowest) lowest = low;
      if (high > highest) highest = high;
    }

    static void combine_all(const float* __restrict from, float* __restrict to, int64_t count) {
      for (int64_t i = 0; i < count; ++i) to[i] = from[i] < to[i] ? from[i] : to[i];
      for (int64_t i = count; i < 2 * count; ++i) to[i] = from[i] > to[i] ? from[i] : to[i];
    }

    const float* begin_of(int64_t unit_) const {
      return by_column ? src + unit_ * unit_elements : src + (unit_ / cols * rows * cols + unit_ % cols) * inner;
    }

    // One of `of` parts of a unit.
    void reduce(int64_t unit_, int64_t part, int64_t of, float* lowest, float* highest) const {
      begin(lowest, highest, results);
      const RangesKernel kernel = kernels()[by_column ? kPerColumn : kPerRow];
      const float* x = begin_of(unit_);
      if (by_column) {
        const int64_t all = rows / joined, first = all * part / of, last = all * (part + 1) / of;
        for (int64_t i = 0; i < results; i += kColumnTile)
          kernel(x + first * results + i, last - first, std::min(kColumnTile, results - i), results, lowest + i,
                 highest + i);
        const int64_t tail = rows % joined * cols * inner;
        if (tail > 0 && last == all) kernel(x + all * results, 1, tail, tail, lowest, highest);
        return;
      }
      const int64_t first = unit_elements * part / of, last = unit_elements * (part + 1) / of;
      for (int64_t at = first; at < last;) {
        const int64_t row = at / inner, col = at % inner, count = std::min(inner - col, last - at);
        kernel(x + row * cols * inner + col, 1, count, count, lowest, highest);
        at += count;
      }
    }

    const RangesKernel* kernels() const { return kMagnitude ? table.magnitude_of : table.min_max_of; }

    // `count` units of one row each.
    void adjacent_rows(int64_t unit_, int64_t count, float* lowest, float* highest) const {
      begin(lowest, highest, count);
      const float* x = src + unit_ * inner;
      kernels()[kPerRow](x, count, inner, inner, lowest, highest);
      for (int64_t i = 0; i < count; ++i) store(unit_ + i, x + i * inner, lowest[i], highest[i], false);
    }

    // Puts a unit's results together.
    void finish(int64_t unit_, const float* lowest, const float* highest) const {
      const float* x = begin_of(unit_);
      const int64_t count = by_column ? cols : 1, step = by_column ? inner : 1;
      const bool is_in_order = by_column && joined == 1 && inner == 1;
      for (int64_t col = 0; col < count; ++col) {
        float l = lowest[col * step], h = highest[col * step];
        for (int64_t i = 0; !is_in_order && i < results; i += count * step)
          for (int64_t k = i + col * step; k < i + (col + 1) * step; ++k) combine(lowest[k], highest[k], l, h);
        store(unit_ * count + col, x + col * step, l, h, is_in_order);
      }
    }

    // One output, of the elements from `x` on: NaN if the first of them is, of zeros the first.
    void store(int64_t index, const float* x, float l, float h, bool is_in_order) const {
      if (!kMagnitude && !is_in_order && (l == 0 || h == 0)) {
        const float zero = first_zero(x);
        l = l == 0 ? zero : l;
        h = h == 0 ? zero : h;
      }
      if (const float first = load(x); std::isnan(first)) l = h = kMagnitude ? std::fabs(first) : first;
      put(index, l, h);
    }

    void put(int64_t index, float l, float h) const {
      if (!kMagnitude) dynq::store(low + index, l);
      dynq::store(high + index, h);
    }

    float first_zero(const float* x) const {
      for (int64_t row = 0; row < rows; ++row)
        for (int64_t i = row * cols * inner; i < row * cols * inner + inner; ++i)
          if (const float zero = load(x + i); zero == 0) return zero;
      return 0;
    }
  };

  int64_t axis_, count_;
  bool kept_, keepdims_;
};

template <bool kMagnitude>
std::unique_ptr<Node> make(const Attributes& attributes) {
  return std::make_unique<Range<kMagnitude>>(attributes);
}

Type output_type(const Attributes&, const std::vector<Type>&) { return kFloat; }

}  // namespace

Operator reduce_abs_max() { return {Range<true>::kName, 1, {{{kFloat}, {kFloat}}}, make<true>, output_type, false}; }

Operator reduce_min_max() {
  return {Range<false>::kName, 1, {{{kFloat}, {kFloat, kFloat}}}, make<false>, output_type, false};
}

}  // namespace dynq
