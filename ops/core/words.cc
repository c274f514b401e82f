#include "core/words.h"

#include <algorithm>

#include "kernels/dispatch.h"
#include "kernels/numbers.h"

namespace dynq {

void WordRange::check(const char* op, Context& context, size_t weight) const {
  const Tensor tensor = context.input(weight);
  if (!was_checked_) {
    const auto* const words = static_cast<const int16_t*>(tensor.data);
    const int64_t count = tensor.shape.elements();
    int16_t low = 0, high = 0;
    for (int64_t i = 0; i < count; ++i) {
      low = std::min(low, load(words + i));
      high = std::max(high, load(words + i));
    }
    if (low < -kLargestWeight || high > kLargestWeight)
      throw Error(std::string(op) + ": weight has the element " + std::to_string(low < -kLargestWeight ? low : high) +
                  ", expected " + std::to_string(-kLargestWeight) + " to " + std::to_string(kLargestWeight));
  }
  if (context.is_constant(weight)) was_checked_ = true;
}

WordBlocks::WordBlocks(int64_t rows, int64_t depth)
    : rows_(rows),
      depth_(depth),
      whole_(depth / kMaxProducts),
      blocks_(divide_up(depth, kMaxProducts)),
      words_(blocks_ * rows * kMaxProducts),
      steps_(memory<float>(blocks_ * rows)) {}

void WordBlocks::quantize(const float* src, int64_t begin, int64_t end) const {
  const int64_t rows = end - begin;
  for (int64_t block = 0; block < blocks_; ++block) {
    const int64_t at = block * rows_ + begin, count = size(block);
    int16_t* const to = words_.get() + at * kMaxProducts;
    active_compressed().quantize_words({src + begin * depth_ + block * kMaxProducts, depth_, nullptr, rows, count, to,
                                        kMaxProducts, steps_.get() + at, kLargestOfSrc});
    for (int64_t row = 0; row < rows && count % kWordPair != 0; ++row) to[row * kMaxProducts + count] = 0;
  }
}

void WordBlocks::multiply(int64_t row, int64_t rows, const WordColumns& columns, float* dst, int64_t stride) const {
  PanelScores scores = {};
  scores.product.word_stride = kMaxProducts;
  scores.product.rows = rows;
  scores.product.cols = columns.count;
  scores.product.panel_stride = round_up(depth_, kWordPair) * kMaxPanelColumns;
  scores.product.is_stored = true;
  scores.group_words = rows_ * kMaxProducts;
  scores.group_panels = kMaxProducts * kMaxPanelColumns;
  scores.group_steps = rows_;
  scores.scales = columns.scales;
  scores.scales_first = scores.adds = true;
  scores.scores = dst;
  scores.score_stride = stride;
  const auto add = [&](int64_t block, int64_t blocks) {
    scores.product.words = words_.get() + (block * rows_ + row) * kMaxProducts;
    scores.product.panels = columns.panels + block * scores.group_panels;
    scores.product.depth = size(block);
    scores.groups = blocks;
    scores.steps = steps_.get() + block * rows_ + row;
    active_compressed().panel_scores(scores);
  };
  if (whole_ > 0) add(0, whole_);
  if (whole_ < blocks_) add(whole_, 1);
}

}  // namespace dynq
