// Elementwise operations whose scales and zero points are shared by groups: cuts tensors into blocks for the kernels.
//
// Each struct of work below names the tensors and the kernels of one family. `zps` is absent, has one element or has as
// many elements as `scales`. `kernels` and `portable` are rows of a table: one kernel for each of Parameters.
#pragma once

#include "core/granularity.h"
#include "kernels/kernels.h"

namespace dynq {

struct QuantizeWork {
  const float* src;
  void* dst;
  const float* scales;
  Tensor zps;
  const QuantizeKernel* kernels;   // for narrow zero points (kernels.h)
  const QuantizeKernel* portable;  // for all others
};

struct DequantizeWork {
  const void* src;
  float* dst;
  const float* scales;
  Tensor zps;
  const DequantizeKernel* kernels;
  const DequantizeKernel* portable;
};

// What the affine kernels need besides scales and zero points: the fields of AffineBlock.
struct AffineConstants {
  float low, high;
  float nan_code;
  bool integer_codes;
  float code_offset;
  bool wraps;
};

struct AffineWork {
  const float* src;
  void* dst;
  size_t dst_size;  // bytes of an element
  const float* scales;
  Tensor zps;  // integer zero points are given as codes are stored: with code_offset added
  const AffineKernel* kernels;
  AffineConstants constants;
};

// Runs the kernels on the whole tensor of shape `src`, in tasks on the threads of `context`.
void run_grouped(const Shape& src, const Groups& groups, const QuantizeWork& work, Context& context);
void run_grouped(const Shape& src, const Groups& groups, const DequantizeWork& work, Context& context);
void run_grouped(const Shape& src, const Groups& groups, const AffineWork& work, Context& context);

}  // namespace dynq
