// The tasks of a convolution, and what its implementations share.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <utility>

#include "core/conv_rows.h"
#include "core/convolution_plan.h"
#include "core/parallel.h"
#include "core/rounding.h"
#include "core/sums.h"
#include "core/verbose.h"
#include "core/winograd.h"
#include "kernels/dispatch.h"

namespace dynq {
namespace {

constexpr int64_t kOutput = 256;       // products that take as long as one output; a depthwise output takes little more
constexpr int64_t kMinChannels = 128;  // of a task, if other tasks write the same image

}  // namespace

Convolution::Convolution(const ConvAttributes& attributes, const ConvInputs& inputs, const ConvolutionShape& shape,
                         void* to)
    : axes{shape.axes[0], shape.axes[1], shape.axes[2]},
      terms(shape.terms),
      samples(shape.samples),
      channels(shape.channels),
      groups(shape.groups),
      group_inputs(shape.group_inputs),
      group_outputs(shape.group_outputs),
      quads(shape.quads),
      src(static_cast<const uint8_t*>(inputs.src.data)),
      scales(static_cast<const float*>(inputs.scale.data)),
      zps(static_cast<const uint8_t*>(inputs.zero_point.data)),
      has_scales_of_samples(inputs.scale.shape.elements() != 1),
      has_zps_of_samples(inputs.zero_point.shape.elements() != 1),
      weights(static_cast<const int8_t*>(inputs.weight.data)),
      dst(to),
      dst_storage(storage_of(inputs.bias.type)),
      flip(inputs.src.type == kInt8 ? 0x80 : 0),
      quad_axis(attributes.quad_axis),
      op_(attributes.op) {
  const auto* weight_zps = static_cast<const int8_t*>(inputs.weight_zp.data);
  const bool is_one_zp = inputs.weight_zp.shape.elements() == 1;
  all.input.quads = quads;
  all.weights.zps = is_one_zp ? nullptr : weight_zps;
  all.weights.zp = is_one_zp ? *weight_zps : 0;
  all.scaling.channel_scales = static_cast<const float*>(inputs.channel_scale.data);
  all.scaling.channel_sums = static_cast<const int32_t*>(inputs.channel_sum.data);
  all.scaling.bias = FloatReader(inputs.bias).read(0, channels, bias_);
  all.scaling.order = attributes.order;
  clip(-INFINITY, INFINITY);
  if (terms > 1) std::fill(std::begin(no_bias), std::end(no_bias), -0.0f);
}

void Convolution::clip(float low, float high) {
  lowest = low;
  highest = high;
  all.scaling.lowest = terms > 1 ? -INFINITY : low;
  all.scaling.highest = terms > 1 ? INFINITY : high;
}

void Convolution::set_tail(const Tail& tail, const ProgramTensors& tensors) {
  tail_ = &tail;
  tail_tensors_ = &tensors;
}

void Convolution::run(Context& context) {
  plan();
  const int64_t products =
      terms * samples * axes[0].out * channels * axes[1].out * axes[2].out * (quads * kQuad + kOutput);
  const int64_t wanted = wanted_tasks(products);
  int64_t tile[kSpatialAxes], tiles[kSpatialAxes];
  if (implementation_->is_winograd)
    choose_winograd_box(axes, group_inputs, tile);
  else
    choose_tile(wanted, tile);
  for (int i = 0; i < kSpatialAxes; ++i) tiles[i] = divide_up(axes[i].out, tile[i]);
  const int64_t all_tiles = tiles[0] * tiles[1] * tiles[2];
  // Whole samples are rows of one product, unless there are too few tasks.
  const int64_t most = kConvRows / (tile[0] * tile[1] * tile[2]);
  const int64_t together = implementation_->is_by_rows && all_tiles == 1
                               ? std::clamp(most, int64_t{1}, divide_up(samples, wanted))
                               : int64_t{1};
  const int64_t units = divide_up(samples, together);
  const int64_t channel_unit = groups == 1 ? std::max(kMinChannels, kBlockColumns) : kBlockColumns;
  const int64_t parts =
      std::clamp(divide_up(wanted, units * all_tiles), int64_t{1}, std::max(int64_t{1}, channels / channel_unit));
  const int64_t blocks = divide_up(channels, kBlockColumns);
  if (is_verbose()) report({{0, 0, 0}, {tile[0], tile[1], tile[2]}});
  run_tasks(context, units * all_tiles * parts, [&](int64_t index) {
    const int64_t some = index % parts, unit = index / parts / all_tiles;
    ConvPart part = {};
    int64_t place = index / parts % all_tiles;
    for (int i = kSpatialAxes - 1; i >= 0; --i) {
      part.tile.first[i] = place % tiles[i] * tile[i];
      part.tile.count[i] = std::min(tile[i], axes[i].out - part.tile.first[i]);
      place /= tiles[i];
    }
    part.channel = blocks * some / parts * kBlockColumns;
    part.end = std::min(channels, blocks * (some + 1) / parts * kBlockColumns);
    part.sample = samples * unit / units;
    part.samples = samples * (unit + 1) / units - part.sample;
    (this->*implementation_->run)(part);
  });
}

void Convolution::report(const ConvTile& tile) const {
  const TileCodes tile_codes =
      implementation_->run == &Convolution::run_direct ? conv_tile_codes(*this, image_of(tile)) : TileCodes::kNone;
  const auto lengths = [&](int64_t ConvAxis::* length) {
    return std::to_string(axes[0].*length) + "x" + std::to_string(axes[1].*length) + "x" +
           std::to_string(axes[2].*length);
  };
  std::fprintf(stderr, "ort_dynq: %s %s to %s channels, kernel %s, outputs %s%s%s: %s, %s%s\n", op_,
               std::to_string(groups * group_inputs).c_str(), std::to_string(channels).c_str(),
               lengths(&ConvAxis::kernel).c_str(), lengths(&ConvAxis::out).c_str(),
               groups > 1 ? (" in " + std::to_string(groups) + " groups").c_str() : "", terms > 1 ? ", 2 terms" : "",
               active_isa().name, implementation_->name,
               tile_codes == TileCodes::kRuns       ? ", tiles"
               : tile_codes == TileCodes::kGathered ? ", gathered tiles"
                                                    : "");
}

float Convolution::scale_of(int64_t sample, int64_t term) const {
  const float scale = scale_of(sample);
  return term < terms - 1 ? scale * kTermRatio : scale;
}

ConvSource Convolution::source_of(int64_t term, int64_t sample, int64_t group) const {
  const int64_t image = sample * terms + term;
  const uint8_t* codes = src + (image * groups + group) * group_inputs * in_positions();
  return {codes, in_positions(), in_plane(), flip, static_cast<uint8_t>(zp_of(sample))};
}

int64_t Convolution::first_of(int64_t sample, const ConvTile& tile, int64_t channel) const {
  return (sample * channels + channel) * out_positions() + tile.first[0] * out_plane() + tile.first[1] * axes[2].out +
         tile.first[2];
}

void Convolution::add_row(float* __restrict first, const float* __restrict second, float of_channel,
                          int64_t count) const {
  for (int64_t i = 0; i < count; ++i) {
    float sum = load(first + i) + second[i] + of_channel;
    sum = sum < lowest ? lowest : sum;
    store(first + i, sum > highest ? highest : sum);
  }
}

void Convolution::run_tail(const ConvTile& tile, int64_t sample, int64_t begin, int64_t end, int64_t position,
                           int64_t count) const {
  if (tail_ == nullptr) return;
  const int64_t plane = tile.first[0];
  const int64_t first = (has_samples_as_axis ? plane : sample) * channels;
  const int64_t at = has_samples_as_axis ? 0 : plane * axes[1].out * axes[2].out;
  tail_->run(*tail_tensors_, static_cast<float*>(dst), first + begin, first + end,
             at + tile.first[1] * axes[2].out + tile.first[2] + position, count);
}

void Convolution::run_tail(const ConvTile& tile, int64_t sample, int64_t begin, int64_t end) const {
  if (tail_ == nullptr) return;
  const auto [n0, n1, n2] = tile.count;
  const bool has_rows = n2 == axes[2].out, has_planes = has_rows && n1 == axes[1].out && !has_samples_as_axis;
  const int64_t adjacent = has_planes ? n0 * n1 * n2 : has_rows ? n1 * n2 : n2;
  for (int64_t i0 = 0; i0 < (has_planes ? 1 : n0); ++i0) {
    const int64_t plane = tile.first[0] + i0;
    const int64_t first = (has_samples_as_axis ? plane : sample) * channels;  // rows count through all samples
    const int64_t at = has_samples_as_axis ? 0 : plane * axes[1].out * axes[2].out;
    for (int64_t i1 = 0; i1 < (has_rows ? 1 : n1); ++i1)
      tail_->run(*tail_tensors_, static_cast<float*>(dst), first + begin, first + end,
                 at + (tile.first[1] + i1) * axes[2].out + tile.first[2], adjacent);
  }
}

}  // namespace dynq
