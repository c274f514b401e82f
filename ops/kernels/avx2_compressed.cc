// Attention over codes with AVX2: eight lanes. simd/ has the kernels.
// Compiler options for x86_64: -mavx2 -mfma -mf16c
#include "kernels/simd/elementwise256.h"

namespace dynq {
namespace {

using V = Elementwise256;

#include "kernels/simd/compressed-inl.h"

// Uses the file before.
#include "kernels/simd/compressed-bytes-inl.h"

}  // namespace

extern const CompressedKernels kAvx2Compressed;
constexpr CompressedKernels kAvx2Compressed = with_half_bytes(compressed_kernels());

}  // namespace dynq
