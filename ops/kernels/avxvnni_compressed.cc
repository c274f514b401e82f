// Attention over codes with AVX-VNNI: eight lanes. simd/ has the kernels.
// Compiler options for x86_64: -mavx2 -mfma -mf16c -mavxvnni
#include "kernels/simd/elementwise256.h"

namespace dynq {
namespace {

#include "kernels/simd/dotavxvnni-inl.h"

struct V : Elementwise256 {
  static I dot_words(I sums, I codes, I weights) {
    ORT_DYNQ_DOT(dpwssd);
    return sums;
  }
  static I dot_bytes(I sums, I codes, I weights) {
    ORT_DYNQ_DOT(dpbusd);
    return sums;
  }
  static I add_bytes(I sums, I codes, I b) { return dot_bytes(sums, codes, b); }
  static I sums_of_bytes(I sums) { return sums; }
};

#include "kernels/simd/compressed-inl.h"

// Uses the file before.
#include "kernels/simd/compressed-bytes-inl.h"

}  // namespace

extern const CompressedKernels kAvxVnniCompressed;
constexpr CompressedKernels kAvxVnniCompressed = with_bytes(compressed_kernels());

}  // namespace dynq
