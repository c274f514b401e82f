// Elementwise operations with scales and zero points of groups: cuts tensors into blocks for the kernels.
//
// Each struct of work below names the tensors and the kernels of one family. `kernels` and `portable` are rows of a
// table: one kernel for each of Parameters.
#pragma once

#include "core/granularity.h"
#include "kernels/elementwise.h"

namespace dynq {

// The tensors of an operation. Elements in a format that the kernels do not take are converted block by block.
struct Elementwise {
  Tensor src;
  void* dst;
  Type dst_type;
  Tensor scales;  // float32, or a 16-bit float
  Tensor zps;     // absent, one element, or as many as scales
};

struct QuantizeWork : Elementwise {
  const QuantizeKernel* kernels;           // for narrow zero points (elementwise.h)
  const QuantizeKernel* portable;          // for all others
  const QuantizeKernel* direct = nullptr;  // for src as it is stored, narrow zero points and safe scales; may be null
};

struct DequantizeWork : Elementwise {
  const DequantizeKernel* kernels;
  const DequantizeKernel* portable;
  const DequantizeKernel* direct = nullptr;  // for codes and dst as they are stored, and finite scales; may be null
};

struct FakeQuantizeWork : Elementwise {
  const FakeQuantizeKernel* kernels;
  float low, high;  // codes
};

// Runs the kernels on the whole tensor of shape `src`, in tasks on the threads of `context`.
void run_grouped(const Shape& src, const Groups& groups, const QuantizeWork& work, Context& context);
void run_grouped(const Shape& src, const Groups& groups, const DequantizeWork& work, Context& context);
void run_grouped(const Shape& src, const Groups& groups, const FakeQuantizeWork& work, Context& context);

}  // namespace dynq
