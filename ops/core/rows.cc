#include "core/rows.h"

namespace dynq {

RowAttributes::RowAttributes(const char* op, int64_t axis, int64_t block_size)
    : op_(op), axis_(axis), block_size_(block_size) {
  if (block_size_ < 0)
    throw Error(std::string(op) + ": block_size is " + std::to_string(block_size_) + ", expected at least 0");
  if (block_size_ > 0 && axis_ != -1)
    throw Error(std::string(op) + ": axis is " + std::to_string(axis_) + " for block_size " +
                std::to_string(block_size_) + ", expected -1");
}

Rows RowAttributes::rows_of(const Shape& src) const {
  const auto rank = static_cast<int64_t>(src.rank), last = rank - (rank > 0);
  if (axis_ < -rank || axis_ > last)
    throw Error(std::string(op_) + ": axis is " + std::to_string(axis_) + ", expected " + std::to_string(-rank) +
                " to " + std::to_string(last) + " for src of shape " + src.text());
  Rows rows = {static_cast<size_t>(axis_ < 0 ? axis_ + rank : axis_), 1, 1, src};
  for (size_t i = 0; i < src.rank; ++i) {
    (i < rows.axis ? rows.count : rows.cols) *= src.dims[i];
    if (i >= rows.axis) rows.parameters.dims[i] = 1;
  }
  if (block_size_ == 0) return rows;
  if (rows.cols % block_size_ != 0)
    throw Error(std::string(op_) + ": block_size is " + std::to_string(block_size_) +
                ", expected a divisor of the last dimension of src, " + std::to_string(rows.cols));
  rows.blocks = rows.cols / block_size_;
  rows.count *= rows.blocks;
  rows.cols = block_size_;
  rows.parameters.dims[rows.axis] = rows.blocks;
  return rows;
}

}  // namespace dynq
