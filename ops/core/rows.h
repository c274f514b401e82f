// The rows of a tensor, each of which has one scale: the elements along the dimensions from the attribute `axis` on, or
// blocks of `block_size` elements along the last dimension.
#pragma once

#include "core/parallel.h"

namespace dynq {

// Rows longer than kLongRow are split into parts, unless there are at least kFewRows of them.
constexpr int64_t kLongRow = 4 * kTaskElements, kFewRows = 8;
constexpr int64_t kMaxParts = 256;  // of one row

// Elements of short rows that are processed together. As floats they fill half of a first-level cache.
constexpr int64_t kBatchElements = 4096;

struct Rows {
  size_t axis;            // the first dimension of a row; with blocks, the last dimension
  int64_t count, cols;    // rows, and the elements of each
  Shape parameters = {};  // of one number for each row
  int64_t blocks = 1;     // along the last dimension; 1 without blocks
};

// Whether rows are split into parts.
constexpr bool are_split(int64_t rows, int64_t cols) { return cols > kLongRow && rows < kFewRows; }

// The parts of a long row; their sizes but for the last are multiples of 64.
struct Parts {
  explicit Parts(int64_t cols_) : cols(cols_), count(part_count(cols_, kMaxParts)) {}
  int64_t begin(int64_t part) const { return part == count ? cols : cols * part / count / 64 * 64; }
  int64_t size(int64_t part) const { return begin(part + 1) - begin(part); }

  int64_t cols, count;
};

// The attributes `axis` and `block_size`.
class RowAttributes {
 public:
  // Throws Error for invalid values. `op` is the operator's name for messages; it outlives this object.
  RowAttributes(const char* op, int64_t axis, int64_t block_size);
  RowAttributes(const char* op, const Attributes& attributes)
      : RowAttributes(op, attributes.integer("axis", -1), attributes.integer("block_size", 0)) {}

  bool has_blocks() const { return block_size_ > 0; }

  // Throws Error if the tensor does not have the axis, or if blocks do not divide its last dimension.
  Rows rows_of(const Shape& src) const;

 private:
  const char* op_;
  int64_t axis_, block_size_;
};

}  // namespace dynq
