// A tensor alternates between dimensions along which the scale varies and dimensions along which it is shared. Per
// tensor is one shared dimension, per channel is shared x varying x shared, groups along an axis are varying x shared.
// Neighboring dimensions of the same kind are merged. The innermost one or two make the block; the others are loops:
//
//   ... varying m x shared n   ->  m rows of n columns, a scale for each row
//   ... shared m x varying n   ->  m rows of n columns, a scale for each column
//
// Rows too short for vectors become columns. If n = 3 elements share a scale, each scale is repeated 3 times. If rows
// have 3 columns, many of them are joined to one row, whose scales recur with period 3.
#include "core/layout.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "core/parallel.h"

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

int64_t dst_size_of(const QuantizeWork&) { return 1; }
int64_t dst_size_of(const DequantizeWork&) { return sizeof(float); }
int64_t dst_size_of(const AffineWork& work) { return static_cast<int64_t>(work.dst_size); }

// The affine kernels take float zero points, the others int32.
template <class Work>
using ZeroPointOf = std::conditional_t<std::is_same_v<Work, AffineWork>, float, int32_t>;

// A zero point of type T as the kernels of this work take it.
template <class T>
int32_t convert(const QuantizeWork&, T zp) {
  return zp;
}
template <class T>
int32_t convert(const DequantizeWork&, T zp) {
  return zp;
}
template <class T>
float convert(const AffineWork& work, T zp) {
  return work.constants.integer_codes ? static_cast<float>(zp) - work.constants.code_offset : static_cast<float>(zp);
}

// The scales and zero points of some rows or columns as kernels take them: adjacent, aligned, converted.
template <class Work>
class ParameterTile {
 public:
  using ZeroPoint = ZeroPointOf<Work>;

  explicit ParameterTile(const Work& work) : work_(work) {
    varying_zps_ = work.zps && work.zps.shape.elements() != 1;
    if (work.zps && !varying_zps_) read_zps(0, 1, &shared_zp_);
  }

  // Reads `count` parameters from number `first` on. They recur after `period` columns, each is repeated `repeat`
  // times, and the scales of a period begin at number `base`.
  void fill(int64_t base, int64_t first, int64_t count, int64_t period, int64_t repeat) {
    if (repeat == 1 && first + count <= period) {
      std::memcpy(scales_, work_.scales + base + first, static_cast<size_t>(count) * sizeof(float));
      if (!varying_zps_)
        std::fill_n(zps_, count, shared_zp_);
      else
        read_zps(base + first, count, zps_);
    } else if (first == 0) {
      // Reads each one once, repeats each one, beginning with the last, which overwrites none that is still needed, and
      // then copies the period.
      const int64_t once = std::min(count, period), own = (once + repeat - 1) / repeat;
      std::copy_n(work_.scales + base, own, scales_);
      if (varying_zps_)
        read_zps(base, own, zps_);
      else
        std::fill_n(zps_, count, shared_zp_);
      for (int64_t i = own; repeat > 1 && i-- > 0;) {
        const int64_t times = std::min(repeat, once - i * repeat);
        std::fill_n(scales_ + i * repeat, times, scales_[i]);
        if (varying_zps_) std::fill_n(zps_ + i * repeat, times, zps_[i]);
      }
      for (int64_t at = once; at < count; at *= 2) {
        std::copy_n(scales_, std::min(at, count - at), scales_ + at);
        if (varying_zps_) std::copy_n(zps_, std::min(at, count - at), zps_ + at);
      }
    } else {
      int64_t index = base + first % period / repeat, phase = first % repeat;
      const int64_t end = base + period / repeat;
      for (int64_t i = 0; i < count; ++i) {
        scales_[i] = load(work_.scales + index);
        zps_[i] = shared_zp_;
        if (varying_zps_) read_zps(index, 1, &zps_[i]);
        if (++phase == repeat) {
          phase = 0;
          if (++index == end) index = base;
        }
      }
    }
    if constexpr (std::is_same_v<ZeroPoint, int32_t>) {
      narrow_ = true;
      if (work_.zps.type == kInt32)
        for (int64_t i = 0; i < count; ++i) narrow_ &= zps_[i] >= -kNarrowZeroPoint && zps_[i] <= kNarrowZeroPoint;
    }
  }

  const float* scales() const { return scales_; }
  const ZeroPoint* zps() const { return zps_; }
  bool narrow() const { return narrow_; }  // all zero points of type int32 are narrow

 private:
  // Reads `count` zero points from number `index` on.
  void read_zps(int64_t index, int64_t count, ZeroPoint* zps) const {
    switch (work_.zps.type) {
      case kUint8:
        return read<uint8_t>(index, count, zps);
      case kInt8:
        return read<int8_t>(index, count, zps);
      case kInt32:
        return read<int32_t>(index, count, zps);
      default:  // float32, only for the affine kernels
        std::memcpy(zps, static_cast<const float*>(work_.zps.data) + index, static_cast<size_t>(count) * sizeof(float));
    }
  }

  template <class T>
  void read(int64_t index, int64_t count, ZeroPoint* zps) const {
    const T* from = static_cast<const T*>(work_.zps.data) + index;
    for (int64_t i = 0; i < count; ++i) zps[i] = convert(work_, load(from + i));
  }

  const Work& work_;
  bool varying_zps_;
  bool narrow_ = true;
  ZeroPoint shared_zp_{};
  alignas(64) float scales_[kMaxParameters];
  alignas(64) ZeroPoint zps_[kMaxParameters];
};

// Runs a kernel on the block that begins at element `first` of the tensor.
void run_block(const QuantizeWork& work, const ParameterTile<QuantizeWork>& tile, Parameters parameters, int64_t first,
               const Extent& extent, bool stream) {
  (tile.narrow() ? work.kernels : work.portable)[parameters](
      {extent, work.src + first, static_cast<uint8_t*>(work.dst) + first, tile.scales(), tile.zps(), stream});
}

void run_block(const DequantizeWork& work, const ParameterTile<DequantizeWork>& tile, Parameters parameters,
               int64_t first, const Extent& extent, bool stream) {
  (tile.narrow() ? work.kernels : work.portable)[parameters](
      {extent, static_cast<const uint8_t*>(work.src) + first, work.dst + first, tile.scales(), tile.zps(), stream});
}

void run_block(const AffineWork& work, const ParameterTile<AffineWork>& tile, Parameters parameters, int64_t first,
               const Extent& extent, bool) {
  const AffineConstants& constants = work.constants;
  work.kernels[parameters]({extent, work.src + first, static_cast<char*>(work.dst) + first * dst_size_of(work),
                            tile.scales(), tile.zps(), constants.low, constants.high, constants.nan_code,
                            constants.integer_codes, constants.code_offset, constants.wraps});
}

// One layout over one stretch of memory, cut into tasks.
template <class Work>
class Tasks {
 public:
  Tasks(const Layout& layout, const Work& work, int64_t src_offset, int64_t scale_offset, bool stream)
      : layout_(layout), work_(work), src_offset_(src_offset), scale_offset_(scale_offset), stream_(stream) {
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
      ParameterTile<Work> tile(work_);
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
      run_block(work_, tile, kPerRow, src + done * layout_.cols, {some, cols, layout_.cols}, stream_);
    }
  }

  void run_columns(ParameterTile<Work>& tile, int64_t src, int64_t scale, int64_t rows, int64_t col,
                   int64_t cols) const {
    for (int64_t done = 0; done < cols; done += kMaxParameters) {
      const int64_t some = std::min(cols - done, kMaxParameters);
      tile.fill(scale, col + done, some, layout_.period, layout_.repeat);
      run_block(work_, tile, kPerColumn, src + col + done, {rows, some, layout_.cols}, stream_);
    }
  }

  const Layout& layout_;
  const Work& work_;
  int64_t src_offset_, scale_offset_;
  bool stream_;
  int64_t cols_, rows_, col_tasks_, row_tasks_, leaf_tasks_, count_;
};

template <class Work>
void run(const Shape& src, const Groups& groups, const Work& work, Context& context) {
  const int64_t elements = src.elements();
  if (elements == 0) return;
  if (elements <= kTaskElements && groups.counts.elements() == 1) {  // making a layout would take as long as the work
    ParameterTile<Work> tile(work);
    tile.fill(0, 0, 1, 1, 1);
    run_block(work, tile, kPerRow, 0, {1, elements, elements}, false);
    return;
  }
  const bool stream = elements * dst_size_of(work) > kStreamBytes;
  if (groups.size == 0) {
    const Layout layout = make_layout(src, groups.counts);
    Tasks<Work>(layout, work, 0, 0, stream).run(context);
    return;
  }

  // The last group along the axis is shorter. For every outer index, it is one tensor, and the groups before it are
  // another.
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
  for (int64_t i = 0; i < outer; ++i) {
    const int64_t start = i * length * inner, scale = i * scales * inner;
    if (scales > 1) Tasks<Work>(others, work, start, scale, stream).run(context);
    Tasks<Work>(last, work, start + whole * inner, scale + (scales - 1) * inner, stream).run(context);
  }
}

}  // namespace

void run_grouped(const Shape& src, const Groups& groups, const QuantizeWork& work, Context& context) {
  run(src, groups, work, context);
}

void run_grouped(const Shape& src, const Groups& groups, const DequantizeWork& work, Context& context) {
  run(src, groups, work, context);
}

void run_grouped(const Shape& src, const Groups& groups, const AffineWork& work, Context& context) {
  run(src, groups, work, context);
}

}  // namespace dynq
