// A convolution of QuantizedConv: its plan, its tasks, and what all its implementations share.
#pragma once

#include <memory>

#include "core/conv_image.h"
#include "core/convolution_shape.h"
#include "core/formats.h"
#include "core/program.h"
#include "core/scratch.h"
#include "kernels/convolutions.h"

namespace dynq {

// A part of the outputs: of `samples` samples from number `sample` on (one, but for an implementation by rows), a tile
// of positions, and channels [channel, end).
struct ConvPart {
  int64_t sample, samples;
  ConvTile tile;
  int64_t channel, end;
};

struct ConvImplementation;

class Convolution {
 public:
  // `dst` is the result of type float32 or float16. The arguments outlive the convolution.
  Convolution(const ConvAttributes& attributes, const ConvInputs& inputs, const ConvolutionShape& shape, void* dst);

  // Clips the outputs, or runs a program on them.
  void clip(float lowest, float highest);
  void set_tail(const Tail& tail, const ProgramTensors& tensors);

  void run(Context& context);

  bool is_strassen() const;

  // Implementations run a part.
  void run_direct(const ConvPart& part) const;
  void run_winograd(const ConvPart& part) const;
  void run_rows(const ConvPart& part) const;

  // The elements of a channel of the output; then from an element of the first axis to the next; likewise for src.
  int64_t out_positions() const { return (has_samples_as_axis ? 1 : axes[0].out) * axes[1].out * axes[2].out; }
  int64_t out_plane() const { return (has_samples_as_axis ? channels : 1) * axes[1].out * axes[2].out; }
  int64_t in_positions() const { return (has_samples_as_axis ? 1 : axes[0].in) * axes[1].in * axes[2].in; }
  int64_t in_plane() const {
    return (has_samples_as_axis ? terms * groups * group_inputs : 1) * axes[1].in * axes[2].in;
  }

  float scale_of(int64_t sample) const { return load(scales + (has_scales_of_samples ? sample : 0)); }
  // The scale of the codes of a term.
  float scale_of(int64_t sample, int64_t term) const;
  int32_t zp_of(int64_t sample) const { return zps[has_zps_of_samples ? sample : 0] ^ flip; }
  bool has_samples_apart() const { return has_scales_of_samples || has_zps_of_samples; }
  ConvSource source_of(int64_t term, int64_t sample, int64_t group) const;

  // The number of the first element of a tile and channel.
  int64_t first_of(int64_t sample, const ConvTile& tile, int64_t channel) const;
  // What kernels add: with two terms nothing, since the bias belongs to their sum.
  const float* bias_of(int64_t channel) const { return terms > 1 ? no_bias : all.scaling.bias + channel; }
  // first = clip(first + second + bias). NaN and zeros stay as they are.
  void add_row(float* __restrict first, const float* __restrict second, float of_channel, int64_t count) const;
  // Runs the program, if there is one, on the tile of channels [begin, end).
  void run_tail(const ConvTile& tile, int64_t sample, int64_t begin, int64_t end) const;
  // Likewise on `count` adjacent outputs of each channel, from `position` of the tile on.
  void run_tail(const ConvTile& tile, int64_t sample, int64_t begin, int64_t end, int64_t position,
                int64_t count) const;

  ConvAxis axes[kSpatialAxes];
  int64_t terms, samples, channels, groups, group_inputs, group_outputs, quads;
  bool has_samples_as_axis = false;  // the first one
  const uint8_t* src;
  const float* scales;  // of the codes
  const uint8_t* zps;   // likewise, of the type of the codes
  bool has_scales_of_samples, has_zps_of_samples;
  const int8_t* weights;
  void* dst;
  Storage dst_storage;
  uint8_t flip;
  QuadAxis quad_axis;
  ConvBlock all = {};  // the fields that all blocks share
  // With two terms, the bias and the limits belong to their sum.
  float lowest, highest;
  float no_bias[2 * kBlockColumns];

 private:
  void plan();
  void move_axes();
  void merge_axes();
  void merge_samples();
  void choose_tile(int64_t wanted, int64_t (&tile)[kSpatialAxes]) const;
  int64_t most_positions() const;
  int64_t most_of_axis(int axis, int64_t wanted, const int64_t (&tile)[kSpatialAxes]) const;
  ConvImage image_of(const ConvTile& tile) const;
  // Writes which implementation runs, for ORT_DYNQ_VERBOSE.
  void report(const ConvTile& tile) const;

  const char* op_;
  const ConvImplementation* implementation_ = nullptr;
  const Tail* tail_ = nullptr;
  const ProgramTensors* tail_tensors_ = nullptr;
  Scratch<float, 64> bias_;
};

// How a convolution uses the tiles of AMX: not at all, with quads that are adjacent in runs of channels, or with quads
// that are gathered for each position.
enum class TileCodes { kNone, kRuns, kGathered };

// They need whole blocks of channels, and sums long enough and enough products to pay for packing, conversion and
// configuration.
TileCodes conv_tile_codes(const Convolution& conv, const ConvImage& form);

// Null if there is nothing to allocate.
template <typename T>
std::unique_ptr<T[]> allocate_some(int64_t count) {
  return std::unique_ptr<T[]>(count == 0 ? nullptr : new T[static_cast<size_t>(count)]);
}

}  // namespace dynq
