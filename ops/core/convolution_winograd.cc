// Convolutions by Winograd's algorithm: as the direct form, with a fourth or a half of the products.
#include <algorithm>
#include <cstring>

#include "core/convolution.h"
#include "core/rounding.h"
#include "core/winograd.h"
#include "kernels/dispatch.h"

namespace dynq {
namespace {

// One part of the outputs.
class WinogradPart {
 public:
  WinogradPart(const Convolution& conv, const ConvPart& part);
  void run();

 private:
  void describe_block();
  void use_term(int64_t term);
  void write_group(int64_t group);
  void use_channels(int64_t channel, int64_t next);
  void multiply(int64_t channel);
  void write_box(int64_t channel) const;

  const Convolution& conv_;
  const ConvPart& part_;
  const WinogradKernels& kernels_;
  WinogradImage form_;
  WinogradBlock block_ = {};
  int64_t positions_, codes_size_, sums_size_;
  bool has_weight_zps_;
  bool is_direct_;  // kernels write to the output
  AlignedArray<uint8_t> image_;
  AlignedArray<int16_t> codes_, weights_;
  AlignedArray<int32_t> sums_, parts_;
  std::unique_ptr<int32_t[]> code_sums_;
  std::unique_ptr<float[]> outputs_;
};

WinogradInput input_of(const WinogradImage& form) {
  WinogradInput input = {};
  form.describe(input);
  return input;
}

int64_t positions_of(const ConvTile& box) { return box.count[0] * box.count[1] * box.count[2]; }

WinogradPart::WinogradPart(const Convolution& conv, const ConvPart& part)
    : conv_(conv),
      part_(part),
      kernels_(*active_isa().products->winograd),
      form_(conv.axes, conv.group_inputs, part.tile),
      positions_(positions_of(part.tile)),
      codes_size_(winograd_codes_size(input_of(form_))),
      sums_size_(std::min(conv.group_outputs, kBlockColumns) * positions_),
      has_weight_zps_(has_zero_points(conv.all.weights)),
      is_direct_(conv.terms == 1 && conv.dst_storage.narrow == nullptr),
      image_(form_.bytes()),
      codes_(conv.terms * codes_size_),
      weights_(kWinogradWeightsSize),
      sums_(winograd_sums_size(input_of(form_))),
      parts_(input_of(form_).kernel.has_limit(round_up(conv.group_inputs, kQuad)) ? winograd_parts_size(input_of(form_))
                                                                                  : 0),
      code_sums_(allocate_some<int32_t>(has_weight_zps_ ? conv.terms * positions_ : 0)),
      outputs_(allocate_some<float>(is_direct_ ? 0 : conv.terms * sums_size_)) {
  describe_block();
}

void WinogradPart::describe_block() {
  const int64_t n1 = part_.tile.count[1], n2 = part_.tile.count[2];
  const ConvAxis& rows = conv_.axes[1];
  const ConvAxis& cols = conv_.axes[2];
  form_.describe(block_.input);
  block_.input.image = image_.get();
  block_.quads = divide_up(conv_.group_inputs, kQuad);
  block_.zp = conv_.all.weights.zp;
  block_.code_plane_stride = n1 * n2;
  block_.code_row_stride = n2;
  block_.scaling = conv_.all.scaling;
  block_.scaling.zp = conv_.zp_of(part_.sample);
  block_.output = is_direct_ ? WinogradOutput{nullptr, conv_.out_positions(), conv_.out_plane(), cols.out, 0, 0}
                             : WinogradOutput{nullptr, positions_, n1 * n2, n2, 0, 0};
  block_.output.row_step = rows.dilation;
  block_.output.col_step = cols.dilation;
  block_.scratch = {codes_.get(), weights_.get(), sums_.get(), parts_.get()};
}

void WinogradPart::use_term(int64_t term) {
  block_.scaling.scale = conv_.scale_of(part_.sample, term);
  block_.scratch.codes = codes_.get() + term * codes_size_;
  block_.code_sums = code_sums_.get() + (has_weight_zps_ ? term * positions_ : 0);
}

void WinogradPart::write_group(int64_t group) {
  for (int64_t term = 0; term < conv_.terms; ++term) {
    use_term(term);
    form_.write(conv_.source_of(term, part_.sample, group), kernels_, image_.get());
    if (has_weight_zps_) form_.sum_codes(image_.get(), code_sums_.get() + term * positions_);
    kernels_.transform_codes(block_);
  }
}

void WinogradPart::use_channels(int64_t channel, int64_t next) {
  const ConvBlock& all = conv_.all;
  block_.first = channel % kBlockColumns;
  block_.channels = next - channel;
  block_.packed = conv_.weights + channel / kBlockColumns * conv_.quads * kQuad * kBlockColumns;
  block_.zps = all.weights.zps == nullptr ? nullptr : all.weights.zps + channel;
  block_.scaling.channel_scales = all.scaling.channel_scales + channel;
  block_.scaling.channel_sums = all.scaling.channel_sums + channel;
  block_.scaling.bias = conv_.bias_of(channel);
}

void WinogradPart::run() {
  const int64_t outputs = conv_.group_outputs;
  int64_t group = -1;
  for (int64_t channel = part_.channel, next; channel < part_.end; channel = next) {
    if (group != channel / outputs) write_group(group = channel / outputs);
    next = std::min({part_.end, (group + 1) * outputs, channel - channel % kBlockColumns + kBlockColumns});
    use_channels(channel, next);
    multiply(channel);
  }
}

void WinogradPart::multiply(int64_t channel) {
  float* const outputs = outputs_.get();
  for (int64_t term = 0; term < conv_.terms; ++term) {
    use_term(term);
    block_.output.dst = is_direct_ ? static_cast<float*>(conv_.dst) + conv_.first_of(part_.sample, part_.tile, channel)
                                   : outputs + term * sums_size_;
    kernels_.convolve(block_);
  }
  for (int64_t c = 0; conv_.terms > 1 && c < block_.channels; ++c)
    conv_.add_row(outputs + c * positions_, outputs + sums_size_ + c * positions_,
                  load(conv_.all.scaling.bias + channel + c), positions_);
  if (!is_direct_) write_box(channel);
  conv_.run_tail(part_.tile, part_.sample, channel, channel + block_.channels);
}

// Writes the block's channels of the box from outputs_, which has no other elements.
void WinogradPart::write_box(int64_t channel) const {
  const int64_t n0 = part_.tile.count[0], n1 = part_.tile.count[1], n2 = part_.tile.count[2];
  const int64_t row = n2 == conv_.axes[2].out ? n1 * n2 : n2;
  const float* from = outputs_.get();
  for (int64_t c = 0; c < block_.channels; ++c)
    for (int64_t i0 = 0; i0 < n0; ++i0)
      for (int64_t at = 0; at < n1 * n2; at += row, from += row) {
        const int64_t to = conv_.first_of(part_.sample, part_.tile, channel + c) + i0 * conv_.out_plane() +
                           at / n2 * conv_.axes[2].out;
        if (conv_.dst_storage.narrow != nullptr)
          conv_.dst_storage.narrow(from, element(conv_.dst, conv_.dst_storage, to), row);
        else
          std::memcpy(static_cast<float*>(conv_.dst) + to, from, static_cast<size_t>(row) * sizeof(float));
      }
}

}  // namespace

void Convolution::run_winograd(const ConvPart& part) const { WinogradPart(*this, part).run(); }

}  // namespace dynq
