// Elementwise kernels with AVX2, FMA and F16C: eight lanes. simd/ has the kernels.
// Compiler options for x86_64: -mavx2 -mfma -mf16c
#include "kernels/simd/elementwise256.h"

namespace dynq {
namespace {

using V = Elementwise256;

#include "kernels/simd/table-inl.h"

}  // namespace

extern const ElementwiseKernels kAvx2Kernels;
constexpr ElementwiseKernels kAvx2Kernels = elementwise_kernels();

}  // namespace dynq
