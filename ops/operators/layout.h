// From a tensor and its groups to the blocks that kernels take.
#pragma once

#include "kernels/kernels.h"
#include "operators/granularity.h"

namespace dynq {

// What the affine kernels want to know besides scales and zero points.
struct Affine {
  float low, high, nan, zero;
  bool flip = false;            // codes are stored as those of the other 8-bit type, 128 away,
  float zero_point_offset = 0;  // and zero points are given so: this is taken off them
};

// Codes of int8 as uint8 that are 128 larger, or the other way round.
inline void flip(uint8_t* codes, int64_t count) {
  for (int64_t i = 0; i < count; ++i) codes[i] ^= 0x80;
}

// An elementwise operation whose parameters are shared by groups: src and dst have one shape, scales and zps another.
struct GroupedWork {
  const void* src;
  size_t src_size;  // bytes of an element
  void* dst;
  size_t dst_size;
  const float* scales;
  Tensor zps;                      // absent, one element, or as many as scales
  const Kernel* kernels;           // by Parameters
  const Kernel* portable;          // the same for zero points that are not narrow
  const Affine* affine = nullptr;  // zero points are floats then, and all are narrow
};

// Runs the kernels over the whole tensor, in tasks that `context` may spread over threads.
void run_grouped(const Shape& src, const Groups& groups, const GroupedWork& work, Context& context);

}  // namespace dynq
