// Elementwise kernels with AVX-512 F, BW, VL and DQ: sixteen lanes. simd/ has the kernels.
// Compiler options for x86_64: -mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mprefer-vector-width=512
// The tail of a row is one masked vector.
#include "kernels/simd/elementwise512.h"

namespace dynq {
namespace {

using V = Elementwise512;

#include "kernels/simd/table-inl.h"

}  // namespace

extern const ElementwiseKernels kAvx512Kernels;
constexpr ElementwiseKernels kAvx512Kernels = elementwise_kernels();

}  // namespace dynq
