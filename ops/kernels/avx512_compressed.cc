// Attention over codes with AVX-512 F, BW, VL and DQ: sixteen lanes. simd/ has the kernels.
// Compiler options for x86_64: -mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mprefer-vector-width=512
#include "kernels/simd/elementwise512.h"

namespace dynq {
namespace {

using V = Elementwise512;

#include "kernels/simd/compressed-inl.h"

// Uses the file before.
#include "kernels/simd/compressed-bytes-inl.h"

}  // namespace

extern const CompressedKernels kAvx512Compressed;
constexpr CompressedKernels kAvx512Compressed = with_half_bytes(compressed_kernels());

}  // namespace dynq
