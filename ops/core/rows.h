// The rows of a tensor, each of which has one scale: the elements along the dimensions from the attribute `axis` on, or
// blocks of `block_size` elements along the last dimension.
#pragma once

#include "core/operator.h"

namespace dynq {

struct Rows {
  size_t axis;            // the first dimension of a row; with blocks, the last dimension
  int64_t count, cols;    // rows, and the elements of each
  Shape parameters = {};  // of one number for each row
};

// The attributes `axis` and `block_size`.
class RowAttributes {
 public:
  // Throws Error for invalid values. `op` is the operator's name for messages; it outlives this object.
  RowAttributes(const char* op, const Attributes& attributes);

  // Throws Error if the tensor does not have the axis, or if blocks do not divide its last dimension.
  Rows rows_of(const Shape& src) const;

 private:
  const char* op_;
  int64_t axis_, block_size_;
};

}  // namespace dynq
