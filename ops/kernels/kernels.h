// What a kernel is asked to do, and the table of kernels of one instruction set.
//
// A kernel works on a block: `rows` runs of `cols` adjacent elements, `stride` elements apart, with one scale and one
// zero point either for each row or for each column. operators/layout.h cuts every tensor into such blocks; nothing
// here knows ONNX. Files of one instruction set include this header and <immintrin.h> and nothing else: an inline
// function of the standard library compiled for AVX-512 could become the copy that every other file is linked to.
//
// The arithmetic, stated once (portable.cc is its plain form, and the definition of correct):
//
//   quantize, kOnnx     saturate(round(x / scale) + zp)        divide, round half to even, add in integers
//   quantize, kOneDnn   saturate(round(x * (1 / scale) + zp))  every step rounded to float32
//   dequantize          float(code - zp) * scale               the difference exact, then rounded once
//
// A NaN quotient becomes the lowest code. The affine kernels are exporters' chains of Div, Round, Add and Clip, every
// step in float32 (t is x / scale, x * (1 / scale) or, the scale being an inverse one, x * scale):
//
//   code   kRoundThenAdd  clip(round(t) + zp, low, high)   kAddThenRound  round(clip(t + zp, low, high))
//          kNoAdd         clip(round(t), low, high)         there is no zero point: -0 stays -0
//          a NaN is replaced by `nan`; unless `zero` is -0, codes are integers: digits are cut off and `zero` is
//          added, which makes +0 of -0, or 128 more or less where codes are stored as the other 8-bit type
//   float  (code - zp) * scale, or / scale where that is an inverse one
//
// What an integer matrix product has summed up becomes floats (row is the scale and zero point of what was multiplied,
// column those of the weights; column_sum is that of the weights):
//
//   exact = acc - row_zp * column_sum                       in int32, which wraps
//   dst   = real(exact) * (row_scale * column_scale) + bias kScalesFirst, else (real * row) * column or the other way
//
// Nothing is contracted into a fused multiply-add unless written as one.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dynq {

enum Arithmetic { kOnnx, kOneDnn, kArithmetics };
enum CodeType { kU8, kS8, kCodeTypes };
enum Quotient { kDivide, kMultiplyReciprocal, kMultiply, kQuotients };
enum Order { kRoundThenAdd, kAddThenRound, kNoAdd, kOrders };
enum AffineTarget { kToU8, kToS8, kToFloat, kAffineTargets };
enum ScaleOrder { kScalesFirst, kRowFirst, kColumnFirst, kScaleOrders };
enum Parameters { kPerRow, kPerColumn, kParameterKinds };

// Zero points of larger magnitude are left to the portable kernels. Within it a rounded quotient, saturated to 16 bits,
// plus the zero point saturates to 8 bits just as the exact sum does; and code - zp is exact in float32.
constexpr int32_t kNarrowZeroPoint = 1 << 14;

// Quotients are clamped to this from above before they are rounded: far beyond every code that a narrow zero point
// can reach, and within int32.
constexpr float kQuotientBound = 8388608.0f;  // 2^23

// Within these bounds x / scale can be computed as x * (1 / scale) and one exact correction (vector_kernels.h).
constexpr float kSmallestSafeScale = 8.6736174e-19f;  // 2^-60
constexpr float kLargestSafeScale = 1.1529215e18f;    // 2^60

// Clips and float zero points up to this leave a quotient of kQuotientBound clipped as any larger one.
constexpr float kLargestSafeClip = 65536.0f;

// The most scales that a kernel is given at a time: it keeps what it prepares of them on its stack.
constexpr int64_t kMaxParameters = 4096;

// Tensors lie where the caller has them, floats at odd addresses too. Static, as all that files of one instruction set
// share has to be.
template <class T>
static inline T load(const T* from) {
  T value;
  __builtin_memcpy(&value, from, sizeof value);
  return value;
}
template <class T>
static inline void store(T* to, T value) {
  __builtin_memcpy(to, &value, sizeof value);
}

// Of these, src and dst may be such.
struct Block {
  const void* src;
  void* dst;
  int64_t rows;    // at most kMaxParameters for kPerRow,
  int64_t cols;    // and so for kPerColumn
  int64_t stride;  // elements from one row to the next, in src and in dst
  const float* scales;
  const int32_t* zps;
  const float* float_zps;      // instead of zps, for the affine kernels,
  float low, high, nan, zero;  // and what else they want to know
  bool stream;                 // the output is larger than the caches: write past them where it is aligned
};

// Whether the affine kernels' codes are integers. Static, so that every file has its own; without a branch, which would
// keep compilers from vectorising.
static inline bool has_integer_codes(const Block& block) { return (block.zero != 0) | !__builtin_signbit(block.zero); }

using Kernel = void (*)(const Block&);

// Sums of a matrix product, `cols` of each of `rows` rows, `stride` apart in src and dst.
struct Accumulators {
  const int32_t* src;
  float* dst;
  int64_t rows, cols, stride;
  const float* scales;  // one for each row
  const int32_t* zps;
  const float* column_scales;  // one for each column
  const int32_t* column_sums;
  const float* bias;
};

using AccumulatorKernel = void (*)(const Accumulators&);

// The smallest and the largest of `count` > 0 elements, or 0 and the largest magnitude. NaN if the first element is
// NaN; elsewhere NaN counts for nothing, which is ONNX Runtime's answer where it has one (README). range[2] is 0 if all
// elements are finite, else NaN.
using RangeKernel = void (*)(const float* x, int64_t count, float range[3]);

// low[i] and high[i], which the caller has begun, become the smallest and the largest of themselves and of the elements
// of row or column i; or high[i] alone the largest magnitude. NaN counts for nothing; of the zeros of a column the
// first counts, of a row any.
using RangesKernel = void (*)(const float* x, int64_t rows, int64_t cols, int64_t stride, float* low, float* high);

struct KernelTable {
  const char* name;
  Kernel quantize[kArithmetics][kCodeTypes][kParameterKinds];
  Kernel dequantize[kCodeTypes][kParameterKinds];
  Kernel affine[kQuotients][kOrders][kAffineTargets][kParameterKinds];
  // As affine to kToFloat, kPerRow, where every element is finite, no code meets the clip, scales are safe and zero
  // points integers; by whether the zero point is added before rounding.
  Kernel bounded[kQuotients][2];
  RangeKernel min_max, magnitude;
  AccumulatorKernel accumulators[kScaleOrders];
  RangesKernel min_max_of[kParameterKinds], magnitude_of[kParameterKinds];
};

const KernelTable& portable_kernels() noexcept;

// KernelTable::affine of a file's function template affine<quotient, order, target, parameters>.
#define ORT_DYNQ_AFFINE_OF(quotient, order, target) \
  {affine<quotient, order, target, kPerRow>, affine<quotient, order, target, kPerColumn>}
#define ORT_DYNQ_AFFINE_TARGETS(quotient, order)                                           \
  {ORT_DYNQ_AFFINE_OF(quotient, order, kToU8), ORT_DYNQ_AFFINE_OF(quotient, order, kToS8), \
   ORT_DYNQ_AFFINE_OF(quotient, order, kToFloat)}
#define ORT_DYNQ_AFFINE_ORDERS(quotient)                                                               \
  {ORT_DYNQ_AFFINE_TARGETS(quotient, kRoundThenAdd), ORT_DYNQ_AFFINE_TARGETS(quotient, kAddThenRound), \
   ORT_DYNQ_AFFINE_TARGETS(quotient, kNoAdd)}
#define ORT_DYNQ_AFFINE_TABLE \
  {ORT_DYNQ_AFFINE_ORDERS(kDivide), ORT_DYNQ_AFFINE_ORDERS(kMultiplyReciprocal), ORT_DYNQ_AFFINE_ORDERS(kMultiply)}

// The kernels in use: the best that this CPU runs, or those that ORT_DYNQ_ISA or select_isa() name. Throws
// std::runtime_error, naming those that there are, if ORT_DYNQ_ISA names none that this CPU runs.
const KernelTable& active_kernels();

// Switches to the kernels of that name, or with nullptr back to those of the start. Throws as active_kernels() does.
void select_isa(const char* name);

// The names of the instruction sets that this CPU runs, best first; null past the last.
const char* supported_isa(size_t index);

}  // namespace dynq
