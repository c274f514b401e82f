// ReduceAbsMax and ReduceMinMax: the largest magnitude, or the smallest and the largest element, over some dimensions,
// in one pass.
//
// The reduced dimensions are `count` dimensions from `axis` on, or with `reduce_others` all others. In either case src
// is a tensor of outer x rows x cols x inner elements, and the result has outer x cols elements. If inner is long
// enough for vectors, src is read row by row, and each row gives one number. Otherwise it is read column by column: a
// vector has elements of several columns. Kernels read float16 if each output is the range of one row; otherwise it is
// converted first.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>

#include "core/attributes.h"
#include "core/formats.h"
#include "core/parallel.h"
#include "core/row_extremes.h"
#include "core/scratch.h"
#include "kernels/dispatch.h"

namespace dynq {
namespace {

constexpr int64_t kManyUnits = 8;        // at least this many units of work are not split into parts
constexpr int64_t kMaxParts = 64;        // of one unit
constexpr int64_t kShortRow = 32;        // rows with fewer elements are read as columns
constexpr int64_t kNarrowColumns = 64;   // rows with fewer columns are joined
constexpr int64_t kJoinedColumns = 256;  // to at most this many columns
constexpr int64_t kColumnTile = 1024;    // columns with results that stay in the first-level cache

template <Extremes kKind>
class Reduce : public Node {
 public:
  static constexpr const char* kName = kKind == kAbsMax ? "ReduceAbsMax" : "ReduceMinMax";

  explicit Reduce(const Attributes& attributes)
      : axis_(attributes.integer("axis", -1)),
        count_(attributes.integer("count", 1)),
        reduce_others_(read_flag(kName, attributes, "reduce_others", false)),
        keepdims_(read_flag(kName, attributes, "keepdims", true)) {}

  void compute(Context& context) const override {
    const Tensor src = context.input(0);
    const int64_t rank = static_cast<int64_t>(src.shape.rank);
    if (axis_ < -rank || axis_ > rank) fail("axis", axis_, -rank, rank, src.shape);
    const int64_t begin = axis_ < 0 ? axis_ + rank : axis_;
    if (count_ < 0 || count_ > rank - begin) fail("count", count_, 0, rank - begin, src.shape);
    int64_t sizes[3] = {1, 1, 1};
    const Shape shape = result_shape(src.shape, begin, sizes);
    Run run;
    Scratch<float, 64> floats;
    run.low = kKind == kAbsMax ? nullptr : static_cast<float*>(context.output(0, shape));
    run.high = static_cast<float*>(context.output(kKind == kAbsMax ? 0 : 1, shape));
    const bool has_before = begin > 0, has_after = begin + count_ < rank;
    if (reduce_others_) {
      run.describe(1, sizes[0], sizes[1], sizes[2]);
      run.begins_with_first = has_before && has_after;
      run.chunk = has_after && (sizes[1] != 1 || !has_before) ? sizes[2] : 0;
    } else {
      run.describe(sizes[0], sizes[1], sizes[2], 1);
      run.chunk = has_after ? 0 : sizes[1];
    }
    if (src.type == kFloat16 && run.table.ranges_f16[kKind] != nullptr && run.has_rows())
      run.src_f16 = static_cast<const uint16_t*>(src.data);
    else
      run.src = src.type == kFloat ? static_cast<const float*>(src.data) : widened(src, floats, context);
    run.execute(context);
  }

 private:
  // The shape of the outputs. `sizes`: the elements before, within and after the `count` dimensions from `begin` on.
  Shape result_shape(const Shape& src, int64_t begin, int64_t (&sizes)[3]) const {
    Shape shape;
    for (int64_t i = 0; i < static_cast<int64_t>(src.rank); ++i) {
      const bool is_within = i >= begin && i < begin + count_;
      sizes[i < begin ? 0 : is_within ? 1 : 2] *= src.dims[i];
      if (is_within == reduce_others_)
        shape.dims[shape.rank++] = src.dims[i];
      else if (keepdims_)
        shape.dims[shape.rank++] = 1;
    }
    return shape;
  }

  static const float* widened(const Tensor& src, Scratch<float, 64>& floats, Context& context) {
    const int64_t count = src.shape.elements(), parts = part_count(count, kMaxParts);
    const Storage storage = storage_of(src.type);
    float* to = floats.allocate(count);
    run_tasks(context, parts, [&](int64_t part) {
      const int64_t first = count * part / parts, last = count * (part + 1) / parts;
      // NOLINTNEXTLINE(clang-analyzer-core.CallAndMessage): only a 16-bit float is widened
      storage.widen(element(src.data, storage, first), to + first, last - first);
    });
    return to;
  }

  [[noreturn]] static void fail(const char* name, int64_t value, int64_t low, int64_t high, const Shape& src) {
    throw Error(std::string(kName) + ": " + name + " is " + std::to_string(value) + ", expected " +
                std::to_string(low) + " to " + std::to_string(high) + " for src of shape " + src.text());
  }

  // The work consists of units. A unit gives one output element, or `cols` of them if src is read by column.
  struct Run {
    const ElementwiseKernels& table = active_kernels();
    const float* src = nullptr;
    const uint16_t* src_f16 = nullptr;  // instead of src, if has_rows()
    float *low, *high;
    int64_t outer, rows, cols, inner;
    bool by_column;
    // How ONNX Runtime reduces the elements of an output: as rows of `chunk` adjacent elements, and before them the
    // first element alone. 0: not in rows, or src is read by column; then NaN is ignored, unless it is the first
    // element.
    int64_t chunk = 0;
    bool begins_with_first = false;
    int64_t units, unit_elements;
    int64_t joined = 1;          // by_column: rows that are read as one
    int64_t results = 1;         // of a unit, which finish() combines
    std::vector<float> partial;  // low and high of `results`, for each task

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

    bool has_rows() const { return !by_column && rows == 1 && inner > 0; }  // one for each output

    void execute(Context& context) {
      if (outer * cols == 0) return;
      if (rows * inner == 0) {  // the results of ReduceMin and ReduceMax for no elements
        for (int64_t i = 0; i < outer * cols; ++i) put(i, kInfinity, -kInfinity);
        return;
      }
      if (units >= kManyUnits || unit_elements <= 2 * kTaskElements)
        whole_units(context);
      else
        for (int64_t unit = 0; unit < units; ++unit) split_unit(unit, context);
    }

    // Each task reduces several units.
    void whole_units(Context& context) {
      const int64_t batch = std::max<int64_t>(1, kTaskElements / unit_elements), tasks = (units + batch - 1) / batch;
      if (results > kJoinedColumns) partial.resize(static_cast<size_t>(2 * results * tasks));
      run_tasks(context, tasks, [&](int64_t task) {
        const int64_t first = task * batch, last = std::min(units, first + batch);
        float few[2 * kJoinedColumns];
        if (src_f16 == nullptr && !by_column && rows == 1) {
          for (int64_t unit = first; unit < last; unit += kJoinedColumns)
            adjacent_rows(unit, std::min(kJoinedColumns, last - unit), few, few + kJoinedColumns);
          return;
        }
        float* lowest = results > kJoinedColumns ? partial_low(task) : few;
        for (int64_t unit = first; unit < last; ++unit) {
          const bool is_finite = reduce(unit, 0, 1, lowest, lowest + results);
          finish(unit, lowest, lowest + results, is_finite);
        }
      });
    }

    // Each task reduces a part of the unit.
    void split_unit(int64_t unit, Context& context) {
      int64_t parts = part_count(unit_elements, kMaxParts);
      if (by_column) parts = std::min(parts, rows / joined);
      partial.resize(static_cast<size_t>(2 * results * parts));
      std::atomic<bool> is_finite = true;
      run_tasks(context, parts, [&](int64_t part) {
        if (!reduce(unit, part, parts, partial_low(part), partial_low(part) + results)) is_finite = false;
      });
      for (int64_t part = 1; part < parts; ++part) combine_all(partial_low(part), partial_low(0), results);
      finish(unit, partial_low(0), partial_low(0) + results, is_finite);
    }

    float* partial_low(int64_t task) { return partial.data() + task * 2 * results; }

    static void begin(float* lowest, float* highest, int64_t count) {
      std::fill_n(lowest, count, kInfinity);
      std::fill_n(highest, count, kKind == kAbsMax ? 0.0f : -kInfinity);
    }

    static void combine(float low, float high, float& lowest, float& highest) {
      if (low < lowest) lowest = low;
      if (high > highest) highest = high;
    }

    static void combine_all(const float* __restrict from, float* __restrict to, int64_t count) {
      for (int64_t i = 0; i < count; ++i) to[i] = from[i] < to[i] ? from[i] : to[i];
      for (int64_t i = count; i < 2 * count; ++i) to[i] = from[i] > to[i] ? from[i] : to[i];
    }

    const float* begin_of(int64_t unit) const {
      return by_column ? src + unit * unit_elements : src + (unit / cols * rows * cols + unit % cols) * inner;
    }

    // Reduces part number `part` of `of` parts of a unit. Returns whether all elements are known to be finite.
    bool reduce(int64_t unit, int64_t part, int64_t of, float* lowest, float* highest) const {
      begin(lowest, highest, results);
      if (src_f16 != nullptr) {
        const uint16_t* row = src_f16 + unit * inner;
        return reduce_f16(row + inner * part / of, row + inner * (part + 1) / of, *lowest, *highest);
      }
      const float* x = begin_of(unit);
      if (by_column) {
        const ColumnRangesKernel kernel = table.column_ranges[kKind];
        const int64_t all = rows / joined, first = all * part / of, last = all * (part + 1) / of;
        for (int64_t i = 0; i < results; i += kColumnTile)
          kernel(x + first * results + i, last - first, std::min(kColumnTile, results - i), results, lowest + i,
                 highest + i);
        const int64_t tail = rows % joined * cols * inner;
        if (tail > 0 && last == all) kernel(x + all * results, 1, tail, tail, lowest, highest);
        return false;
      }
      const int64_t first = unit_elements * part / of, last = unit_elements * (part + 1) / of;
      bool is_finite = true;
      for (int64_t at = first; at < last;) {
        const int64_t row = at / inner, col = at % inner, count = std::min(inner - col, last - at);
        is_finite &= table.row_ranges[kKind](x + row * cols * inner + col, 1, count, count, lowest, highest);
        at += count;
      }
      return is_finite;
    }

    // The range kernel does not ignore a NaN that is the first element.
    bool reduce_f16(const uint16_t* first, const uint16_t* last, float& lowest, float& highest) const {
      const uint16_t* begin = first;
      while (first < last && std::isnan(number(first))) ++first;
      if (first == last) return begin == last;
      const Range range = table.ranges_f16[kKind](first, last - first);
      lowest = range.low, highest = range.high;
      return begin == first && range.not_finite == 0;
    }

    // Reduces `count` units of one row each.
    void adjacent_rows(int64_t unit, int64_t count, float* lowest, float* highest) const {
      begin(lowest, highest, count);
      const float* x = src + unit * inner;
      const bool is_finite = table.row_ranges[kKind](x, count, inner, inner, lowest, highest);
      for (int64_t i = 0; i < count; ++i) store(unit + i, x + i * inner, lowest[i], highest[i], false);
      for (int64_t i = 0; i < count && !is_finite; ++i) consider_nan(unit + i, x + i * inner);
    }

    // Combines a unit's results into its outputs.
    void finish(int64_t unit, const float* lowest, const float* highest, bool is_finite) const {
      if (src_f16 != nullptr) {
        const uint16_t* x = src_f16 + unit * inner;
        store(unit, x, *lowest, *highest, false);
        if (!is_finite) consider_nan(unit, x);
        return;
      }
      const float* x = begin_of(unit);
      const int64_t count = by_column ? cols : 1, step = by_column ? inner : 1;
      const bool is_in_order = by_column && joined == 1 && inner == 1;
      for (int64_t col = 0; col < count; ++col) {
        float l = lowest[col * step], h = highest[col * step];
        for (int64_t i = 0; !is_in_order && i < results; i += count * step)
          for (int64_t k = i + col * step; k < i + (col + 1) * step; ++k) combine(lowest[k], highest[k], l, h);
        store(unit * count + col, x + col * step, l, h, is_in_order);
      }
      if (!by_column && !is_finite) consider_nan(unit, x);
    }

    // Writes one output. x is its first element: if that is NaN, the output is NaN. An extreme that is zero has the
    // sign of the first zero.
    template <class Element>
    void store(int64_t index, const Element* x, float l, float h, bool is_in_order) const {
      if (kKind == kMinMax && !is_in_order && (l == 0 || h == 0)) {
        const float zero = first_zero(x);
        l = l == 0 ? zero : l;
        h = h == 0 ? zero : h;
      }
      if (const float first = number(x); std::isnan(first)) l = h = kKind == kAbsMax ? std::fabs(first) : first;
      put(index, l, h);
    }

    // Reduces the elements of an output again as ONNX Runtime does, if a NaN is where the result depends on it.
    template <class Element>
    void consider_nan(int64_t index, const Element* x) const {
      if (chunk == 0) return;
      const auto value = [](const Element* at) { return kKind == kAbsMax ? std::fabs(number(at)) : number(at); };
      const int64_t chunks = rows * inner / chunk, head = std::min(chunk, kHeadElements);
      int32_t any = 0;
      for (int64_t i = 0; i < chunks; ++i)
        for (int64_t k = 0; k < head; ++k) any |= static_cast<int32_t>(std::isnan(number(x + i * cols * chunk + k)));
      if (any == 0) return;
      Scratch<float, 1024> memory;
      float* elements = memory.allocate(chunk);
      float l = value(x), h = l;
      for (int64_t i = 0; i < chunks; ++i) {
        const Element* from = x + i * cols * chunk;
        for (int64_t k = 0; k < chunk; ++k) elements[k] = value(from + k);
        const auto at = from - begin_of_src(from);
        const float low = extreme_of_row(false, elements, chunk, at), high = extreme_of_row(true, elements, chunk, at);
        l = !begins_with_first || low < l ? low : l;
        h = !begins_with_first || high > h ? high : h;
      }
      put(index, l, h);
    }

    const float* begin_of_src(const float*) const { return src; }
    const uint16_t* begin_of_src(const uint16_t*) const { return src_f16; }

    void put(int64_t index, float l, float h) const {
      if (kKind == kMinMax) dynq::store(low + index, l);
      dynq::store(high + index, h);
    }

    template <class Element>
    float first_zero(const Element* x) const {
      for (int64_t row = 0; row < rows; ++row)
        for (int64_t i = row * cols * inner; i < row * cols * inner + inner; ++i)
          if (const float zero = number(x + i); zero == 0) return zero;
      return 0;
    }

    static float number(const float* x) { return load(x); }
    static float number(const uint16_t* x) { return widen_f16(load(x)); }
  };

  int64_t axis_, count_;
  bool reduce_others_, keepdims_;
};

}  // namespace

Operator reduce_abs_max() {
  return {Reduce<kAbsMax>::kName,
          1,
          {{{kFloat}, {kFloat}}, {{kFloat16}, {kFloat}}},
          make_node<Reduce<kAbsMax>>,
          always_float,
          Operator::kNoInput};
}

Operator reduce_min_max() {
  return {Reduce<kMinMax>::kName,
          1,
          {{{kFloat}, {kFloat, kFloat}}, {{kFloat16}, {kFloat, kFloat}}},
          make_node<Reduce<kMinMax>>,
          always_float,
          Operator::kNoInput};
}

}  // namespace dynq
