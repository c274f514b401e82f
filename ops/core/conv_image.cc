#include "core/conv_image.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>

#include "core/rounding.h"
#include "kernels/dispatch.h"

namespace dynq {
namespace {

// Codes of a kernel row from which on copying them for each position takes less time than reading strided ones.
constexpr int64_t kWideKernel = 32;

// Quads of one position that are a multiple of so many bytes apart share sets of the first-level cache; more than
// kFewUnits of them would evict each other.
constexpr int64_t kAliasBytes = 512, kFewUnits = 32, kLine = 64;

template <int64_t kStride>
void copy_codes(const uint8_t* __restrict from, int64_t stride, int64_t count, uint8_t* __restrict to) {
  const int64_t step = kStride > 0 ? kStride : stride;
  for (int64_t i = 0; i < count; ++i) to[i] = from[i * step];
}

template <int64_t kStride>
void copy_quads(const uint8_t* __restrict from, int64_t stride, int64_t count, uint8_t* __restrict to) {
  const int64_t step = kStride > 0 ? kStride : stride;
  for (int64_t i = 0; i < count; ++i) std::memcpy(to + i * kQuad, from + i * step * kQuad, kQuad);
}

// Copies `rows` rows of `count` codes; the last codes of a row may be copied twice. Rows are short: calls of memcpy
// would take longer.
template <int64_t kSome>
void copy_rows(const uint8_t* from, int64_t from_step, int64_t rows, int64_t count, uint8_t flip, uint8_t* to,
               int64_t to_step) {
  const auto copy = [&](int64_t at, int64_t to_at) {
    uint8_t codes[kSome];  // compilers make it a vector
    std::memcpy(codes, from + at, sizeof codes);
    for (uint8_t& code : codes) code ^= flip;
    std::memcpy(to + to_at, codes, sizeof codes);
  };
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t at = 0; at < count - kSome; at += kSome) copy(row * from_step + at, row * to_step + at);
    copy(row * from_step + count - kSome, row * to_step + count - kSome);
  }
}

// Writes `count` quads of padding, unless it is null: they are there already.
void write_padding(const uint8_t* padding, int64_t count, uint8_t* to) {
  for (int64_t i = 0; padding != nullptr && i < count; ++i) std::memcpy(to + i * kQuad, padding, kQuad);
}

// The number of rows along `axis` in a box.
int64_t rows_of(const int64_t (&count)[kSpatialAxes], int axis) {
  int64_t rows = 1;
  for (int i = 0; i < axis; ++i) rows *= count[i];
  return rows;
}

bool overlap(const ConvAxis (&axes)[kSpatialAxes], int64_t outputs) {
  const ConvAxis& width = axes[2];
  // With stride 2, overlapping quads take more instructions, which do not pay if many outputs read them. If the kernel
  // is much wider than the output, most positions would lie between rows.
  const bool has_few_gaps = width.kernel <= width.out + 1 || axes[0].out * axes[1].out == 1;
  return has_few_gaps && width.dilation == 1 && (width.stride == 1 || (width.stride == 2 && outputs <= kFewOutputs));
}

}  // namespace

ConvImage::ConvImage(const ConvAxis (&axes)[kSpatialAxes], QuadAxis quad_axis, int64_t channels, int64_t outputs,
                     const ConvTile& tile)
    : axes_(axes),
      form_(quad_axis == QuadAxis::kChannels ? kChannelQuads
            : overlap(axes, outputs)         ? kOverlapping
                                             : kWidthQuads),
      channels_(channels),
      width_quads_(form_ == kChannelQuads ? 1 : divide_up(axes[2].kernel, kQuad)),
      tile_(tile),
      interleave_(active_isa().products->interleave_quads) {
  for (int i = 0; i < kSpatialAxes; ++i)
    layouts_[i] = layout(axes[i], tile.first[i], tile.count[i], form_ != kWidthQuads || i < 2,
                         (form_ != kOverlapping || i < 2) && rows_of(tile.count, i) > 1);
  units_ = form_ == kChannelQuads ? divide_up(channels, kQuad)
           : form_ == kWidthQuads ? channels * width_quads_
                                  : channels;
  planes_ = form_ == kChannelQuads ? layouts_[2].planes : 1;
  position_bytes_ = form_ == kOverlapping ? axes[2].stride : kQuad;
  if (form_ == kOverlapping) {  // all codes are in one plane
    layouts_[2].planes = 1;
    layouts_[2].length = tile.count[2] + divide_up(axes[2].kernel - 1, axes[2].stride);
  }
  plane_bytes_ = layouts_[0].length * layouts_[1].length * layouts_[2].length * position_bytes_;
  unit_bytes_ = layouts_[0].planes * layouts_[1].planes * planes_ * plane_bytes_;
  if (form_ == kChannelQuads && units_ > kFewUnits && unit_bytes_ % kAliasBytes == 0) unit_bytes_ += kLine;
}

ConvImage::Layout ConvImage::layout(const ConvAxis& axis, int64_t first, int64_t count, bool shares, bool has_gaps) {
  const int64_t longest = (axis.kernel - 1) * axis.dilation / axis.stride;
  // The remainders of k * dilation repeat.
  const int64_t planes = std::min(axis.kernel, axis.stride / std::gcd(axis.dilation, axis.stride));
  // No product of three factors: it might overflow.
  shares = shares && count + longest <= count * axis.kernel / planes && (!has_gaps || longest <= count);
  return {axis.stride,
          axis.dilation,
          shares,
          first * axis.stride - axis.pad,
          shares ? planes : axis.kernel,
          shares ? count + longest : count};
}

// Divisions take longest here, so there are some for each kernel position, and none for each quad.
std::vector<int64_t> ConvImage::offsets() const {
  const bool is_channels = form_ == kChannelQuads;
  const int64_t kernel = axes_[0].kernel * axes_[1].kernel * (is_channels ? axes_[2].kernel : 1);
  const int64_t channels = is_channels ? 1 : channels_, quads = is_channels ? units_ : width_quads_;
  const int64_t quad_bytes = form_ == kOverlapping ? kQuad : unit_bytes_;
  const int64_t channel_bytes = (form_ == kWidthQuads ? width_quads_ : 1) * unit_bytes_;
  std::vector<int64_t> result(static_cast<size_t>(channels * kernel * quads));
  int64_t* of_kernel = result.data();
  for (int64_t k0 = 0; k0 < axes_[0].kernel; ++k0)
    for (int64_t k1 = 0; k1 < axes_[1].kernel; ++k1)
      for (int64_t k2 = 0; k2 < (is_channels ? axes_[2].kernel : 1); ++k2, of_kernel += quads) {
        const int64_t first = kernel_offset(k0, k1, k2);
        for (int64_t channel = 0; channel < channels; ++channel)
          for (int64_t i = 0; i < quads; ++i)
            of_kernel[channel * kernel * quads + i] = first + channel * channel_bytes + i * quad_bytes;
      }
  return result;
}

int64_t ConvImage::kernel_offset(int64_t k0, int64_t k1, int64_t k2) const {
  const Layout &l0 = layouts_[0], &l1 = layouts_[1], &l2 = layouts_[2];
  const int64_t plane = (l0.plane(k0) * l1.planes + l1.plane(k1)) * planes_ + l2.plane(k2);
  const int64_t position = this->position(l0.shift(k0), l1.shift(k1)) + l2.shift(k2);
  return plane * plane_bytes_ + position * position_bytes_;
}

int64_t ConvImage::kernel_rows() const {
  const bool is_one_plane = layouts_[1].planes == 1 && axes_[1].stride == 1 && axes_[1].dilation == 1;
  return form_ == kOverlapping && channels_ == 1 && axes_[0].kernel == 1 && is_one_plane ? axes_[1].kernel : 0;
}

std::vector<int8_t> ConvImage::ones() const {
  std::vector<int8_t> result;
  const bool is_channels = form_ == kChannelQuads;
  const int64_t positions = axes_[0].kernel * axes_[1].kernel;
  const int64_t outer = is_channels ? positions * axes_[2].kernel : channels_ * positions;
  const int64_t inner = is_channels ? channels_ : axes_[2].kernel;
  for (int64_t i = 0; i < outer; ++i)
    for (int64_t k = 0; k < round_up(inner, kQuad); ++k) result.push_back(k < inner ? 1 : 0);
  return result;
}

int64_t ConvImage::positions() const { return position(tile_.count[0] - 1, tile_.count[1] - 1) + tile_.count[2]; }

void ConvImage::write(const ConvSource& source, bool is_first, uint8_t* image) const {
  if (form_ == kOverlapping) {
    write_rows(source, is_first, image);
    return;
  }
  if (form_ == kWidthQuads && axes_[2].stride > 2 && axes_[2].dilation == 1 && axes_[2].kernel >= kWideKernel) {
    write_kernels(source, is_first, image);
    return;
  }
  if (has_strided_quads()) {
    write_strided(source, is_first, image);
    return;
  }
  const auto length = static_cast<size_t>(layouts_[2].length);
  const std::unique_ptr<uint8_t[]> unused(new uint8_t[length]);
  std::memset(unused.get(), source.flip, length);  // which become 0
  const std::unique_ptr<uint8_t[]> strided(axes_[2].stride > 1 ? new uint8_t[length * kQuad] : nullptr);
  for (int64_t unit = 0; unit < units_; ++unit)
    for (int64_t plane = 0; plane < planes_; ++plane) {
      Elements elements;
      elements.unused = unused.get();
      elements.strided = strided.get();
      const bool is_channels = form_ == kChannelQuads;
      const int64_t first = (is_channels ? unit : unit % width_quads_) * kQuad;
      elements.used = std::min(kQuad, (is_channels ? channels_ : axes_[2].kernel) - first);
      for (int64_t i = 0; i < elements.used; ++i) {
        elements.channels[i] = is_channels ? first + i : unit / width_quads_;
        elements.begins[i] = layouts_[2].begin(is_channels ? plane : first + i);
      }
      find_codes(elements);
      write_planes(elements, source, is_first, planes_, image + unit * unit_bytes_ + plane * plane_bytes_);
    }
}

// A plane has the input rows of an axis from `begin` on, `stride` apart. Its rows from `first` to `last` lie within the
// input.
ConvImage::Span ConvImage::span_of(int64_t begin, int64_t stride, int64_t in, int64_t length) {
  const int64_t first = std::min(length, begin >= 0 ? 0 : divide_up(-begin, stride));
  return {first, std::clamp(in > begin ? divide_up(in - begin, stride) : int64_t{0}, first, length)};
}

void ConvImage::prepare(int64_t plane_step) {
  if (form_ != kOverlapping) return;
  const Layout &l0 = layouts_[0], &l1 = layouts_[1], &l2 = layouts_[2];
  const int64_t row_bytes = l2.length * position_bytes_;
  const Span codes = span_of(l2.first_begin, 1, axes_[2].in, row_bytes);
  row_codes_ = codes.last - codes.first;
  if (row_codes_ == 0) return;
  int64_t plane = 0;
  for (int64_t k0 = 0; k0 < l0.planes; ++k0)
    for (int64_t k1 = 0; k1 < l1.planes; ++k1) {
      const int64_t begin0 = l0.begin(k0), begin1 = l1.begin(k1);
      const Span rows = span_of(begin1, axes_[1].stride, axes_[1].in, l1.length);
      for (int64_t i0 = 0; i0 < l0.length && rows.first < rows.last; ++i0) {
        const int64_t in0 = begin0 + i0 * axes_[0].stride;
        if (in0 < 0 || in0 >= axes_[0].in) continue;
        const int64_t row = begin1 + rows.first * axes_[1].stride;
        rows_.push_back({in0 * plane_step + row * axes_[2].in + l2.first_begin + codes.first,
                         plane + (i0 * l1.length + rows.first) * row_bytes + codes.first, rows.last - rows.first});
      }
      plane += plane_bytes_;
    }
}

void ConvImage::write_rows(const ConvSource& source, bool is_first, uint8_t* image) const {
  if (is_first) std::memset(image, source.zp, static_cast<size_t>(bytes()));
  const auto copy = row_codes_ >= 16  ? copy_rows<16>
                    : row_codes_ >= 8 ? copy_rows<8>
                    : row_codes_ >= 4 ? copy_rows<4>
                                      : copy_rows<1>;
  for (int64_t unit = 0; unit < units_; ++unit)
    for (const Rows& rows : rows_)
      copy(source.codes + unit * source.channel_step + rows.from, axes_[1].stride * axes_[2].in, rows.count, row_codes_,
           source.flip, image + unit * unit_bytes_ + rows.to, layouts_[2].length * position_bytes_);
}

void ConvImage::write_kernels(const ConvSource& source, bool is_first, uint8_t* image) const {
  std::vector<uint8_t> codes(static_cast<size_t>(width_quads_ * kQuad));  // of a position, and zeros
  for (int64_t k0 = 0; k0 < layouts_[0].planes; ++k0)
    for (int64_t k1 = 0; k1 < layouts_[1].planes; ++k1, image += plane_bytes_)
      write_kernel_plane(source, is_first, layouts_[0].begin(k0), layouts_[1].begin(k1), codes.data(), image);
}

// One plane of the first two axes. Its first row is row `begin1` of plane `begin0` of the input.
void ConvImage::write_kernel_plane(const ConvSource& source, bool is_first, int64_t begin0, int64_t begin1,
                                   uint8_t* codes, uint8_t* image) const {
  for (int64_t i0 = 0; i0 < layouts_[0].length; ++i0)
    for (int64_t i1 = 0; i1 < layouts_[1].length; ++i1) {
      const int64_t in0 = begin0 + i0 * axes_[0].stride, in1 = begin1 + i1 * axes_[1].stride;
      const bool is_inside = in0 >= 0 && in0 < axes_[0].in && in1 >= 0 && in1 < axes_[1].in;
      if (!is_inside && !is_first) continue;
      uint8_t* to = image + position(i0, i1) * kQuad;
      const uint8_t* row = is_inside ? source.codes + in0 * source.plane_step + in1 * axes_[2].in : nullptr;
      for (int64_t channel = 0; channel < channels_; ++channel, to += width_quads_ * unit_bytes_)
        write_kernel_row(source, row == nullptr ? nullptr : row + channel * source.channel_step, codes, to);
    }
}

// The positions of a row of the input, or of padding if `row` is null.
void ConvImage::write_kernel_row(const ConvSource& source, const uint8_t* row, uint8_t* codes, uint8_t* to) const {
  const int64_t kernel = axes_[2].kernel;
  for (int64_t i2 = 0; i2 < layouts_[2].length; ++i2, to += kQuad) {
    const int64_t begin = layouts_[2].first_begin + i2 * axes_[2].stride;
    const int64_t first = row == nullptr ? kernel : std::clamp(-begin, int64_t{0}, kernel);
    const int64_t last = std::clamp(axes_[2].in - begin, first, kernel);
    if (last - first < kernel) std::memset(codes, source.zp, static_cast<size_t>(kernel));
    for (int64_t k = first; k < last; ++k) codes[k] = row[begin + k] ^ source.flip;
    for (int64_t i = 0; i < width_quads_; ++i) std::memcpy(to + i * unit_bytes_, codes + i * kQuad, kQuad);
  }
}

bool ConvImage::has_strided_quads() const {
  const ConvAxis &height = axes_[1], &width = axes_[2];
  return form_ == kChannelQuads && width.stride > 1 && width.stride <= 2 * width.kernel && width.dilation == 1 &&
         height.stride <= 2 * height.kernel && height.dilation == 1 && tile_.count[2] == width.out;
}

// The rows of the input that some plane has.
ConvImage::Span ConvImage::rows_of_planes() const {
  const Layout& l1 = layouts_[1];
  Span used = {axes_[1].in, 0};
  for (int64_t k1 = 0; k1 < l1.planes; ++k1) {
    const Span rows = span_of(l1.begin(k1), axes_[1].stride, axes_[1].in, l1.length);
    if (rows.first == rows.last) continue;
    used.first = std::min(used.first, l1.begin(k1) + rows.first * axes_[1].stride);
    used.last = std::max(used.last, l1.begin(k1) + (rows.last - 1) * axes_[1].stride + 1);
  }
  return used;
}

void ConvImage::write_strided(const ConvSource& source, bool is_first, uint8_t* image) const {
  const Layout &l0 = layouts_[0], &l1 = layouts_[1];
  const Span used_rows = rows_of_planes();
  const int64_t codes = std::max(int64_t{0}, used_rows.last - used_rows.first) * axes_[2].in;
  const std::unique_ptr<uint8_t[]> memory(new uint8_t[static_cast<size_t>(codes * (1 + kQuad))]);
  uint8_t *const unused = memory.get(), *const quads = unused + codes;
  std::memset(unused, source.flip, static_cast<size_t>(codes));  // which become 0
  for (int64_t unit = 0; unit < units_; ++unit) {
    const int64_t used = std::min(kQuad, channels_ - unit * kQuad);
    uint8_t padding[kQuad];
    for (int64_t i = 0; i < kQuad; ++i) padding[i] = i < used ? source.zp : uint8_t{0};
    for (int64_t at = 0; at < l0.planes * l0.length; ++at) {
      const int64_t k0 = at / l0.length, i0 = at % l0.length, in0 = l0.begin(k0) + i0 * axes_[0].stride;
      const bool is_inside = in0 >= 0 && in0 < axes_[0].in;
      if (is_inside && codes > 0)
        interleave_rows(source, unit * kQuad, in0 * source.plane_step + used_rows.first * axes_[2].in, codes, unused,
                        quads);
      uint8_t* const to = image + unit * unit_bytes_ + k0 * l1.planes * planes_ * plane_bytes_ +
                          i0 * l1.length * layouts_[2].length * kQuad;
      for (int64_t i = 0; i < l1.planes * planes_; ++i)
        write_strided_plane(is_inside ? quads : nullptr, used_rows.first, i / planes_, i % planes_,
                            is_first ? padding : nullptr, to + i * plane_bytes_);
    }
  }
}

// Quads of `count` adjacent codes of up to four channels from `channel` on, from number `first` on in each of them.
void ConvImage::interleave_rows(const ConvSource& source, int64_t channel, int64_t first, int64_t count,
                                const uint8_t* unused, uint8_t* quads) const {
  const uint8_t* rows[kQuad];
  for (int64_t i = 0; i < kQuad; ++i)
    rows[i] = channel + i < channels_ ? source.codes + (channel + i) * source.channel_step + first : unused;
  interleave_(rows, count, source.flip, quads);
}

// Plane k1 of rows and k2 of columns: copies quads of rows of the input from number `top` on, or none if `quads` is
// null.
void ConvImage::write_strided_plane(const uint8_t* quads, int64_t top, int64_t k1, int64_t k2, const uint8_t* padding,
                                    uint8_t* to) const {
  const Layout &l1 = layouts_[1], &l2 = layouts_[2];
  const int64_t width = axes_[2].in, stride = axes_[2].stride, row_bytes = l2.length * kQuad;
  const Span rows = quads == nullptr ? Span{0, 0} : span_of(l1.begin(k1), axes_[1].stride, axes_[1].in, l1.length);
  const Span cols = span_of(l2.begin(k2), stride, width, l2.length);
  const auto copy = stride == 1 ? copy_quads<1> : stride == 2 ? copy_quads<2> : copy_quads<0>;
  write_padding(padding, rows.first * l2.length, to);
  for (int64_t i1 = rows.first; i1 < rows.last; ++i1) {
    uint8_t* const of_row = to + i1 * row_bytes;
    const int64_t row = l1.begin(k1) + i1 * axes_[1].stride - top;
    write_padding(padding, cols.first, of_row);
    if (cols.first < cols.last)
      copy(quads + (row * width + l2.begin(k2) + cols.first * stride) * kQuad, stride, cols.last - cols.first,
           of_row + cols.first * kQuad);
    write_padding(padding, l2.length - cols.last, of_row + cols.last * kQuad);
  }
  write_padding(padding, (l1.length - rows.last) * l2.length, to + rows.last * row_bytes);
}

void ConvImage::find_codes(Elements& elements) const {
  const int64_t length = axes_[2].in, stride = axes_[2].stride, count = layouts_[2].length;
  elements.first = 0;
  elements.last = count;
  for (int64_t i = 0; i < elements.used; ++i) {
    const int64_t begin = elements.begins[i];
    elements.first = std::max(elements.first, begin >= 0 ? 0 : divide_up(-begin, stride));
    elements.last = std::min(elements.last, length > begin ? divide_up(length - begin, stride) : 0);
  }
  if (elements.last <= elements.first) elements.first = elements.last = count;
}

// Writes all planes of the first two axes for one plane of the last axis. They are `step` planes apart.
void ConvImage::write_planes(Elements& elements, const ConvSource& source, bool is_first, int64_t step,
                             uint8_t* image) const {
  const Layout &l0 = layouts_[0], &l1 = layouts_[1], &l2 = layouts_[2];
  const int64_t row_bytes = l2.length * position_bytes_;
  uint8_t padding[kQuad];
  for (int64_t i = 0; i < kQuad; ++i) padding[i] = i < elements.used ? source.zp : uint8_t{0};
  const uint8_t* const written = is_first ? padding : nullptr;
  for (int64_t k0 = 0; k0 < l0.planes; ++k0)
    for (int64_t k1 = 0; k1 < l1.planes; ++k1) {
      const int64_t begin0 = l0.begin(k0), begin1 = l1.begin(k1);
      const auto [first, last] = span_of(begin1, axes_[1].stride, axes_[1].in, l1.length);
      uint8_t* to = image;
      for (int64_t i0 = 0; i0 < l0.length; ++i0, to += l1.length * row_bytes) {
        const int64_t in0 = begin0 + i0 * axes_[0].stride;
        if (in0 < 0 || in0 >= axes_[0].in) {
          write_padding(written, l1.length * l2.length, to);
          continue;
        }
        write_padding(written, first * l2.length, to);
        write_padding(written, (l1.length - last) * l2.length, to + last * row_bytes);
        for (int64_t i1 = first; i1 < last; ++i1) {
          const int64_t row = in0 * source.plane_step + (begin1 + i1 * axes_[1].stride) * axes_[2].in;
          for (int64_t i = 0; i < elements.used; ++i)
            elements.rows[i] = source.codes + elements.channels[i] * source.channel_step + row;
          write_quads(elements, source, padding, to + i1 * row_bytes);
        }
      }
      image += plane_bytes_ * step;
    }
}

void ConvImage::write_quads(const Elements& elements, const ConvSource& source, const uint8_t (&padding)[kQuad],
                            uint8_t* to) const {
  const int64_t length = axes_[2].in, stride = axes_[2].stride, count = elements.last - elements.first;
  const auto write_one = [&](int64_t position) {
    std::memcpy(to + position * kQuad, padding, kQuad);
    for (int64_t i = 0; i < elements.used; ++i) {
      const int64_t at = elements.begins[i] + position * stride;
      if (at >= 0 && at < length) to[position * kQuad + i] = elements.rows[i][at] ^ source.flip;
    }
  };
  for (int64_t position = 0; position < elements.first; ++position) write_one(position);
  for (int64_t position = elements.last; position < layouts_[2].length; ++position) write_one(position);
  if (count == 0) return;
  const uint8_t* rows[kQuad];
  for (int64_t i = 0; i < kQuad; ++i) {
    if (i >= elements.used) {
      rows[i] = elements.unused;
      continue;
    }
    rows[i] = elements.rows[i] + (elements.begins[i] + elements.first * stride);
    if (stride == 1) continue;
    uint8_t* copy = elements.strided + i * count;
    (stride == 2 ? copy_codes<2> : copy_codes<0>)(rows[i], stride, count, copy);
    rows[i] = copy;
  }
  interleave_(rows, count, source.flip, to + elements.first * kQuad);
}

}  // namespace dynq
