// Which implementation computes a convolution, in which form of its axes, and in which tiles.
#include "core/convolution_plan.h"

#include <algorithm>

#include "core/conv_rows.h"
#include "core/rounding.h"
#include "core/strassen.h"
#include "core/winograd.h"
#include "kernels/dispatch.h"

namespace dynq {
namespace {

constexpr int64_t kImageBytes = 128 << 10;  // of the image of a tile, so that it stays in the second-level cache
constexpr int64_t kTilePositions = 2048;    // their sums stay there, too
constexpr int64_t kRowPositions = 512;      // of the last axis
constexpr int64_t kRowBytes = 1 << 20;      // of the image of one row, unless it has kMinRowPositions or fewer
constexpr int64_t kMinRowPositions = 16;
constexpr int64_t kMinPositions = 192;  // of a tile: adjacent tiles have rows of the input in common
constexpr int64_t kCopy = 6;            // quads that could be multiplied while a vector of outputs is copied

// With the tiles of AMX, quads are gathered for each position if runs of channels are too short for a tile. For 16
// positions and 16 quads that takes 70 cycles by count, and their products with 16 channels 16 on tiles and 128
// with VNNI: fewer channels do not pay for it.
constexpr int64_t kMinGatheredOutputs = 16;
constexpr int64_t kGatheredBytes = 1 << 20;  // of a tile of positions: they stay in the second-level cache

// Runs fill at least half of a tile.
bool has_tile_runs(const ConvImage& form) { return 2 * form.run() >= round_up(form.run(), kTileRows); }

bool can_gather(const Convolution& conv, const ConvImage& form) {
  return form.position_bytes() == kQuad && conv.group_outputs >= kMinGatheredOutputs;
}

bool takes_strassen_form(const Convolution& conv) {
  // The outputs of a tile are adjacent, as those of pointwise kernels are, and kernels may write to them.
  const auto is_pointwise = [](const ConvAxis& axis) { return axis.kernel == 1; };
  const bool can = conv.groups == 1 && conv.terms == 1 && conv.dst_storage.narrow == nullptr &&
                   conv.quad_axis == QuadAxis::kChannels &&
                   std::all_of(std::begin(conv.axes), std::end(conv.axes), is_pointwise);
  return can && takes_strassen_conv(
                    {conv.channels, conv.quads * kQuad, conv.axes[0].out * conv.axes[1].out * conv.axes[2].out});
}

// Whether the direct form takes tiles of AMX for an image of all positions.
bool fits_tiles(const Convolution& conv) {
  if (active_isa().products->conv_tiles == nullptr) return false;
  const ConvTile all = {{0, 0, 0}, {conv.axes[0].out, conv.axes[1].out, conv.axes[2].out}};
  const ConvImage form(conv.axes, conv.quad_axis, conv.group_inputs, conv.group_outputs, all);
  return conv_tile_codes(conv, form) != TileCodes::kNone;
}

bool takes_rows(const Convolution& conv) {
  return conv.dst_storage.narrow == nullptr &&
         takes_conv_rows({conv.axes, conv.samples, conv.has_samples_apart(), conv.groups, conv.group_outputs,
                          conv.quads, fits_tiles(conv)});
}

// Best first; the last one takes every convolution.
constexpr ConvImplementation kImplementations[] = {
    {"Winograd",
     [](const Convolution& conv) {
       return takes_winograd({conv.axes, conv.quad_axis, conv.samples, conv.group_inputs, conv.group_outputs});
     },
     &Convolution::run_winograd, true, true, false, false},
    {"Strassen", takes_strassen_form, &Convolution::run_direct, false, false, true, false},
    {"rows", takes_rows, &Convolution::run_rows, false, false, false, true},
    {"direct", [](const Convolution&) { return true; }, &Convolution::run_direct, true, false, false, false},
};

// The size of equal parts of at most `most`.
int64_t part(int64_t count, int64_t most) {
  return divide_up(count, divide_up(count, std::max(int64_t{1}, std::min(most, count))));
}

}  // namespace

const ConvImplementation& choose_conv(const Convolution& conv) {
  const ConvImplementation* each = kImplementations;
  while (!each->takes(conv)) ++each;
  return *each;
}

void Convolution::plan() {
  move_axes();
  merge_axes();
  implementation_ = &choose_conv(*this);
  if (implementation_->merges_samples) merge_samples();
}

bool Convolution::is_strassen() const { return implementation_->is_strassen; }

ConvImage Convolution::image_of(const ConvTile& tile) const {
  return ConvImage(axes, quad_axis, group_inputs, group_outputs, tile);
}

// Images of one column become images of one row: long rows are cheaper. Quads along the width belong to their axis.
void Convolution::move_axes() {
  const auto is_used = [](const ConvAxis& axis) { return axis.in != 1 || axis.kernel != 1 || axis.out != 1; };
  while (quad_axis == QuadAxis::kChannels && !is_used(axes[2]) && (is_used(axes[1]) || is_used(axes[0]))) {
    axes[2] = axes[1];
    axes[1] = axes[0];
    axes[0] = ConvAxis();
  }
}

// A pointwise convolution does not depend on the shape of rows, and long rows are cheaper.
void Convolution::merge_axes() {
  if (!is_pointwise(axes)) return;
  ConvAxis merged;
  for (const ConvAxis& axis : axes) merged.in = merged.out = merged.in * axis.in;
  axes[0] = axes[1] = ConvAxis();
  axes[2] = merged;
}

// The positions of one small sample would leave lanes of vectors empty: an axis that is not used has the samples. The
// outputs of a call of a kernel have one scale.
void Convolution::merge_samples() {
  const ConvAxis& first = axes[0];
  if (samples == 1 || has_samples_apart() || first.in != 1 || first.kernel != 1 || first.out != 1 || first.stride != 1)
    return;
  ConvAxis merged[kSpatialAxes] = {first, axes[1], axes[2]};
  merged[0].in = merged[0].out = samples;
  const ConvTile one = {{0, 0, 0}, {1, axes[1].out, axes[2].out}}, two = {{0, 0, 0}, {2, axes[1].out, axes[2].out}};
  const int64_t alone = round_up(image_of(one).positions(), kBlockColumns);
  const int64_t together = ConvImage(merged, quad_axis, group_inputs, group_outputs, two).position(1, 0);
  if (!implementation_->is_winograd && together * (quads + kCopy) >= alone * quads) return;
  axes[0] = merged[0];
  samples = 1;
  has_samples_as_axis = true;
}

// Of a tile.
int64_t Convolution::most_positions() const {
  if (implementation_->is_by_rows) return kConvRows;
  if (active_isa().products->conv_tiles == nullptr) return kTilePositions;
  const ConvImage form = image_of({{0, 0, 0}, {1, 1, axes[2].out}});
  const bool gathers = !has_tile_runs(form) && can_gather(*this, form);
  return gathers ? std::min(kTilePositions, kGatheredBytes / (std::max(int64_t{1}, quads) * kQuad)) : kTilePositions;
}

// Tiles have whole rows, unless rows are long, and as many rows as fit kImageBytes and kTilePositions, but fewer if
// there are too few tasks.
void Convolution::choose_tile(int64_t wanted, int64_t (&tile)[kSpatialAxes]) const {
  tile[0] = tile[1] = tile[2] = 1;
  int64_t row = part(axes[2].out, std::min(kRowPositions, most_positions()));
  const ConvTile one_row = {{0, 0, 0}, {1, 1, row}};
  if (const int64_t bytes = image_of(one_row).bytes(); bytes > kRowBytes)
    row = part(axes[2].out, std::max(kMinRowPositions, row * kRowBytes / bytes));
  tile[2] = implementation_->is_strassen ? std::min(axes[2].out, round_up(row, kStrassenColumns)) : row;
  for (int i = 1; i >= 0; --i) {
    if (i == 0 && tile[1] < axes[1].out) break;
    tile[i] = part(axes[i].out, most_of_axis(i, wanted, tile));
  }
}

// The most rows of a tile, or planes (axis 0) of tiles of whole planes.
int64_t Convolution::most_of_axis(int axis, int64_t wanted, const int64_t (&tile)[kSpatialAxes]) const {
  const auto form_of = [&](int64_t count) {
    ConvTile box = {{0, 0, 0}, {tile[0], tile[1], tile[2]}};
    box.count[axis] = count;
    return image_of(box);
  };
  const ConvImage two = form_of(2);
  const int64_t one = form_of(1).bytes(), each = std::max(int64_t{1}, two.bytes() - one);
  const int64_t bytes = (implementation_->is_strassen ? 2 : 1) * kImageBytes / terms;
  int64_t most = 1 + std::max(int64_t{0}, bytes - one) / each;
  most = std::min(most, std::max(int64_t{1}, most_positions() / two.position(axis == 0, axis == 1)));
  if (groups > 1) return most;
  const int64_t others = samples * divide_up(axes[2].out, tile[2]) * (axis == 1 ? axes[0].out : 1);
  return std::min(most, std::max(divide_up(kMinPositions, tile[1] * tile[2]),
                                 divide_up(axes[axis].out, divide_up(wanted, others))));
}

TileCodes conv_tile_codes(const Convolution& conv, const ConvImage& form) {
  if (active_isa().products->conv_tiles == nullptr || (conv.groups > 1 && conv.group_outputs % kBlockColumns != 0) ||
      conv.quads < 2 * kTileRows || form.positions() * conv.quads * kQuad * conv.channels < kMinTileProducts)
    return TileCodes::kNone;
  if (has_tile_runs(form)) return TileCodes::kRuns;
  return can_gather(conv, form) ? TileCodes::kGathered : TileCodes::kNone;
}

}  // namespace dynq
