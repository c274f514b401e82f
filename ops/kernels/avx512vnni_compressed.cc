// Attention over codes with AVX-512 VNNI: sixteen lanes. simd/ has the kernels.
// Compiler options for x86_64: -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni -mfma
#include "kernels/simd/elementwise512.h"

namespace dynq {
namespace {

struct V : Elementwise512 {
  static I dot_words(I sums, I a, I b) {
    ORT_DYNQ_ACCUMULATE("vpdpwssd", "v", _mm512_dpwssd_epi32, sums, a, b);
    return sums;
  }
  static I dot_bytes(I sums, I codes, I weights) {
    ORT_DYNQ_ACCUMULATE("vpdpbusd", "v", _mm512_dpbusd_epi32, sums, codes, weights);
    return sums;
  }
  static I add_bytes(I sums, I codes, I b) { return dot_bytes(sums, codes, b); }
  static I sums_of_bytes(I sums) { return sums; }
};

#include "kernels/simd/compressed-inl.h"

// Uses the file before.
#include "kernels/simd/compressed-bytes-inl.h"

}  // namespace

extern const CompressedKernels kAvx512VnniCompressed;
constexpr CompressedKernels kAvx512VnniCompressed = with_bytes(compressed_kernels());

}  // namespace dynq
