// Blocks of elementwise operations: reads their parameters, converts elements to formats that kernels take, and runs
// the kernels. For layout.cc.
#pragma once

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "core/formats.h"
#include "core/layout.h"

namespace dynq {

// Elements that are converted at once. As floats they fill half of a first-level cache. Even, for 4-bit codes.
constexpr int64_t kStaged = 4096;
constexpr int64_t kStagedOfRows = 2048;   // likewise, with parameters per row; columns gain from several rows
constexpr int64_t kStagedColumns = 1024;  // columns of a piece with parameters per column
constexpr int64_t kStagedZps = 256;

// The kernels of fake quantization take float zero points, the others int32.
template <class Work>
using ZeroPointOf = std::conditional_t<std::is_same_v<Work, FakeQuantizeWork>, float, int32_t>;

// The scales and zero points of some rows or columns as kernels take them (adjacent, aligned, converted), and the
// kernels for them.
template <class Work>
class ParameterTile {
 public:
  using ZeroPoint = ZeroPointOf<Work>;
  using Kernels = decltype(Work::kernels);

  explicit ParameterTile(const Work& work)
      : work_(work), storage_(storage_of(work.scales.type)), zps_storage_(storage_of(work.zps.type)) {
    varying_zps_ = work.zps && work.zps.shape.elements() != 1;
    if (work.zps && !varying_zps_) read_zps(0, 1, &shared_zp_);
  }

  // Reads `count` parameters from number `first` on. They recur after `period` columns, each is repeated `repeat`
  // times, and the scales of a period begin at number `base`.
  void fill(int64_t base, int64_t first, int64_t count, int64_t period, int64_t repeat) {
    if (repeat == 1 && first + count <= period)
      fill_adjacent(base + first, count);
    else if (first == 0)
      fill_periods(base, count, period, repeat);
    else
      fill_one_by_one(base, first, count, period, repeat);
    choose_kernels(count);
  }

  const float* scales() const { return scales_; }
  const ZeroPoint* zps() const { return zps_; }
  Kernels kernels() const { return kernels_; }  // of float32 and codes of 8 bits
  Kernels direct() const { return direct_; }    // of elements as they are stored, or null

 private:
  void fill_adjacent(int64_t first, int64_t count) {
    read_scales(first, count);
    if (varying_zps_)
      read_zps(first, count, zps_);
    else
      std::fill_n(zps_, count, shared_zp_);
  }

  // Reads each parameter once, repeats each in place from the last to the first, and then copies the period.
  void fill_periods(int64_t base, int64_t count, int64_t period, int64_t repeat) {
    const int64_t once = std::min(count, period), own = (once + repeat - 1) / repeat;
    read_scales(base, own);
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
  }

  void fill_one_by_one(int64_t base, int64_t first, int64_t count, int64_t period, int64_t repeat) {
    int64_t index = base + first % period / repeat, phase = first % repeat;
    const int64_t end = base + period / repeat;
    for (int64_t i = 0; i < count; ++i) {
      read_scales(index, 1, &scales_[i]);
      zps_[i] = shared_zp_;
      if (varying_zps_) read_zps(index, 1, &zps_[i]);
      for (; ++phase < repeat && i + 1 < count; ++i) {
        scales_[i + 1] = scales_[i];
        zps_[i + 1] = zps_[i];
      }
      phase = 0;
      if (++index == end) index = base;
    }
  }

  void choose_kernels(int64_t count) {
    kernels_ = work_.kernels;
    if constexpr (!std::is_same_v<Work, FakeQuantizeWork>) {
      int32_t wide = 0, unsafe = 0;  // compilers vectorize loops of int32
      if (work_.zps.type == kInt32)
        // NOLINTNEXTLINE(clang-analyzer-core.UndefinedBinaryOperatorResult): read_zps() has written them
        for (int64_t i = 0; i < count; ++i) wide |= !(zps_[i] >= -kNarrowZeroPoint && zps_[i] <= kNarrowZeroPoint);
      if (wide) kernels_ = work_.portable;
      const bool has_direct = work_.direct != nullptr && work_.direct[kPerRow] != nullptr;
      const bool quantizes = std::is_same_v<Work, QuantizeWork>;
      const float lowest = quantizes ? kSmallestSafeScale : std::numeric_limits<float>::lowest();
      const float highest = quantizes ? kLargestSafeScale : std::numeric_limits<float>::max();
      for (int64_t i = 0; has_direct && i < count; ++i) unsafe |= !(scales_[i] >= lowest && scales_[i] <= highest);
      direct_ = has_direct && !wide && !unsafe ? work_.direct : nullptr;
    }
  }

  // Reads `count` scales from number `index` on.
  void read_scales(int64_t index, int64_t count) { read_scales(index, count, scales_); }
  void read_scales(int64_t index, int64_t count, float* scales) const {
    const void* from = element(work_.scales.data, storage_, index);
    if (storage_.widen != nullptr)
      storage_.widen(from, scales, count);
    else
      std::memcpy(scales, from, static_cast<size_t>(count) * sizeof(float));
  }

  // Reads `count` zero points from number `index` on. Not inlined: its loops would take half of the code of layout.cc.
  ORT_DYNQ_ONE_COPY void read_zps(int64_t index, int64_t count, ZeroPoint* zps) const {
    switch (work_.zps.type) {
      case kUint8:
        return read<uint8_t>(index, count, zps);
      case kInt8:
        return read<int8_t>(index, count, zps);
      case kInt32:
        return read<int32_t>(index, count, zps);
      case kUint4:
        return read_4bits<uint8_t>(index, count, zps);
      case kInt4:
        return read_4bits<int8_t>(index, count, zps);
      default:
        return;  // operators take no other type
    }
  }

  template <class T>
  void read(int64_t index, int64_t count, ZeroPoint* zps) const {
    convert(static_cast<const T*>(work_.zps.data) + index, count, zps);
  }

  template <class T>
  void read_4bits(int64_t index, int64_t count, ZeroPoint* zps) const {
    T codes[kStagedZps + 1];
    for (int64_t i = 0; i < count; i += kStagedZps) {
      const int64_t some = std::min(kStagedZps, count - i), before = (index + i) % 2;  // in the same byte
      zps_storage_.widen(element(work_.zps.data, zps_storage_, index + i), codes, before + some);
      convert(codes + before, some, zps + i);
    }
  }

  template <class T>
  void convert(const T* from, int64_t count, ZeroPoint* zps) const {
    for (int64_t i = 0; i < count; ++i) zps[i] = static_cast<ZeroPoint>(load(from + i));
  }

  const Work& work_;
  const Storage storage_, zps_storage_;  // of scales and of zero points
  bool varying_zps_;
  Kernels kernels_ = nullptr, direct_ = nullptr;
  ZeroPoint shared_zp_{};
  alignas(64) float scales_[kMaxParameters];
  alignas(64) ZeroPoint zps_[kMaxParameters];
};

// Runs a kernel on a block with the tile's parameters from number `first` on. `reciprocals` of scales are for
// quantization.
template <class Kernel, class Work>
void run_kernel(Kernel kernel, const Work& work, const ParameterTile<Work>& tile, int64_t first, const Extent& extent,
                const void* src, void* dst, bool stream, [[maybe_unused]] const float* reciprocals = nullptr) {
  const float* scales = tile.scales() + first;
  const auto* zps = tile.zps() + first;
  if constexpr (std::is_same_v<Work, QuantizeWork>) {
    kernel({extent, src, dst, scales, zps, stream, reciprocals});
  } else if constexpr (std::is_same_v<Work, DequantizeWork>) {
    kernel({extent, src, dst, scales, zps, stream});
  } else {
    kernel({extent, static_cast<const float*>(src), static_cast<float*>(dst), scales, zps, work.low, work.high});
  }
}

// The blocks of a work. If kernels do not take the elements of src or dst as they are stored, a block is cut into
// pieces, which are converted on the stack.
template <class Work>
class Blocks {
 public:
  explicit Blocks(const Work& work) : work_(work), src_(storage_of(work.src.type)), dst_(storage_of(work.dst_type)) {}

  // Runs the kernel on the block that begins at element `first` of the tensor.
  void run(const ParameterTile<Work>& tile, Parameters parameters, int64_t first, const Extent& extent,
           bool stream) const {
    const bool is_wide = src_.widen == nullptr && dst_.narrow == nullptr;
    const auto kernels = is_wide ? tile.kernels() : takes_as_stored(first, extent) ? tile.direct() : nullptr;
    if (kernels != nullptr)
      return run_kernel(kernels[parameters], work_, tile, 0, extent, element(work_.src.data, src_, first),
                        element(work_.dst, dst_, first), stream);
    const bool per_column = parameters == kPerColumn;
    const int64_t cols = std::min(extent.cols, per_column ? kStagedColumns : kStagedOfRows);
    const int64_t rows = std::min(extent.rows, (per_column ? kStaged : kStagedOfRows) / cols);
    alignas(64) float reciprocals[kStagedColumns];
    // Several pieces of the same columns: the kernel would compute them for each.
    const bool has_reciprocals = std::is_same_v<Work, QuantizeWork> && per_column && rows < extent.rows;
    for (int64_t col = 0; col < extent.cols; col += cols) {
      const int64_t some_cols = std::min(cols, extent.cols - col);
      for (int64_t i = 0; has_reciprocals && i < some_cols; ++i) reciprocals[i] = 1.0f / tile.scales()[col + i];
      for (int64_t row = 0; row < extent.rows; row += rows)
        run_piece(tile, per_column ? col : row, parameters, first + row * extent.stride + col,
                  {std::min(rows, extent.rows - row), some_cols, some_cols}, extent.stride, stream,
                  has_reciprocals ? reciprocals : nullptr);
    }
  }

  const Work& work() const { return work_; }
  int64_t dst_bits() const { return dst_.bits; }

 private:
  // Whether kernels of elements as they are stored take this block: rows of 4-bit codes have to begin at a byte.
  bool takes_as_stored(int64_t first, const Extent& extent) const {
    if (src_.bits >= 8 && dst_.bits >= 8) return true;
    const bool is_even = first % 2 == 0 && extent.cols % 2 == 0 && (extent.rows == 1 || extent.stride % 2 == 0);
    return is_even && extent.cols >= kMinColumnsOf4Bits;
  }

  // The rows of the piece are `stride` elements apart in the tensors.
  void run_piece(const ParameterTile<Work>& tile, int64_t parameter, Parameters parameters, int64_t first,
                 const Extent& piece, int64_t stride, bool stream, const float* reciprocals) const {
    alignas(64) char src_buffer[64 + kStaged * sizeof(float)], dst_buffer[kStaged * sizeof(float)];
    const bool adjacent = piece.rows == 1 || piece.cols == stride;
    const int64_t runs = adjacent ? 1 : piece.rows, run = adjacent ? piece.rows * piece.cols : piece.cols;
    const void* src = element(work_.src.data, src_, first);
    if (src_.widen != nullptr || !adjacent) {
      char* const wide = src_buffer + 64;
      src = wide;
      // A run that begins in the second half of a byte is converted with the element before it. Runs are converted from
      // last to first, so that the previous run overwrites this element.
      for (int64_t i = runs; i-- > 0;) {
        const int64_t from = first + i * stride, before = from * src_.bits % 8 != 0;
        convert(src_.widen, element(work_.src.data, src_, from), wide + (i * run - before) * src_.wide_bytes,
                run + before, src_);
      }
    }
    const bool is_staged = dst_.narrow != nullptr || !adjacent;
    run_kernel(tile.kernels()[parameters], work_, tile, parameter, piece, src,
               is_staged ? dst_buffer : element(work_.dst, dst_, first), stream && !is_staged, reciprocals);
    for (int64_t i = 0; is_staged && i < runs; ++i)
      convert(dst_.narrow, dst_buffer + i * run * dst_.wide_bytes, element(work_.dst, dst_, first + i * stride), run,
              dst_);
  }

  static void convert(ConvertKernel kernel, const void* src, void* dst, int64_t count, const Storage& storage) {
    if (kernel != nullptr)
      kernel(src, dst, count);
    else
      std::memcpy(dst, src, static_cast<size_t>(count * storage.wide_bytes));
  }

  const Work& work_;
  const Storage src_, dst_;
};

}  // namespace dynq
