#include "core/head_codes.h"

#include <algorithm>
#include <cstring>

#include "core/formats.h"
#include "core/parallel.h"
#include "core/rounding.h"
#include "core/scratch.h"
#include "kernels/dispatch.h"
#include "kernels/products.h"

namespace dynq {
namespace {

constexpr int64_t kRowsAtOnce = 512;          // their parameters are on the stack
constexpr int64_t kConvertedElements = 8192;  // at once: they stay in the first-level cache
constexpr int64_t kTokensAtOnce = 16;         // of a cache line of floats
constexpr int64_t kTokensOfTask = 64;

HeadStrides in_rows(const HeadSizes& n, HeadLayout layout) {
  const HeadSizes of_one_element = {n.batches, n.heads, n.tokens, 1};
  return {of_one_element, layout == HeadLayout::kTokensFirst ? layout : HeadLayout::kHeadsFirst};
}

}  // namespace

Shape shape_of(const HeadSizes& n, HeadLayout layout) {
  if (layout == HeadLayout::kTokensFirst) return {3, {n.batches, n.tokens, n.heads * n.size}};
  if (layout == HeadLayout::kHeadsFirst) return {4, {n.batches, n.heads, n.tokens, n.size}};
  return {4, {n.batches, n.heads, n.size, n.tokens}};
}

bool read_sizes(const Shape& shape, HeadLayout layout, int64_t heads, HeadSizes& sizes) {
  if (layout == HeadLayout::kTokensFirst) {
    if (shape.rank != 3 || shape.dims[2] % heads != 0) return false;
    sizes = {shape.dims[0], heads, shape.dims[1], shape.dims[2] / heads};
    return true;
  }
  const size_t tokens = layout == HeadLayout::kHeadsFirst ? 2 : 3;
  if (shape.rank != 4 || shape.dims[1] != heads) return false;
  sizes = {shape.dims[0], heads, shape.dims[tokens], shape.dims[5 - tokens]};
  return true;
}

HeadStrides::HeadStrides(const HeadSizes& n, HeadLayout layout)
    : of_batch(n.heads * n.tokens * n.size),
      of_head(layout == HeadLayout::kTokensFirst ? n.size : n.tokens * n.size),
      of_token(layout == HeadLayout::kTokensFirst  ? n.heads * n.size
               : layout == HeadLayout::kHeadsFirst ? n.size
                                                   : 1),
      of_element(layout == HeadLayout::kElementsFirst ? n.tokens : 1) {}

HeadCodes::HeadCodes(Context& context, const Tensor& tensor, const HeadSizes& n, HeadLayout layout, CodeKind kind)
    : n_(n), strides_(in_rows(n, layout)) {
  const int64_t rows = n.batches * n.heads * n.tokens;
  codes_ = memory<uint8_t>(rows * n.size + kQuad);
  std::memset(codes_.get() + rows * n.size, 0, kQuad);
  scales_ = memory<float>(rows);
  const FloatReader reader(tensor);
  if (layout != HeadLayout::kElementsFirst) {
    const int64_t unit = std::max<int64_t>(kTaskElements / std::max<int64_t>(n.size, 1), 1);
    const int64_t at_once = std::clamp<int64_t>(kConvertedElements / std::max<int64_t>(n.size, 1), 1, kRowsAtOnce);
    run_tasks(context, divide_up(rows, unit), [&](int64_t task) {
      Scratch<float, kConvertedElements> buffer;
      for (int64_t row = task * unit, end = std::min(row + unit, rows); row < end; row += at_once) {
        const int64_t count = std::min(at_once, end - row);
        quantize(reader.read(row * n.size, count * n.size, buffer), row, count, kind);
      }
    });
    return;
  }
  const int64_t parts = divide_up(n.tokens, kTokensOfTask);
  run_tasks(context, n.batches * n.heads * parts, [&](int64_t task) {
    const int64_t head = task / parts, first = task % parts * kTokensOfTask;
    Scratch<float, kTokensAtOnce> buffer;
    Scratch<float, kConvertedElements> rows_of_tokens;
    for (int64_t token = first, end = std::min(first + kTokensOfTask, n.tokens); token < end; token += kTokensAtOnce) {
      const int64_t count = std::min(kTokensAtOnce, end - token);
      float* const to = rows_of_tokens.allocate(count * n.size);
      for (int64_t i = 0; i < n.size; ++i) {
        const float* from = reader.read((head * n.size + i) * n.tokens + token, count, buffer);
        for (int64_t j = 0; j < count; ++j) to[j * n.size + i] = load(from + j);
      }
      quantize(to, head * n.tokens + token, count, kind);
    }
  });
}

void HeadCodes::quantize(const float* from, int64_t row, int64_t rows, CodeKind kind) {
  const ElementwiseKernels& table = active_kernels();
  float lows[kRowsAtOnce];
  int32_t zero_points[kRowsAtOnce];
  float* const scales = scales_.get() + row;
  std::fill_n(scales, rows, 0.0f);
  std::fill_n(zero_points, rows, kind == kU8 ? 128 : 0);
  table.row_ranges[kAbsMax](from, rows, n_.size, n_.size, lows, scales);
  for (int64_t i = 0; i < rows; ++i) {
    scales[i] /= 127.0f;
    if (scales[i] == 0) scales[i] = 1.0f;
  }
  QuantizeBlock block = {};
  block.rows = rows;
  block.cols = block.stride = n_.size;
  block.src = from;
  block.dst = codes_.get() + row * n_.size;
  block.scales = scales;
  block.zps = zero_points;
  table.quantize[kOnnx][kind][kPerRow](block);
}

}  // namespace dynq
