// Heads of attention as codes of 8 bits. Each row of a head, its elements at one token, has a scale.
#pragma once

#include <memory>

#include "core/encodings.h"
#include "core/operator.h"
#include "kernels/elementwise.h"

namespace dynq {

struct HeadSizes {
  int64_t batches, heads, tokens, size;  // size: the elements of a head
};

// The dimensions of a tensor of a layout: [B, T, H * D], [B, H, T, D] or [B, H, D, T].
Shape shape_of(const HeadSizes& sizes, HeadLayout layout);

// Reads them from a shape; returns whether it fits the layout and the number of heads.
bool read_sizes(const Shape& shape, HeadLayout layout, int64_t heads, HeadSizes& sizes);

// The distances of adjacent elements in a tensor.
struct HeadStrides {
  HeadStrides(const HeadSizes& n, HeadLayout layout);

  int64_t at(int64_t batch, int64_t head, int64_t token) const {
    return batch * of_batch + head * of_head + token * of_token;
  }

  int64_t of_batch, of_head, of_token, of_element;
};

// Rows of codes. Code = round(x / scale), plus 128 if the codes are unsigned; scale = the largest magnitude / 127, or 1
// for 0. A NaN does not count in the largest magnitude; its code is the lowest one.
class HeadCodes {
 public:
  // `tensor`: float32, float16 or bfloat16.
  HeadCodes(Context& context, const Tensor& tensor, const HeadSizes& n, HeadLayout layout, CodeKind kind);

  const HeadSizes& sizes() const { return n_; }
  // The number of a row.
  int64_t row(int64_t batch, int64_t head, int64_t token) const { return strides_.at(batch, head, token); }
  int64_t stride() const { return strides_.of_token; }  // from a token of a head to the next, in rows
  // A row; kernels may read up to a whole quad.
  const uint8_t* codes(int64_t row) const { return codes_.get() + row * n_.size; }
  float scale(int64_t row) const { return scales_[static_cast<size_t>(row)]; }

 private:
  void quantize(const float* from, int64_t row, int64_t rows, CodeKind kind);

  HeadSizes n_;
  HeadStrides strides_;  // in rows
  std::unique_ptr<uint8_t[]> codes_;
  std::unique_ptr<float[]> scales_;
};

}  // namespace dynq
