// The direct form of a convolution: for each group of channels, a part writes the image of its tile and multiplies it
// by the weights of 16 output channels at once, or of more on the tiles of AMX or by Strassen's algorithm.
#include <algorithm>
#include <cstring>
#include <type_traits>
#include <vector>

#include "core/convolution.h"
#include "core/rounding.h"
#include "core/strassen.h"
#include "core/tiles.h"
#include "kernels/dispatch.h"

namespace dynq {
namespace {

constexpr int64_t kCopy = 6;  // quads that could be multiplied while a vector of outputs is copied

// Where kernels write. To the output if positions are adjacent there, or row by row if that takes fewer vectors.
// Otherwise, and if the output is float16, they write to a buffer, as the second of two terms always does.
struct Outputs {
  bool is_whole, by_rows;
  bool is_direct;  // to the output
  bool is_dense;   // in a buffer that is rounded
};

// Whether covering each row with vectors takes fewer of them than covering all positions and copying their outputs.
bool writes_rows(const Convolution& conv, const ConvImage& form, int64_t rows, int64_t cols) {
  return form.position_bytes() < kQuad && conv.group_outputs <= kFewOutputs &&
         rows * divide_up(cols, kBlockColumns) * conv.quads <
             divide_up(form.positions(), kBlockColumns) * (conv.quads + kCopy);
}

Outputs outputs_of(const Convolution& conv, const ConvImage& form, const ConvTile& tile) {
  const auto [n0, n1, n2] = tile.count;
  const bool has_planes = n1 == conv.axes[1].out && !conv.has_samples_as_axis, is_wide = n2 == conv.axes[2].out;
  Outputs to = {};
  to.is_whole = n0 * n1 * n2 == form.positions() && (n0 * n1 == 1 || (is_wide && (n0 == 1 || has_planes)));
  to.by_rows = !to.is_whole && n0 == 1 && writes_rows(conv, form, n1, n2);
  to.is_direct = conv.dst_storage.narrow == nullptr && (to.is_whole || to.by_rows);
  to.is_dense = to.is_whole || (to.by_rows && is_wide);
  return to;
}

// Runs a kernel on each block of 16 channels.
void run_blocks(ConvKernel kernel, const ConvBlock& all_channels) {
  for (int64_t channel = 0; channel < all_channels.channels; channel += kBlockColumns) {
    ConvBlock block = all_channels;
    block.channels = std::min(kBlockColumns, all_channels.channels - channel);
    block.weights.packed += channel / kBlockColumns * block.weights.stride;
    if (block.weights.zps != nullptr) block.weights.zps += channel;
    block.scaling.channel_scales += channel;
    block.scaling.channel_sums += channel;
    block.scaling.bias += channel;
    block.output.dst += channel * block.output.channel_stride;
    kernel(block);
  }
}

// One part of the outputs.
class DirectPart {
 public:
  DirectPart(const Convolution& conv, const ConvPart& part);
  void run();

 private:
  void describe_block();
  void allocate();
  uint8_t* image_of(int64_t term) const { return images_.get() + term * image_bytes_; }
  void use_term(int64_t term);
  void write_group(int64_t group, bool is_first);
  void use_channels(int64_t channel, int64_t next);
  void multiply(int64_t channel);
  void run_strassen(int64_t channel) const;
  void add_terms(const ConvOutput& first, const ConvOutput& second, const float* of_channels) const;
  void write_buffer(int64_t to) const;
  void write_rows(int64_t to) const;

  const Convolution& conv_;
  const ConvPart& part_;
  const ProductKernels& products_;
  ConvImage form_;
  Outputs outputs_;
  int64_t positions_, image_bytes_, tiles_bytes_, code_sums_size_;
  int64_t most_channels_;  // at once
  bool in_tiles_, takes_strips_, has_weight_zps_;
  ConvBlock block_;
  std::vector<int64_t> offsets_;
  std::vector<int8_t> ones_;
  std::unique_ptr<uint8_t[]> images_, tiles_, wide_weights_;
  std::unique_ptr<float[]> sums_, second_;
  std::unique_ptr<uint16_t[]> rounded_;
  std::unique_ptr<int32_t[]> code_sums_;
  uint8_t* aligned_tiles_;
};

DirectPart::DirectPart(const Convolution& conv, const ConvPart& part)
    : conv_(conv),
      part_(part),
      products_(*active_isa().products),
      form_(conv.axes, conv.quad_axis, conv.group_inputs, conv.group_outputs, part.tile),
      block_(conv.all) {
  form_.prepare(conv.in_plane());
  offsets_ = form_.offsets();
  positions_ = form_.positions();
  outputs_ = outputs_of(conv, form_, part.tile);
  const TileCodes tile_codes = conv_tile_codes(conv, form_);
  in_tiles_ = tile_codes != TileCodes::kNone;
  block_.input.gathers = tile_codes == TileCodes::kGathered;
  takes_strips_ = conv.is_strassen() && outputs_.is_whole && positions_ >= kStrassenColumns;
  most_channels_ =
      takes_strips_ ? choose_strassen_channels(part.end - part.channel) : (in_tiles_ ? 2 : 1) * kBlockColumns;
  has_weight_zps_ = has_zero_points(conv.all.weights);
  if (has_weight_zps_) ones_ = form_.ones();
  describe_block();
  allocate();
}

void DirectPart::describe_block() {
  const auto& count = part_.tile.count;
  block_.scaling.zp = conv_.zp_of(part_.sample);
  block_.rows = outputs_.by_rows ? count[1] : 1;
  block_.cols = outputs_.by_rows ? count[2] : positions_;
  block_.input.row_stride = form_.row_positions();
  block_.input.position_bytes = form_.position_bytes();
  block_.input.kernel_rows = form_.kernel_rows();
  block_.input.offsets = offsets_.data();
  block_.input.run = block_.input.gathers ? conv_.quads : form_.run();
  block_.input.run_bytes = block_.input.gathers ? positions_ * kQuad : form_.run_bytes();
  block_.weights.ones = ones_.data();
  block_.weights.stride = conv_.quads * kQuad * kBlockColumns;
}

void DirectPart::allocate() {
  const int64_t terms = conv_.terms, buffer_size = std::min(conv_.group_outputs, most_channels_) * positions_;
  const bool rounds = conv_.dst_storage.narrow != nullptr;
  image_bytes_ = form_.bytes() + kConvSlack * kQuad;
  images_ = allocate_some<uint8_t>(terms * image_bytes_);
  sums_ = allocate_some<float>(outputs_.is_direct ? 0 : buffer_size);
  second_ = allocate_some<float>(terms > 1 ? buffer_size : 0);
  rounded_ = allocate_some<uint16_t>(rounds && !outputs_.is_dense ? buffer_size : 0);
  code_sums_size_ = has_weight_zps_ ? positions_ + kConvSlack : 0;
  code_sums_ = allocate_some<int32_t>(terms * code_sums_size_);
  tiles_bytes_ = in_tiles_ ? conv_tiles_bytes(block_.input.run, block_.input.run_bytes) : 0;
  tiles_ = allocate_some<uint8_t>(in_tiles_ ? terms * tiles_bytes_ + kTileBytes : 0);
  wide_weights_ = allocate_some<uint8_t>(products_.conv_quad_bytes * conv_.quads);
  aligned_tiles_ = tiles_.get() + (kTileBytes - reinterpret_cast<uintptr_t>(tiles_.get()) % kTileBytes) % kTileBytes;
  block_.scratch.weights = wide_weights_.get();
  for (int64_t term = 0; term < terms; ++term)
    std::memset(image_of(term) + form_.bytes(), 0, static_cast<size_t>(kConvSlack * kQuad));
}

void DirectPart::use_term(int64_t term) {
  block_.input.image = image_of(term);
  block_.scaling.scale = conv_.scale_of(part_.sample, term);
  block_.scratch.code_sums = code_sums_.get() + term * code_sums_size_;
  block_.scratch.tiles = aligned_tiles_ + term * tiles_bytes_;
}

void DirectPart::write_group(int64_t group, bool is_first) {
  for (int64_t term = 0; term < conv_.terms; ++term) {
    use_term(term);
    form_.write(conv_.source_of(term, part_.sample, group), is_first, image_of(term));
    if (has_weight_zps_) products_.sum_conv_codes(block_);
    if (in_tiles_) products_.pack_conv_tiles(block_);
  }
}

void DirectPart::use_channels(int64_t channel, int64_t next) {
  const ConvBlock& all = conv_.all;
  block_.channels = next - channel;
  block_.weights.packed =
      conv_.weights + channel / kBlockColumns * block_.weights.stride + channel % kBlockColumns * kQuad;
  if (all.weights.zps != nullptr) block_.weights.zps = all.weights.zps + channel;
  block_.scaling.channel_scales = all.scaling.channel_scales + channel;
  block_.scaling.channel_sums = all.scaling.channel_sums + channel;
  block_.scaling.bias = conv_.bias_of(channel);
}

void DirectPart::run() {
  const TileUse tiles(in_tiles_);
  const int64_t outputs = conv_.group_outputs;
  int64_t group = -1;
  for (int64_t channel = part_.channel, next; channel < part_.end; channel = next) {
    if (group != channel / outputs) {
      const bool is_first = group < 0;
      group = channel / outputs;
      write_group(group, is_first);
    }
    next = std::min({part_.end, (group + 1) * outputs, channel - channel % kBlockColumns + most_channels_});
    use_channels(channel, next);
    multiply(channel);
  }
}

void DirectPart::multiply(int64_t channel) {
  const int64_t to = conv_.first_of(part_.sample, part_.tile, channel), cols = part_.tile.count[2];
  const ConvOutput of_terms[] = {
      outputs_.is_direct ? ConvOutput{static_cast<float*>(conv_.dst) + to, conv_.axes[2].out, conv_.out_positions()}
                         : ConvOutput{sums_.get(), cols, positions_},
      {second_.get(), cols, positions_},
  };
  if (takes_strips_) {
    block_.output = of_terms[0];
    return run_strassen(channel);
  }
  const ConvKernel kernel = in_tiles_ ? products_.conv_tiles : products_.conv;
  for (int64_t term = 0; term < conv_.terms; ++term) {
    use_term(term);
    block_.output = of_terms[term];
    kernel(block_);
  }
  if (conv_.terms > 1) add_terms(of_terms[0], of_terms[1], conv_.all.scaling.bias + channel);
  if (!outputs_.is_direct) write_buffer(to);
  conv_.run_tail(part_.tile, part_.sample, channel, channel + block_.channels);
}

// Runs a block of up to kStrassenRows channels by Strassen's algorithm, and the program on its outputs. Positions that
// do not fill a strip take the direct form.
void DirectPart::run_strassen(int64_t channel) const {
  const int64_t depth = conv_.quads * kQuad;
  const AlignedArray<int16_t> operands(strassen_codes_size(block_.channels, depth));
  for (int64_t row = 0; row < strassen_half_rows(block_.channels); ++row)
    products_.strassen->form_channel(block_.weights.packed, block_.weights.stride, block_.channels, depth, row,
                                     operands.get());
  for (int64_t position = 0; position < block_.cols; position += kStrassenColumns) {
    ConvBlock block = block_;
    block.cols = std::min(kStrassenColumns, block_.cols - position);
    block.input.image += position * kQuad;
    block.output.dst += position;
    if (block.scratch.code_sums != nullptr) block.scratch.code_sums += position;
    if (block.cols == kStrassenColumns)
      products_.strassen->conv(block, operands.get());
    else
      run_blocks(products_.conv, block);
    conv_.run_tail(part_.tile, part_.sample, channel, channel + block.channels, position, block.cols);
  }
}

void DirectPart::add_terms(const ConvOutput& first, const ConvOutput& second, const float* of_channels) const {
  for (int64_t c = 0; c < block_.channels; ++c)
    for (int64_t row = 0; row < block_.rows; ++row)
      conv_.add_row(first.dst + c * first.channel_stride + row * first.row_stride,
                    second.dst + c * second.channel_stride + row * second.row_stride, load(of_channels + c),
                    block_.cols);
}

// `to` is the number of the first element.
void DirectPart::write_buffer(int64_t to) const {
  if (!outputs_.is_dense) return write_rows(to);
  const int64_t n0 = part_.tile.count[0], n1 = part_.tile.count[1], n2 = part_.tile.count[2];
  for (int64_t c = 0; c < block_.channels; ++c)
    conv_.dst_storage.narrow(sums_.get() + c * positions_,
                             element(conv_.dst, conv_.dst_storage, to + c * conv_.out_positions()), n0 * n1 * n2);
}

// sums_ has all positions of the image or, if by_rows, the positions of the tile.
void DirectPart::write_rows(int64_t to) const {
  const int64_t n0 = part_.tile.count[0], n1 = part_.tile.count[1], n2 = part_.tile.count[2];
  const void* from = sums_.get();
  if (rounded_ != nullptr) {
    for (int64_t c = 0; c < block_.channels; ++c)
      conv_.dst_storage.narrow(sums_.get() + c * positions_, rounded_.get() + c * positions_,
                               outputs_.by_rows ? n1 * n2 : positions_);
    from = rounded_.get();
  }
  const int64_t row_step = outputs_.by_rows ? n2 : form_.position(0, 1), bytes = conv_.dst_storage.bits / 8;
  const auto copy = [&](auto size) {
    for (int64_t i0 = 0; i0 < n0; ++i0)
      for (int64_t c = 0; c < block_.channels; ++c) {
        const auto* row = static_cast<const char*>(from) + (c * positions_ + form_.position(i0, 0)) * bytes;
        auto* dst_row =
            static_cast<char*>(conv_.dst) + (to + i0 * conv_.out_plane() + c * conv_.out_positions()) * bytes;
        for (int64_t i1 = 0; i1 < n1; ++i1, row += row_step * bytes, dst_row += conv_.axes[2].out * bytes)
          std::memcpy(dst_row, row, size);
      }
  };
  switch (n2 * bytes) {  // a call of memcpy would take longer than copying a few elements
    case 4:
      return copy(std::integral_constant<size_t, 4>());
    case 8:
      return copy(std::integral_constant<size_t, 8>());
    case 16:
      return copy(std::integral_constant<size_t, 16>());
    default:
      return copy(static_cast<size_t>(n2 * bytes));
  }
}

}  // namespace

void Convolution::run_direct(const ConvPart& part) const { DirectPart(*this, part).run(); }

}  // namespace dynq
