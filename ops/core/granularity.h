// Which elements share a scale: reads and checks the attributes qtype, axis, block_size and
// group_shape.
#pragma once

#include "core/operator.h"

namespace dynq {

struct Groups {
  Shape counts;      // the number of scales along each dimension of src; has src's rank
  size_t axis = 0;   // if size is not 0: the dimension with a last group that may be shorter
  int64_t size = 0;  // if not 0: the length of every other group along axis; if 0, all groups have the same length
};

class Granularity {
 public:
  // Throws Error for an invalid value. `op` is the operator's name for messages.
  Granularity(const char* op, const Attributes& attributes);

  // The groups of one run. Throws Error if the shape of scales or zps does not fit src's shape.
  Groups groups(const Shape& src, const Shape& scales, const Tensor& zps) const;

 private:
  enum Kind { kPerTensor, kPerChannel, kPerGroup, kAuto };

  void read_group_shape(const std::vector<int64_t>& sizes, const std::string& qtype);
  Kind kind_of(const Shape& scales) const;
  size_t checked_axis(const Shape& src) const;
  void set_channels(const Shape& src, const Shape& scales, Groups& groups) const;
  void set_blocks(const Shape& src, const Shape& scales, Groups& groups) const;
  void check_blocks_along(const Shape& src, const Shape& scales, const Groups& groups, size_t dimension) const;
  [[noreturn]] void fail(const std::string& what) const;

  const char* op_;
  Kind kind_;
  int64_t axis_;
  int64_t block_size_;  // 0: not given
  Shape group_shape_;   // of rank 0: not given
};

}  // namespace dynq
