#include "core/conv_image.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "kernels/kernels.h"

namespace dynq {
namespace {

int64_t divide_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit; }

template <int64_t kStride>
void copy_codes(const uint8_t* __restrict from, int64_t stride, int64_t count, uint8_t* __restrict to) {
  const int64_t step = kStride > 0 ? kStride : stride;
  for (int64_t i = 0; i < count; ++i) to[i] = from[i * step];
}

}  // namespace

ConvImage::ConvImage(const ConvAxis (&axes)[kSpatialAxes], QuadAxis quad_axis, int64_t channels, const ConvTile& tile)
    : axes_(axes),
      quad_axis_(quad_axis),
      channels_(channels),
      tile_(tile),
      interleave_(active_isa().products->interleave) {
  const bool is_width = quad_axis == QuadAxis::kWidth;
  for (int i = 0; i < kSpatialAxes; ++i)
    layouts_[i] = layout(axes[i], tile.first[i], tile.count[i], !(is_width && i == 2));
  width_quads_ = is_width ? divide_up(axes[2].kernel, kQuad) : 1;
  quads_ = is_width ? channels * width_quads_ : divide_up(channels, kQuad);
  plane_bytes_ = layouts_[0].length * layouts_[1].length * layouts_[2].length * kQuad;
  quad_bytes_ = plane_bytes_ * static_cast<int64_t>(layouts_[0].begins.size() * layouts_[1].begins.size());
  if (!is_width) quad_bytes_ *= static_cast<int64_t>(layouts_[2].begins.size());
}

ConvImage::Layout ConvImage::layout(const ConvAxis& axis, int64_t first, int64_t count, bool shares) {
  Layout result;
  const int64_t begin = first * axis.stride - axis.pad, longest = (axis.kernel - 1) * axis.dilation / axis.stride;
  std::vector<int64_t> remainders;
  for (int64_t k = 0; k < axis.kernel && shares; ++k) {
    const int64_t remainder = k * axis.dilation % axis.stride;
    const auto known = std::find(remainders.begin(), remainders.end(), remainder);
    result.plane.push_back(known - remainders.begin());
    result.shift.push_back(k * axis.dilation / axis.stride);
    if (known == remainders.end()) remainders.push_back(remainder);
  }
  // Without a product, which might overflow.
  shares = shares && count + longest <= count * axis.kernel / static_cast<int64_t>(remainders.size());
  if (shares) {
    for (const int64_t remainder : remainders) result.begins.push_back(begin + remainder);
  } else {
    result.plane.clear();
    result.shift.assign(static_cast<size_t>(axis.kernel), 0);
    for (int64_t k = 0; k < axis.kernel; ++k) {
      result.plane.push_back(k);
      result.begins.push_back(begin + k * axis.dilation);
    }
  }
  result.length = shares ? count + longest : count;
  return result;
}

std::vector<int64_t> ConvImage::offsets() const {
  const bool is_width = quad_axis_ == QuadAxis::kWidth;
  const auto& [l0, l1, l2] = layouts_;
  const auto planes1 = static_cast<int64_t>(l1.begins.size());
  const int64_t planes2 = is_width ? 1 : static_cast<int64_t>(l2.begins.size());
  const auto of_kernel = [&](size_t k0, size_t k1, size_t k2) {
    const int64_t plane = (l0.plane[k0] * planes1 + l1.plane[k1]) * planes2 + (is_width ? 0 : l2.plane[k2]);
    const int64_t shift = position(l0.shift[k0], l1.shift[k1]) + (is_width ? 0 : l2.shift[k2]);
    return plane * plane_bytes_ + shift * kQuad;
  };
  std::vector<int64_t> result;
  const auto kernel = [&](int i) { return static_cast<size_t>(axes_[i].kernel); };
  if (is_width) {
    for (int64_t channel = 0; channel < channels_; ++channel)
      for (size_t k0 = 0; k0 < kernel(0); ++k0)
        for (size_t k1 = 0; k1 < kernel(1); ++k1)
          for (int64_t i = 0; i < width_quads_; ++i)
            result.push_back((channel * width_quads_ + i) * quad_bytes_ + of_kernel(k0, k1, 0));
  } else {
    for (size_t k0 = 0; k0 < kernel(0); ++k0)
      for (size_t k1 = 0; k1 < kernel(1); ++k1)
        for (size_t k2 = 0; k2 < kernel(2); ++k2)
          for (int64_t quad = 0; quad < quads_; ++quad) result.push_back(quad * quad_bytes_ + of_kernel(k0, k1, k2));
  }
  return result;
}

int64_t ConvImage::positions() const { return position(tile_.count[0] - 1, tile_.count[1] - 1) + tile_.count[2]; }

void ConvImage::write(const ConvSource& source, uint8_t* image) const {
  const auto length = static_cast<size_t>(layouts_[2].length);
  const std::unique_ptr<uint8_t[]> unused(new uint8_t[length]), strided(new uint8_t[length * kQuad]);
  std::memset(unused.get(), source.flip, length);  // which become 0
  const bool is_width = quad_axis_ == QuadAxis::kWidth;
  const int64_t planes = is_width ? 1 : static_cast<int64_t>(layouts_[2].begins.size());
  for (int64_t quad = 0; quad < quads_; ++quad)
    for (int64_t plane = 0; plane < planes; ++plane) {
      Quads quads;
      quads.unused = unused.get();
      quads.strided = strided.get();
      const int64_t first = is_width ? quad % width_quads_ * kQuad : quad * kQuad;
      quads.used = std::min(kQuad, (is_width ? axes_[2].kernel : channels_) - first);
      for (int64_t i = 0; i < quads.used; ++i) {
        quads.channels[i] = is_width ? quad / width_quads_ : first + i;
        quads.begins[i] = layouts_[2].begins[static_cast<size_t>(is_width ? first + i : plane)];
      }
      find_codes(quads);
      write_planes(quads, source, planes, image + quad * quad_bytes_ + plane * plane_bytes_);
    }
}

// Sets the positions of which all elements are codes, not padding.
void ConvImage::find_codes(Quads& quads) const {
  const int64_t length = axes_[2].in, stride = axes_[2].stride;
  quads.first = 0;
  quads.last = layouts_[2].length;
  for (int64_t i = 0; i < quads.used; ++i) {
    const int64_t begin = quads.begins[i];
    quads.first = std::max(quads.first, begin >= 0 ? 0 : divide_up(-begin, stride));
    quads.last = std::min(quads.last, length > begin ? divide_up(length - begin, stride) : 0);
  }
  if (quads.last <= quads.first) quads.first = quads.last = layouts_[2].length;
}

// All planes of one plane of the last axis, which are `step` planes apart.
void ConvImage::write_planes(Quads& quads, const ConvSource& source, int64_t step, uint8_t* image) const {
  const auto& [l0, l1, l2] = layouts_;
  const int64_t rows = axes_[0].in * axes_[1].in, row_bytes = l2.length * kQuad;
  uint8_t padding[kQuad];
  for (int64_t i = 0; i < kQuad; ++i) padding[i] = i < quads.used ? source.zp : uint8_t{0};
  for (const int64_t begin0 : l0.begins)
    for (const int64_t begin1 : l1.begins) {
      uint8_t* to = image;
      for (int64_t i0 = 0; i0 < l0.length; ++i0)
        for (int64_t i1 = 0; i1 < l1.length; ++i1, to += row_bytes) {
          const int64_t in0 = begin0 + i0 * axes_[0].stride, in1 = begin1 + i1 * axes_[1].stride;
          if (in0 < 0 || in0 >= axes_[0].in || in1 < 0 || in1 >= axes_[1].in) {
            for (int64_t i = 0; i < l2.length; ++i) std::memcpy(to + i * kQuad, padding, kQuad);
            continue;
          }
          const int64_t row = in0 * axes_[1].in + in1;
          for (int64_t i = 0; i < quads.used; ++i)
            quads.rows[i] = source.codes + (quads.channels[i] * rows + row) * axes_[2].in;
          write_row(quads, source, padding, to);
        }
      image += plane_bytes_ * step;
    }
}

void ConvImage::write_row(const Quads& quads, const ConvSource& source, const uint8_t (&padding)[kQuad],
                          uint8_t* to) const {
  const int64_t length = axes_[2].in, stride = axes_[2].stride, count = quads.last - quads.first;
  const auto write_one = [&](int64_t position) {
    std::memcpy(to + position * kQuad, padding, kQuad);
    for (int64_t i = 0; i < quads.used; ++i) {
      const int64_t at = quads.begins[i] + position * stride;
      if (at >= 0 && at < length) to[position * kQuad + i] = quads.rows[i][at] ^ source.flip;
    }
  };
  for (int64_t position = 0; position < quads.first; ++position) write_one(position);
  for (int64_t position = quads.last; position < layouts_[2].length; ++position) write_one(position);
  if (count == 0) return;
  const uint8_t* rows[kQuad];
  for (int64_t i = 0; i < kQuad; ++i) {
    if (i >= quads.used) {
      rows[i] = quads.unused;
      continue;
    }
    rows[i] = quads.rows[i] + quads.begins[i] + quads.first * stride;
    if (stride == 1) continue;
    uint8_t* copy = quads.strided + i * count;
    if (stride == 2)
      copy_codes<2>(rows[i], stride, count, copy);
    else
      copy_codes<0>(rows[i], stride, count, copy);
    rows[i] = copy;
  }
  interleave_(rows, count, source.flip, to + quads.first * kQuad);
}

}  // namespace dynq
