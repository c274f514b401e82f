// Words of the operators with weights of 12 bits: integers that stand for floats. Sums of products of kMaxProducts
// words are exact in int32. kernels/portable_compressed.cc has the arithmetic.
#pragma once

#include <atomic>
#include <memory>

#include "core/operator.h"
#include "core/rounding.h"
#include "core/scratch.h"
#include "kernels/compressed.h"

namespace dynq {

constexpr float kLargestOfSrc = 4095;  // of an activation
constexpr int64_t kLargestWeight = 2047;
constexpr int64_t kWordPair = 2;  // of each two rows of a matrix, a panel has the pairs of all columns
static_assert(static_cast<int64_t>(kLargestOfSrc) * kLargestWeight * kMaxProducts <= INT32_MAX, "sums are exact");

// The check of the weights of a node: sums of larger words may not fit int32.
class WordRange {
 public:
  // Throws Error if input number `weight`, of int16, has a larger word. A constant is checked once.
  void check(const char* op, Context& context, size_t weight) const;

 private:
  mutable std::atomic<bool> was_checked_ = false;
};

// Columns of a packed matrix, from a panel on: weights, [panels, ceil(depth / 2), kMaxPanelColumns, 2], and scales.
struct WordColumns {
  const int16_t* panels;
  const float* scales;
  int64_t count;
};

// Rows of floats as words: each block of kMaxProducts elements has a step of its own.
class WordBlocks {
 public:
  WordBlocks(int64_t rows, int64_t depth);

  // Makes words of rows [begin, end) of src, [rows, depth].
  void quantize(const float* src, int64_t begin, int64_t end) const;

  // Adds to dst, rows of `stride`, for `rows` rows from `row` on, block after block: float(sum) * scale * step.
  void multiply(int64_t row, int64_t rows, const WordColumns& columns, float* dst, int64_t stride) const;

 private:
  int64_t size(int64_t block) const { return block < whole_ ? kMaxProducts : depth_ - block * kMaxProducts; }

  const int64_t rows_, depth_;
  const int64_t whole_, blocks_;          // the blocks, without one with fewer elements, and with it
  const AlignedArray<int16_t> words_;     // [blocks, rows, kMaxProducts]
  const std::unique_ptr<float[]> steps_;  // [blocks, rows]
};

}  // namespace dynq
