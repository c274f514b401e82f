// Products of two joined terms as words of 16 bits: 254 * the first code + the second one. A panel of columns of the
// weights is widened to int16 once for all rows of a task.
#include <algorithm>

#include "core/parallel.h"
#include "core/product.h"
#include "kernels/dispatch.h"
#include "kernels/numbers.h"

namespace dynq {
namespace {

constexpr int64_t kPanelDepth = 256;  // k of a panel: 16 KB, half of the first-level cache
static_assert(kPanelDepth >= kMaxJoinedLength, "a panel has a group or more");
static_assert(int64_t{255} * 128 * 255 * kMaxJoinedLength <= INT32_MAX, "sums of words of any int8 fit int32");

// A row of words, in the order of pack_weights.
void join_row(const int8_t* first, const int8_t* second, int64_t depth, int16_t* to) {
  constexpr auto kRatio = static_cast<int>(kTermRatio);
  for (int64_t k = 0; k < depth; k += kQuad) {
    int16_t quad[kQuad];
    for (int64_t i = 0; i < kQuad; ++i) quad[i] = static_cast<int16_t>(kRatio * first[k + i] + second[k + i]);
    to[k] = quad[0];
    to[k + 1] = quad[2];
    to[k + 2] = quad[1];
    to[k + 3] = quad[3];
  }
}

}  // namespace

// A row of words has the bytes of two rows of codes.
void Product::prepare_words(Context& context) {
  const auto* src = static_cast<const int8_t*>(in_.src.data);
  const int64_t depth = product_.depth, rows = all_.rows / product_.terms;
  int16_t* const words = words_.allocate(rows * depth);
  all_.codes.data = reinterpret_cast<const uint8_t*>(words);
  all_.codes.stride = depth;
  const int64_t tasks = part_count(rows * depth, rows);
  run_tasks(context, tasks, [&](int64_t task) {
    for (int64_t row = rows * task / tasks; row < rows * (task + 1) / tasks; ++row) {
      const int8_t* first = src + row * 2 * depth;
      join_row(first, first + depth, depth, words + row * depth);
    }
  });
}

// `row` is one of codes. A panel has some groups of 32 columns.
void Product::run_words(const ProductBlock& block, int64_t row, int64_t col) const {
  const CompressedKernels& kernels = active_compressed();
  const int64_t size = product_.group_size(), depth = product_.depth, terms = product_.terms;
  const int64_t rows = block.rows / terms, all_rows = all_.rows / terms, at_once = kPanelDepth / size;
  const int64_t bits = product_.bits == 8 ? 8 : 4;  // as the kernel takes them
  const int64_t first_row = (block.codes.scales - all_.codes.scales) / (all_.codes.scale_groups * terms);
  const float* const bias = bias_of_terms_ + (block.columns.bias - all_.columns.bias);
  const bool is_float = dst_storage_.narrow == nullptr;
  alignas(64) int16_t panel[kPanelDepth * kMaxPanelColumns];
  Scratch<float, kMaxPanelColumns * kMaxPanelColumns> memory;
  for (int64_t c = 0; c < block.cols; c += kMaxPanelColumns) {
    const int64_t cols = std::min(kMaxPanelColumns, block.cols - c), at = row / terms * all_.cols + col + c;
    float* const dst = is_float ? static_cast<float*>(dst_) + at : memory.allocate(rows * kMaxPanelColumns);
    const int64_t stride = is_float ? all_.cols : kMaxPanelColumns;
    for (int64_t group = 0; group < all_.groups; group += at_once) {
      const int64_t groups = std::min(at_once, all_.groups - group), k = group * size;
      kernels.pack_weights(
          {block.weights.packed + c / kBlockColumns * block.weights.stride + k * kBlockColumns * bits / 8,
           block.weights.stride, bits, groups, size, cols,
           block.weights.zps == nullptr ? nullptr : block.weights.zps + group * block.weights.zps_stride + c,
           block.weights.zps_stride, block.weights.zp, panel});
      const auto* words = reinterpret_cast<const int16_t*>(block.codes.data) + k;
      PanelScores scores = {};
      scores.product = {words, depth, rows, size, cols, panel, 0, false, true};
      scores.groups = groups;
      scores.group_words = size;
      scores.group_panels = size * kMaxPanelColumns;
      scores.group_steps = all_rows;
      scores.group_scales = block.columns.scales_stride;
      scores.steps = steps_ + group * all_rows + first_row;
      scores.scales = block.columns.scales + group * block.columns.scales_stride + c;
      scores.scales_first = true;
      scores.adds = group > 0;
      scores.scores = dst;
      scores.score_stride = stride;
      kernels.panel_scores(scores);
    }
    for (int64_t r = 0; r < rows; ++r) {
      float* const of_row = dst + r * stride;
      for (int64_t i = 0; i < cols; ++i) store(of_row + i, load(of_row + i) + load(bias + c + i));
      if (!is_float) dst_storage_.narrow(of_row, element(dst_, dst_storage_, at + r * all_.cols), cols);
    }
  }
}

}  // namespace dynq
