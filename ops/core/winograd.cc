#include "core/winograd.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "core/algorithm_use.h"
#include "core/rounding.h"
#include "kernels/dispatch.h"

namespace dynq {
namespace {

// When Winograd's algorithm takes less time than the direct form, as `tests/bench convolutions` measures both. An
// instruction set that is not here always takes the direct form, and has no kernels of this algorithm: it multiplies
// bytes. An instruction of VNNI adds 4 products of bytes in the lane of a sum, but 2 of the int16 that this algorithm
// has, as one of AVX2 does. So half of the saving is lost there, and of kernels of one row nothing remains. AMX,
// dotprod and I8MM multiply bytes 4 to 16 times as fast as int16: as much as the saving, or more.
struct Rule {
  const char* isa;
  int64_t inputs, outputs;  // the fewest channels of a group
  int64_t positions;        // the fewest of all outputs of a channel
  double transforms;        // they take as long as the products of that many input channels
  double saving;            // the least number of direct products for each product, with those of the transforms
};
constexpr Rule kRules[] = {
    {"avx512", 16, 16, 16, 16, 1.25},  // these two use the products of AVX2
    {"avx2", 16, 16, 16, 16, 1.25},
};

// The transformed codes of a box, in bytes: as many as fit the second-level cache with sums and weights, but of so many
// tiles that the transforms of weights take less time than the products, unless that takes too much memory.
constexpr int64_t kCodesBytes = 288 << 10, kMaxCodesBytes = 1280 << 10;
constexpr int64_t kFewTiles = 16, kMaxSums = 28 * kWinogradElements;
constexpr int64_t kMaxKernel = 64;  // rows and columns: the numbers below cannot overflow

WinogradKernelSize kernel_of(const ConvAxis (&axes)[kSpatialAxes]) { return {axes[1].kernel, axes[2].kernel}; }

// The positions of a tile along an axis.
int64_t tile_size(const ConvAxis& axis) { return axis.kernel == 1 ? 1 : kWinogradOut; }

// The rows or columns of tiles for `count` positions along an axis: each phase of its dilation has its own.
int64_t tiles_of(const ConvAxis& axis, int64_t count) {
  const int64_t most = divide_up(count, axis.dilation), with_most = count - (most - 1) * axis.dilation;
  return with_most * divide_up(most, tile_size(axis)) +
         (std::min(count, axis.dilation) - with_most) * divide_up(most - 1, tile_size(axis));
}

// The rows or columns of the image: of whole tiles of all phases, and of whole pieces of the kernel.
int64_t image_size(const ConvAxis& axis, int64_t count) {
  const int64_t weights = axis.kernel == 1 ? 1 : round_up(axis.kernel, kWinogradTaps);
  return (round_up(divide_up(count, axis.dilation), tile_size(axis)) + weights - 1) * axis.dilation;
}

// The transformed codes of a tile, in bytes.
int64_t tile_bytes(const WinogradKernelSize& kernel, int64_t inputs) {
  return kernel.elements() * kernel.pieces() * round_up(inputs, kWinogradUnit) * static_cast<int64_t>(sizeof(int16_t));
}

}  // namespace

bool takes_winograd(const WinogradShape& shape) {
  const ConvAxis &planes = shape.axes[0], &rows = shape.axes[1], &cols = shape.axes[2];
  if (active_isa().products->winograd == nullptr || shape.quad_axis != QuadAxis::kChannels || planes.kernel != 1 ||
      planes.stride != 1 || rows.stride != 1 || cols.stride != 1 || cols.kernel == 1)
    return false;
  // A box has a tile of each phase of the dilations, or more.
  const WinogradKernelSize kernel = kernel_of(shape.axes);
  if (rows.dilation > rows.out || cols.dilation > cols.out || rows.kernel > kMaxKernel || cols.kernel > kMaxKernel ||
      rows.dilation * cols.dilation > kMaxCodesBytes / tile_bytes(kernel, shape.inputs))
    return false;
  const AlgorithmUse use = winograd_use;
  if (use != AlgorithmUse::kByRule) return use == AlgorithmUse::kAlways;
  const std::string isa = active_isa().name;
  for (const Rule& rule : kRules)
    if (rule.isa == isa) {
      const int64_t positions = rows.out * cols.out, tiles = tiles_of(rows, rows.out) * tiles_of(cols, cols.out);
      const auto inputs = static_cast<double>(shape.inputs);
      const double direct = inputs * static_cast<double>(positions) * static_cast<double>(kernel.rows * kernel.cols);
      const double products = (inputs + rule.transforms) * static_cast<double>(tiles) *
                              static_cast<double>(kernel.elements() * kernel.pieces());
      return shape.inputs >= rule.inputs && shape.outputs >= rule.outputs &&
             shape.samples * planes.out * positions >= rule.positions && direct >= rule.saving * products;
    }
  return false;
}

void choose_winograd_box(const ConvAxis (&axes)[kSpatialAxes], int64_t inputs, int64_t (&box)[kSpatialAxes]) {
  const WinogradKernelSize kernel = kernel_of(axes);
  const int64_t each = tile_bytes(kernel, inputs);
  const int64_t most = std::max({int64_t{1}, std::min(kMaxSums / kernel.elements(), kCodesBytes / each),
                                 std::min(kFewTiles, kMaxCodesBytes / each)});
  // Equal parts of at most `most` tiles, in whole tiles of all phases.
  const auto part = [](const ConvAxis& axis, int64_t tiles) {
    const int64_t unit = tile_size(axis) * axis.dilation, units = divide_up(axis.out, unit);
    const int64_t parts = std::min(units, divide_up(tiles_of(axis, axis.out), std::max(int64_t{1}, tiles)));
    return std::min(axis.out, divide_up(units, parts) * unit);
  };
  box[2] = part(axes[2], most / axes[1].dilation);
  const int64_t cols = tiles_of(axes[2], box[2]);
  box[1] = part(axes[1], most / cols);
  const int64_t planes = std::clamp(most / (cols * tiles_of(axes[1], box[1])), int64_t{1}, axes[0].out);
  box[0] = box[1] < axes[1].out ? 1 : divide_up(axes[0].out, divide_up(axes[0].out, planes));
}

WinogradImage::WinogradImage(const ConvAxis (&axes)[kSpatialAxes], int64_t channels, const ConvTile& box)
    : axes_(axes),
      channels_(channels),
      units_(divide_up(channels, kWinogradUnit)),
      box_(box),
      rows_(image_size(axes[1], box.count[1])),
      cols_(image_size(axes[2], box.count[2])),
      plane_bytes_(rows_ * cols_ * kWinogradUnit),
      unit_bytes_(box.count[0] * plane_bytes_) {
  // Calls visit(first position, number of positions) for each tile of an axis.
  const auto for_tiles = [&](int axis, const auto& visit) {
    const int64_t dilation = axes[axis].dilation, count = box.count[axis];
    for (int64_t phase = 0; phase < std::min(dilation, count); ++phase) {
      const int64_t positions = divide_up(count - phase, dilation);
      for (int64_t at = 0; at < positions; at += tile_size(axes[axis]))
        visit(phase + at * dilation, std::min(tile_size(axes[axis]), positions - at));
    }
  };
  tiles_.reserve(static_cast<size_t>(box.count[0] * tiles_of(axes[1], box.count[1]) * tiles_of(axes[2], box.count[2])));
  for (int64_t plane = 0; plane < box.count[0]; ++plane)
    for_tiles(1, [&](int64_t row, int64_t rows) {
      for_tiles(2, [&](int64_t col, int64_t cols) {
        const int64_t image = plane * plane_bytes_ + (row * cols_ + col) * kWinogradUnit;
        tiles_.push_back({image, plane, row, col, rows, cols});
      });
    });
}

void WinogradImage::describe(WinogradInput& input) const {
  input.kernel = kernel_of(axes_);
  input.units = units_;
  input.unit_bytes = unit_bytes_;
  input.row_bytes = axes_[1].dilation * cols_ * kWinogradUnit;
  input.col_bytes = axes_[2].dilation * kWinogradUnit;
  input.tiles = tiles_.data();
  input.tile_count = static_cast<int64_t>(tiles_.size());
}

void WinogradImage::write(const ConvSource& source, const WinogradKernels& kernels, uint8_t* image) const {
  for (int64_t unit = 0; unit < units_; ++unit)
    for (int64_t plane = 0; plane < box_.count[0]; ++plane)
      write_plane(source, kernels, unit, plane, image + unit * unit_bytes_ + plane * plane_bytes_);
}

void WinogradImage::write_plane(const ConvSource& source, const WinogradKernels& kernels, int64_t unit, int64_t plane,
                                uint8_t* to) const {
  const int64_t used = std::min(kWinogradUnit, channels_ - unit * kWinogradUnit);
  const auto pad = [&](uint8_t* codes, int64_t count) {
    if (used == kWinogradUnit) {
      std::memset(codes, source.zp, static_cast<size_t>(count * kWinogradUnit));
      return;
    }
    for (int64_t i = 0; i < count * kWinogradUnit; ++i) codes[i] = i % kWinogradUnit < used ? source.zp : 0;
  };
  const int64_t from_plane = box_.first[0] + plane - axes_[0].pad;
  if (from_plane < 0 || from_plane >= axes_[0].in) {
    pad(to, rows_ * cols_);
    return;
  }
  const int64_t first_col = box_.first[2] - axes_[2].pad;
  const int64_t begin = std::clamp(-first_col, int64_t{0}, cols_);
  const int64_t end = std::clamp(axes_[2].in - first_col, begin, cols_);
  const std::vector<uint8_t> unused(used < kWinogradUnit ? static_cast<size_t>(end - begin) : 0, source.flip);
  const uint8_t* codes = source.codes + unit * kWinogradUnit * source.channel_step + from_plane * source.plane_step;
  for (int64_t row = 0; row < rows_; ++row, to += cols_ * kWinogradUnit) {
    const int64_t from_row = box_.first[1] - axes_[1].pad + row;
    if (from_row < 0 || from_row >= axes_[1].in || begin == end) {
      pad(to, cols_);
      continue;
    }
    pad(to, begin);
    const uint8_t* rows[kWinogradUnit];
    for (int64_t j = 0; j < kWinogradUnit; ++j)
      rows[j] = j < used ? codes + j * source.channel_step + from_row * axes_[2].in + first_col + begin : unused.data();
    kernels.interleave(rows, end - begin, source.flip, to + begin * kWinogradUnit);
    pad(to + end * kWinogradUnit, cols_ - end);
  }
}

void WinogradImage::sum_codes(const uint8_t* image, int32_t* sums) const {
  std::vector<int32_t> of_positions(static_cast<size_t>(rows_ * cols_));
  for (int64_t plane = 0; plane < box_.count[0]; ++plane) {
    std::fill(of_positions.begin(), of_positions.end(), 0);
    for (int64_t unit = 0; unit < units_; ++unit) {
      const uint8_t* codes = image + unit * unit_bytes_ + plane * plane_bytes_;
      for (int32_t& sum : of_positions)
        for (int64_t i = 0; i < kWinogradUnit; ++i) sum += *codes++;
    }
    for (int64_t row = 0; row < box_.count[1]; ++row)
      for (int64_t col = 0; col < box_.count[2]; ++col) {
        int32_t sum = 0;
        for (int64_t a = 0; a < axes_[1].kernel; ++a)
          for (int64_t b = 0; b < axes_[2].kernel; ++b)
            sum +=
                of_positions[static_cast<size_t>((row + a * axes_[1].dilation) * cols_ + col + b * axes_[2].dilation)];
        *sums++ = sum;
      }
  }
}

}  // namespace dynq
