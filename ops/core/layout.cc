// A tensor alternates between dimensions along which the scale varies and dimensions along which it is shared. Per
// tensor is one shared dimension, per channel is shared x varying x shared, groups along an axis are varying x shared.
// Neighboring dimensions of the same kind are merged. The innermost one or two make the block; the others are loops:
//
//   ... varying m x shared n   ->  m rows of n columns, a scale for each row
//   ... shared m x varying n   ->  m rows of n columns, a scale for each column
//
// Rows too short for vectors become columns: if n = 3 elements share a scale, each scale is repeated 3 times. Rows of
// few columns are joined: with 3 columns, the scales of the joined row recur with period 3.
#include "core/layout.h"

#include <algorithm>
#include <memory>

#include "core/blocks.h"
#include "core/parallel.h"
#include "core/rounding.h"

namespace dynq {
namespace {

constexpr int64_t kShortRow = 32;           // if fewer elements share a scale, scales are repeated
constexpr int64_t kNarrowColumns = 128;     // rows with fewer columns are joined
constexpr int64_t kJoinedColumns = 512;     // to at most this many columns
constexpr int64_t kTaskRows = 64;           // rows of columns per task, at least: preparing their parameters takes time
constexpr int64_t kStreamBytes = 16 << 20;  // larger outputs do not fit the caches

struct Dimension {
  int64_t extent;
  bool varies;
};

struct Loop {
  int64_t extent, src_stride, scale_stride;
};

struct Layout {
  int64_t rows = 1, cols = 1;
  bool per_column = false;
  int64_t period = 1;  // per_column: columns after which the scales recur
  int64_t repeat = 1;  // per_column: adjacent columns that share a scale
  int64_t tail = 0;    // per_column: elements of one more, shorter row
  size_t loops = 0;
  Loop loop[2 * kMaxRank];

  // Whether every block begins at an even element, and has an even number of them unless it is the last one.
  bool is_even() const { return (cols % 2 == 0 && tail % 2 == 0) || (rows == 1 && loops == 0 && tail == 0); }
};

Layout make_layout(const Shape& src, const Shape& counts) {
  Dimension dims[2 * kMaxRank + 1];
  size_t count = 0;
  const auto push = [&](int64_t extent, bool varies) {
    if (extent == 1) return;
    if (count > 0 && dims[count - 1].varies == varies)
      dims[count - 1].extent *= extent;
    else
      dims[count++] = {extent, varies};
  };
  for (size_t i = 0; i < src.rank; ++i) {
    push(counts.dims[i], true);
    push(src.dims[i] / counts.dims[i], false);
  }

  Layout layout;
  const auto pop = [&](bool varies) -> int64_t {
    return count > 0 && dims[count - 1].varies == varies ? dims[--count].extent : 1;
  };
  const int64_t shared = pop(false);
  const int64_t varying = pop(true);
  layout.per_column = varying > 1 && shared < kShortRow;
  int64_t scales = varying;
  if (layout.per_column) {
    layout.repeat = shared;
    layout.cols = layout.period = varying * shared;
    layout.rows = pop(false);
    if (layout.rows > 1 && layout.cols < kNarrowColumns) {
      const int64_t joined = std::min(layout.rows, kJoinedColumns / layout.cols);
      layout.tail = layout.rows % joined * layout.cols;
      layout.rows /= joined;
      layout.cols *= joined;
    }
  } else {
    layout.rows = varying;
    layout.cols = shared;
  }
  int64_t elements = layout.rows * layout.cols + layout.tail;
  while (count > 0) {
    const Dimension& dim = dims[--count];
    layout.loop[layout.loops++] = {dim.extent, elements, dim.varies ? scales : 0};
    elements *= dim.extent;
    if (dim.varies) scales *= dim.extent;
  }
  return layout;
}

// One layout over one stretch of memory, cut into tasks.
template <class Work>
class Tasks {
 public:
  Tasks(const Layout& layout, const Blocks<Work>& blocks, int64_t src_offset, int64_t scale_offset, bool stream)
      : layout_(layout), blocks_(blocks), src_offset_(src_offset), scale_offset_(scale_offset), stream_(stream) {
    cols_ = std::min(layout.cols, layout.per_column ? kMaxParameters : kTaskElements);
    rows_ = std::min(layout.rows, std::max(kTaskElements / cols_, layout.per_column ? kTaskRows : 1));
    col_tasks_ = (layout.cols + cols_ - 1) / cols_;
    row_tasks_ = (layout.rows + rows_ - 1) / rows_;
    leaf_tasks_ = col_tasks_ * row_tasks_ + (layout.tail > 0);
    count_ = leaf_tasks_;
    for (size_t i = 0; i < layout.loops; ++i) count_ *= layout.loop[i].extent;
  }

  void run(Context& context) {
    // A task runs several leaves if they are small.
    const int64_t leaf_elements = (layout_.rows * layout_.cols + layout_.tail) / leaf_tasks_;
    const int64_t batch = std::max<int64_t>(1, kTaskElements / std::max<int64_t>(1, leaf_elements));
    run_tasks(context, (count_ + batch - 1) / batch, [&](int64_t task) {
      ParameterTile<Work> tile(blocks_.work());
      const int64_t last = std::min(count_, (task + 1) * batch);
      for (int64_t index = task * batch; index < last; ++index) run_leaf(tile, index);
    });
  }

 private:
  void run_leaf(ParameterTile<Work>& tile, int64_t index) const {
    const int64_t part = index % leaf_tasks_;
    int64_t src = src_offset_, scale = scale_offset_;
    int64_t outer = index / leaf_tasks_;
    for (size_t i = 0; i < layout_.loops; ++i) {
      const Loop& loop = layout_.loop[i];
      src += outer % loop.extent * loop.src_stride;
      scale += outer % loop.extent * loop.scale_stride;
      outer /= loop.extent;
    }
    if (part == col_tasks_ * row_tasks_) {
      run_columns(tile, src + layout_.rows * layout_.cols, scale, 1, 0, layout_.tail);
      return;
    }
    const int64_t row = part / col_tasks_ * rows_, col = part % col_tasks_ * cols_;
    const int64_t rows = std::min(rows_, layout_.rows - row), cols = std::min(cols_, layout_.cols - col);
    src += row * layout_.cols;
    if (layout_.per_column)
      run_columns(tile, src, scale, rows, col, cols);
    else
      run_rows(tile, src + col, scale + row, rows, cols);
  }

  void run_rows(ParameterTile<Work>& tile, int64_t src, int64_t scale, int64_t rows, int64_t cols) const {
    for (int64_t done = 0; done < rows; done += kMaxParameters) {
      const int64_t some = std::min(rows - done, kMaxParameters);
      tile.fill(scale + done, 0, some, some, 1);
      blocks_.run(tile, kPerRow, src + done * layout_.cols, {some, cols, layout_.cols}, stream_);
    }
  }

  void run_columns(ParameterTile<Work>& tile, int64_t src, int64_t scale, int64_t rows, int64_t col,
                   int64_t cols) const {
    for (int64_t done = 0; done < cols; done += kMaxParameters) {
      const int64_t some = std::min(cols - done, kMaxParameters);
      tile.fill(scale, col + done, some, layout_.period, layout_.repeat);
      blocks_.run(tile, kPerColumn, src + col + done, {rows, some, layout_.cols}, stream_);
    }
  }

  const Layout& layout_;
  const Blocks<Work>& blocks_;
  int64_t src_offset_, scale_offset_;
  bool stream_;
  int64_t cols_, rows_, col_tasks_, row_tasks_, leaf_tasks_, count_;
};

// Writes codes of 8 bits and then narrows them to 4: blocks with an odd number of elements share a byte, which two
// threads must not write.
template <class Work>
void run_wide(const Shape& shape, const Groups& groups, Work work, Context& context) {
  const Storage storage = storage_of(work.dst_type);
  const int64_t elements = shape.elements();
  const std::unique_ptr<uint8_t[]> codes(new uint8_t[static_cast<size_t>(elements)]);
  void* const dst = work.dst;
  work.dst = codes.get();
  work.dst_type = work.dst_type == kInt4 ? kInt8 : kUint8;
  if constexpr (std::is_same_v<Work, QuantizeWork>) work.direct = nullptr;  // they store 4 bits
  run_grouped(shape, groups, work, context);
  run_tasks(context, divide_up(elements, kTaskElements), [&](int64_t task) {
    const int64_t first = task * kTaskElements;
    storage.narrow(codes.get() + first, element(dst, storage, first), std::min(kTaskElements, elements - first));
  });
}

template <class Work>
void run(const Shape& src, const Groups& groups, const Work& work, Context& context) {
  const int64_t elements = src.elements();
  if (elements == 0) return;
  const Blocks<Work> blocks(work);
  if (elements <= kTaskElements && groups.counts.elements() == 1) {  // making a layout would take as long as the work
    ParameterTile<Work> tile(work);
    tile.fill(0, 0, 1, 1, 1);
    blocks.run(tile, kPerRow, 0, {1, elements, elements}, false);
    return;
  }
  const bool stream = elements * blocks.dst_bits() / 8 > kStreamBytes, needs_even = blocks.dst_bits() < 8;
  if (groups.size == 0) {
    const Layout layout = make_layout(src, groups.counts);
    if (needs_even && !layout.is_even()) return run_wide(src, groups, work, context);
    Tasks<Work>(layout, blocks, 0, 0, stream).run(context);
    return;
  }

  // The last group along the axis is shorter. For every outer index, the last group and the groups before it are two
  // tensors.
  int64_t outer = 1, inner = 1;
  for (size_t i = 0; i < groups.axis; ++i) outer *= src.dims[i];
  for (size_t i = groups.axis + 1; i < src.rank; ++i) inner *= src.dims[i];
  const int64_t length = src.dims[groups.axis], scales = groups.counts.dims[groups.axis];
  const int64_t whole = (scales - 1) * groups.size;
  const auto layout_of = [&](int64_t along_axis, int64_t scales_along_axis) {
    Shape part, counts;
    part.rank = counts.rank = 2;
    part.dims[0] = along_axis;
    counts.dims[0] = scales_along_axis;
    part.dims[1] = counts.dims[1] = inner;
    return make_layout(part, counts);
  };
  const Layout last = layout_of(length - whole, 1);
  const Layout others = scales > 1 ? layout_of(whole, scales - 1) : last;
  const bool begins_even = whole * inner % 2 == 0 && (outer == 1 || length * inner % 2 == 0);
  if (needs_even && !(begins_even && last.is_even() && others.is_even())) return run_wide(src, groups, work, context);
  for (int64_t i = 0; i < outer; ++i) {
    const int64_t start = i * length * inner, scale = i * scales * inner;
    if (scales > 1) Tasks<Work>(others, blocks, start, scale, stream).run(context);
    Tasks<Work>(last, blocks, start + whole * inner, scale + (scales - 1) * inner, stream).run(context);
  }
}

}  // namespace

void run_grouped(const Shape& src, const Groups& groups, const QuantizeWork& work, Context& context) {
  run(src, groups, work, context);
}

void run_grouped(const Shape& src, const Groups& groups, const DequantizeWork& work, Context& context) {
  run(src, groups, work, context);
}

void run_grouped(const Shape& src, const Groups& groups, const FakeQuantizeWork& work, Context& context) {
  run(src, groups, work, context);
}

}  // namespace dynq
