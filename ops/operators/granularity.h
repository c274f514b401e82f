// Which elements share a scale: the attributes qtype, axis and block_size, and the checks of what they ask for.
#pragma once

#include "operators/operator.h"

namespace dynq {

// The scale's shape, spread out to src's rank: along each dimension, so many elements in turn share one scale.
struct Groups {
  Shape counts;      // scales along each dimension of src
  size_t axis = 0;   // the dimension whose last group may be shorter than the others,
  int64_t size = 0;  // if this, the length of the others, is not 0
};

class Granularity {
 public:
  // Reads qtype, axis and block_size; throws Error for a value that there is not.
  Granularity(const char* op, const Attributes& attributes);

  // Throws Error unless scales and zps have shapes that fit src's.
  Groups groups(const Shape& src, const Shape& scales, const Tensor& zps) const;

 private:
  enum Kind { kPerTensor, kPerChannel, kPerGroup, kAuto };

  Kind kind_of(const Shape& scales) const;
  size_t checked_axis(const Shape& src) const;
  [[noreturn]] void fail(const std::string& what) const;

  const char* op_;
  Kind kind_;
  int64_t axis_;
  int64_t block_size_;
};

}  // namespace dynq
