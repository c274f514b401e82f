// AVX-512 F, BW, VL and DQ: sixteen lanes. simd/ has the kernels.
// Compiler options for x86_64: -mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mprefer-vector-width=512
// The tail of a row is one masked vector.
#include "kernels/simd/elementwise512.h"

namespace dynq {
namespace {

using V = Elementwise512;

#include "kernels/simd/table-inl.h"

// Uses the file before.
#include "kernels/simd/compressed-bytes-inl.h"

}  // namespace

extern const ElementwiseKernels kAvx512Kernels;
extern const CompressedKernels kAvx512Compressed;
constexpr ElementwiseKernels kAvx512Kernels = elementwise_kernels();
constexpr CompressedKernels kAvx512Compressed = with_half_bytes(compressed_kernels());

}  // namespace dynq
