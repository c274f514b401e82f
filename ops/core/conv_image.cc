#include "core/conv_image.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "kernels/kernels.h"

namespace dynq {
namespace {

int64_t divide_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit; }

template <int64_t kStride>
void copy_codes(const uint8_t* __restrict from, int64_t stride, int64_t count, uint8_t flip, uint8_t* __restrict to) {
  const int64_t step = kStride > 0 ? kStride : stride;
  for (int64_t i = 0; i < count; ++i) to[i] = from[i * step] ^ flip;
}

// to[i] is the code at begin + i * stride of a row of `length` codes, or the zero point outside of the row.
void copy_padded(const uint8_t* row, int64_t length, int64_t begin, int64_t stride, int64_t count,
                 const ConvSource& source, uint8_t* to) {
  const int64_t first = std::clamp(begin >= 0 ? 0 : divide_up(-begin, stride), int64_t{0}, count);
  const int64_t last = std::clamp(length > begin ? divide_up(length - begin, stride) : 0, first, count);
  std::memset(to, source.zp, static_cast<size_t>(first));
  std::memset(to + last, source.zp, static_cast<size_t>(count - last));
  if (last == first) return;
  const uint8_t* from = row + begin + first * stride;
  if (stride == 1 && source.flip == 0)
    std::memcpy(to + first, from, static_cast<size_t>(last - first));
  else if (stride == 1)
    copy_codes<1>(from, stride, last - first, source.flip, to + first);
  else if (stride == 2)
    copy_codes<2>(from, stride, last - first, source.flip, to + first);
  else
    copy_codes<0>(from, stride, last - first, source.flip, to + first);
}

// to[4 * i + j] = the code i of row j.
void interleave(const uint8_t* const (&rows)[kQuad], int64_t count, uint8_t* __restrict to) {
  const uint8_t* __restrict r0 = rows[0], * __restrict r1 = rows[1];
  const uint8_t* __restrict r2 = rows[2], * __restrict r3 = rows[3];
  for (int64_t i = 0; i < count; ++i) {
    to[4 * i] = r0[i];
    to[4 * i + 1] = r1[i];
    to[4 * i + 2] = r2[i];
    to[4 * i + 3] = r3[i];
  }
}

}  // namespace

ConvImage::ConvImage(const ConvAxis (&axes)[kSpatialAxes], QuadAxis quad_axis, int64_t channels, const ConvTile& tile)
    : axes_(axes), quad_axis_(quad_axis), channels_(channels), tile_(tile) {
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
  const auto& [l0, l1, l2] = layouts_;
  const std::unique_ptr<uint8_t[]> rows(new uint8_t[static_cast<size_t>(l2.length * kQuad)]);
  for (int64_t quad = 0; quad < quads_; ++quad) {
    uint8_t* planes = image + quad * quad_bytes_;
    for (const int64_t begin0 : l0.begins)
      for (const int64_t begin1 : l1.begins) {
        uint8_t* to = planes;
        for (int64_t i0 = 0; i0 < l0.length; ++i0)
          for (int64_t i1 = 0; i1 < l1.length; ++i1, to += l2.length * kQuad)
            write_row(source, quad, begin0 + i0 * axes_[0].stride, begin1 + i1 * axes_[1].stride, rows.get(), to,
                      plane_bytes_);
        planes += plane_bytes_ * (quad_axis_ == QuadAxis::kWidth ? 1 : static_cast<int64_t>(l2.begins.size()));
      }
  }
}

// A row of the planes of the last axis, which are `plane_bytes` apart.
void ConvImage::write_row(const ConvSource& source, int64_t quad, int64_t in0, int64_t in1, uint8_t* rows,
                          uint8_t* image, int64_t plane_bytes) const {
  const Layout& layout = layouts_[2];
  const bool is_width = quad_axis_ == QuadAxis::kWidth;
  const bool exists = in0 >= 0 && in0 < axes_[0].in && in1 >= 0 && in1 < axes_[1].in;
  const int64_t row_codes = axes_[2].in;
  const auto write_one = [&](int64_t i, int64_t channel, int64_t begin, bool is_used) {
    uint8_t* to = rows + i * layout.length;
    if (!is_used)
      std::memset(to, 0, static_cast<size_t>(layout.length));
    else if (!exists)
      std::memset(to, source.zp, static_cast<size_t>(layout.length));
    else
      copy_padded(source.codes + ((channel * axes_[0].in + in0) * axes_[1].in + in1) * row_codes, row_codes, begin,
                  axes_[2].stride, layout.length, source, to);
  };
  const uint8_t* const of[kQuad] = {rows, rows + layout.length, rows + 2 * layout.length, rows + 3 * layout.length};
  if (is_width) {
    const int64_t first = quad % width_quads_ * kQuad;
    for (int64_t i = 0; i < kQuad; ++i) {
      const bool is_used = first + i < axes_[2].kernel;
      write_one(i, quad / width_quads_, is_used ? layout.begins[static_cast<size_t>(first + i)] : 0, is_used);
    }
    interleave(of, layout.length, image);
    return;
  }
  for (const int64_t begin : layout.begins) {
    for (int64_t i = 0; i < kQuad; ++i) write_one(i, quad * kQuad + i, begin, quad * kQuad + i < channels_);
    interleave(of, layout.length, image);
    image += plane_bytes;
  }
}

}  // namespace dynq
