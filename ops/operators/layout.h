// From a tensor and its groups to the blocks that kernels take.
#pragma once

#include "kernels/kernels.h"
#include "operators/granularity.h"

namespace dynq {

// What the affine kernels want to know besides scales and zero points.
struct Affine {
  float low, high, nan;
  float zero;  // as in Block; integer zero points are given with it added, as codes are stored
};

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
