// The input of a convolution as quads of codes: an image in which the codes that are multiplied by one weight are
// adjacent for all output positions, whatever the strides are.
#pragma once

#include <cstdint>
#include <vector>

#include "core/encodings.h"
#include "kernels/convolutions.h"

namespace dynq {

// A convolution has three spatial axes; unused ones have length 1.
constexpr int kSpatialAxes = 3;
// Up to this many output channels of a group are computed one by one.
constexpr int64_t kFewOutputs = 4;

struct ConvAxis {
  int64_t in = 1, out = 1, kernel = 1, stride = 1, dilation = 1;
  int64_t pad = 0;  // leading
};

// A part of the output positions.
struct ConvTile {
  int64_t first[kSpatialAxes], count[kSpatialAxes];
};

// Where the codes of one sample and group are.
struct ConvSource {
  const uint8_t* codes;  // [channels, in, in, in]; rows of the last axis and these of the second one are adjacent
  int64_t channel_step;  // from a channel to the next
  int64_t plane_step;    // from an element of the first axis to the next
  uint8_t flip;          // 0x80 makes uint8 codes of int8 ones
  uint8_t zp;            // of the uint8 codes
};

// The image of one tile.
//
// Along an axis, a kernel position reads input positions that are `stride` apart. The image has a plane for each
// remainder modulo `stride`, so that these positions are adjacent and kernel positions share planes. If kernel
// positions are so far apart that they would share too little, each has its own plane. The same applies if shared rows
// would exceed twice the length of an output row, because kernels also compute the positions between rows. Dimensions:
// [quads][planes of 3 axes][lengths of 3 axes][4].
//
// Quads along the width have a plane for each kernel position of a quad. They overlap instead if the width has dilation
// 1 and stride 1 (or 2, with few outputs), and the output is not narrower than the kernel: then the image has single
// codes, and the quad of a position is the four codes from there on. Rows have a multiple of `stride` codes.
// Dimensions: [channels][planes of 2 axes][lengths of 3 axes][stride].
class ConvImage {
 public:
  // `channels` and `outputs` are the input and output channels of a group.
  ConvImage(const ConvAxis (&axes)[kSpatialAxes], QuadAxis quad_axis, int64_t channels, int64_t outputs,
            const ConvTile& tile);

  int64_t bytes() const { return units_ * unit_bytes_; }
  int64_t position_bytes() const { return position_bytes_; }
  // The fields of ConvInput.
  int64_t run() const { return form_ == kChannelQuads ? units_ : 1; }
  int64_t run_bytes() const { return unit_bytes_; }
  int64_t kernel_rows() const;

  // For each quad of packed weights, the offset of its quad of codes for the first position, in bytes.
  std::vector<int64_t> offsets() const;
  // For each quad of packed weights, 1 for a weight and 0 for padding.
  std::vector<int8_t> ones() const;

  // The positions from the first to the last one, including positions between rows, which the output does not have.
  int64_t positions() const;
  int64_t row_positions() const { return layouts_[2].length; }
  // The position of the first output element of a row, up to one row after the tile.
  int64_t position(int64_t i0, int64_t i1) const { return (i0 * layouts_[1].length + i1) * layouts_[2].length; }

  // Computes what write() needs for any group. `plane_step`: of the source.
  void prepare(int64_t plane_step);
  // Writes bytes() bytes. `is_first`: writes the padding, too, which all groups share.
  void write(const ConvSource& source, bool is_first, uint8_t* image) const;

 private:
  enum Form { kChannelQuads, kWidthQuads, kOverlapping };

  struct Layout {
    int64_t stride, dilation;
    bool shares;          // whether kernel positions share planes
    int64_t first_begin;  // of plane 0
    int64_t planes;
    int64_t length;  // of a plane

    // The input position of the first element of a plane.
    int64_t begin(int64_t plane) const { return first_begin + (shares ? plane * dilation % stride : plane * dilation); }
    // The plane of kernel position k, and its first element there.
    int64_t plane(int64_t k) const { return shares ? k % planes : k; }
    int64_t shift(int64_t k) const { return shares ? k * dilation / stride : 0; }
  };

  struct Span {
    int64_t first, last;
  };

  // Rows of codes of a channel, if quads overlap: offsets in the channel's codes and in its planes of the image.
  struct Rows {
    int64_t from, to, count;
  };

  // The elements of the quads of a row: element i of position p is code begins[i] + p * stride of rows[i], a row of
  // channels[i]. Elements from `used` on are 0.
  struct Elements {
    int64_t used = 0;
    int64_t channels[kQuad], begins[kQuad];
    const uint8_t* rows[kQuad];
    int64_t first, last;    // positions without padding
    const uint8_t* unused;  // codes of unused elements
    uint8_t* strided;       // memory for codes that are not adjacent in their row
  };

  // From the first quad of an image to that of a kernel position, for the first position of the output. If quads are
  // along the width, k2 is 0.
  int64_t kernel_offset(int64_t k0, int64_t k1, int64_t k2) const;
  static Layout layout(const ConvAxis& axis, int64_t first, int64_t count, bool shares, bool has_gaps);
  static Span span_of(int64_t begin, int64_t stride, int64_t in, int64_t length);
  void write_rows(const ConvSource& source, bool is_first, uint8_t* image) const;
  // The codes of a position are adjacent. So this reads each row once, if quads along the width do not overlap.
  void write_kernels(const ConvSource& source, bool is_first, uint8_t* image) const;
  void write_kernel_plane(const ConvSource& source, bool is_first, int64_t begin0, int64_t begin1, uint8_t* codes,
                          uint8_t* image) const;
  void write_kernel_row(const ConvSource& source, const uint8_t* row, uint8_t* codes, uint8_t* to) const;
  // Whether write_strided() writes the image: quads along the channels, whole rows, and strides that leave out few
  // codes.
  bool has_strided_quads() const;
  // Makes quads of all codes of adjacent rows, and copies those that each plane has.
  void write_strided(const ConvSource& source, bool is_first, uint8_t* image) const;
  void write_strided_plane(const uint8_t* quads, int64_t top, int64_t k1, int64_t k2, const uint8_t* padding,
                           uint8_t* to) const;
  void interleave_rows(const ConvSource& source, int64_t channel, int64_t first, int64_t count, const uint8_t* unused,
                       uint8_t* quads) const;
  Span rows_of_planes() const;
  void find_codes(Elements& elements) const;
  void write_planes(Elements& elements, const ConvSource& source, bool is_first, int64_t step, uint8_t* image) const;
  void write_quads(const Elements& elements, const ConvSource& source, const uint8_t (&padding)[kQuad],
                   uint8_t* to) const;

  const ConvAxis (&axes_)[kSpatialAxes];
  Form form_;
  int64_t channels_, width_quads_;
  ConvTile tile_;
  Layout layouts_[kSpatialAxes];
  int64_t units_;           // the first dimension
  int64_t planes_;          // of the last axis
  int64_t position_bytes_;  // from one position to the next
  int64_t plane_bytes_, unit_bytes_;
  std::vector<Rows> rows_;  // where quads overlap
  int64_t row_codes_ = 0;   // the codes of each of these rows
  InterleaveKernel interleave_;
};

}  // namespace dynq
