// Convolutions by a matrix product: as the direct form, for several samples, and the codes of each position are a row.
#include <algorithm>
#include <cstring>
#include <iterator>
#include <vector>

#include "core/conv_rows.h"
#include "core/convolution.h"
#include "kernels/dispatch.h"

namespace dynq {
namespace {

int64_t positions_of(const ConvTile& tile) { return tile.count[0] * tile.count[1] * tile.count[2]; }

void add_biases(float* __restrict first, const float* __restrict second, const float* biases, int64_t count) {
  for (int64_t i = 0; i < count; ++i) first[i] = first[i] + second[i] + load(biases + i);
}

// One part of the outputs.
class RowsPart {
 public:
  RowsPart(const Convolution& conv, const ConvPart& part);
  void run();

 private:
  void write_rows();
  void describe_block();
  void multiply(int64_t channel);
  void write_outputs(int64_t channel) const;

  const Convolution& conv_;
  const ConvPart& part_;
  int64_t positions_, rows_, depth_;
  bool has_weight_zps_;
  ProductBlock block_ = {};
  AlignedArray<uint8_t> codes_;
  AlignedArray<float> outputs_, scales_;
  AlignedArray<int32_t> zps_, sums_;
  float no_biases_[kConvColumns];
};

RowsPart::RowsPart(const Convolution& conv, const ConvPart& part)
    : conv_(conv),
      part_(part),
      positions_(positions_of(part.tile)),
      rows_(part.samples * positions_),
      depth_(conv.quads * kQuad),
      has_weight_zps_(has_zero_points(conv.all.weights)),
      codes_(conv.terms * rows_ * depth_),
      outputs_(conv.terms * rows_ * kConvColumns),
      scales_(conv.terms * rows_),
      zps_(rows_),
      sums_(has_weight_zps_ ? conv.terms * rows_ : 0) {
  std::fill(std::begin(no_biases_), std::end(no_biases_), -0.0f);
  write_rows();
  describe_block();
}

void RowsPart::write_rows() {
  ConvImage form(conv_.axes, conv_.quad_axis, conv_.group_inputs, conv_.group_outputs, part_.tile);
  form.prepare(conv_.in_plane());
  const std::vector<int64_t> offsets = form.offsets();
  const std::vector<int8_t> ones = has_weight_zps_ ? form.ones() : std::vector<int8_t>();
  const AlignedArray<uint8_t> image(form.bytes() + kConvSlack * kQuad);
  std::memset(image.get() + form.bytes(), 0, static_cast<size_t>(kConvSlack * kQuad));
  for (int64_t i = 0; i < part_.samples; ++i) {
    const int64_t sample = part_.sample + i;
    std::fill_n(zps_.get() + i * positions_, positions_, conv_.zp_of(sample));
    for (int64_t term = 0; term < conv_.terms; ++term) {
      const int64_t row = term * rows_ + i * positions_;
      form.write(conv_.source_of(term, sample, 0), true, image.get());
      write_conv_rows(form, part_.tile, offsets, image.get(), codes_.get() + row * depth_);
      if (has_weight_zps_) sum_conv_rows(codes_.get() + row * depth_, positions_, ones, sums_.get() + row);
      std::fill_n(scales_.get() + row, positions_, conv_.scale_of(sample, term));
    }
  }
}

void RowsPart::describe_block() {
  block_.rows = rows_;
  block_.depth = depth_;
  block_.groups = block_.codes.scale_groups = block_.columns.scale_groups = 1;
  block_.codes.stride = depth_;
  block_.codes.zps = zps_.get();
  block_.codes.has_one_zp = !conv_.has_zps_of_samples;
  block_.weights.stride = depth_ * kBlockColumns;
  block_.weights.zp = conv_.all.weights.zp;
  block_.order = conv_.all.scaling.order;
}

void RowsPart::run() {
  const ConvBlock& all = conv_.all;
  for (int64_t channel = part_.channel; channel < part_.end; channel += kConvColumns) {
    block_.cols = std::min(part_.end - channel, kConvColumns);
    block_.weights.packed = conv_.weights + channel / kBlockColumns * block_.weights.stride;
    if (all.weights.zps != nullptr) block_.weights.zps = all.weights.zps + channel;
    block_.columns.scales = all.scaling.channel_scales + channel;
    block_.columns.sums = all.scaling.channel_sums + channel;
    block_.columns.bias = conv_.terms > 1 ? no_biases_ : all.scaling.bias + channel;
    multiply(channel);
    write_outputs(channel);
  }
}

void RowsPart::multiply(int64_t channel) {
  float* const outputs = outputs_.get();
  for (int64_t term = 0; term < conv_.terms; ++term) {
    block_.codes.data = codes_.get() + term * rows_ * depth_;
    block_.codes.scales = scales_.get() + term * rows_;
    block_.codes.sums = has_weight_zps_ ? sums_.get() + term * rows_ : nullptr;
    block_.output = {outputs + term * rows_ * kConvColumns, kConvColumns, false};
    active_isa().products->gemm_qc8w(block_);
  }
  for (int64_t row = 0; conv_.terms > 1 && row < rows_; ++row)
    add_biases(outputs + row * kConvColumns, outputs + (rows_ + row) * kConvColumns, conv_.all.scaling.bias + channel,
               block_.cols);
}

void RowsPart::write_outputs(int64_t channel) const {
  const int64_t n0 = part_.tile.count[0], n1 = part_.tile.count[1], n2 = part_.tile.count[2];
  const int64_t adjacent = n2 == conv_.axes[2].out ? n1 * n2 : n2;
  const float* from = outputs_.get();
  for (int64_t i = 0; i < part_.samples; ++i) {
    const int64_t sample = part_.sample + i, first = conv_.first_of(sample, part_.tile, channel);
    for (int64_t i0 = 0; i0 < n0; ++i0)
      for (int64_t at = 0; at < n1 * n2; at += adjacent, from += adjacent * kConvColumns)
        transpose_clipped(from, kConvColumns, adjacent, block_.cols, conv_.lowest, conv_.highest,
                          static_cast<float*>(conv_.dst) + first + i0 * conv_.out_plane() + at / n2 * conv_.axes[2].out,
                          conv_.out_positions());
    conv_.run_tail(part_.tile, sample, channel, channel + block_.cols);
  }
}

}  // namespace

void Convolution::run_rows(const ConvPart& part) const { RowsPart(*this, part).run(); }

}  // namespace dynq
