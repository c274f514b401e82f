// The interface of the elementwise kernels: the parameters of each family, and the table of one instruction set.
//
// A kernel processes a block: `rows` rows of `cols` adjacent elements, `stride` elements apart, with one scale and one
// zero point per row or per column. core/layout.h cuts tensors into such blocks; kernels do not know ONNX. portable.cc
// defines the correct results; every other kernel returns the same bits.
//
//   quantize, kOnnx     saturate(round(x / scale) + zp)        divides, rounds half to even, adds integers
//   quantize, kOneDnn   saturate(round(x * (1 / scale) + zp))  rounds every step to float32
//   quantize, kWrapping as kOnnx, but the sum is an int32 that wraps around, and a quotient that is NaN or beyond int32
//                       is the lowest int32
//   quantize, kProduct  saturate(round(x * scale) + zp)        as kOnnx but for the product
//   dequantize          float(code - zp) * scale               the difference is exact
//
// quantize: a quotient that is NaN gives the lowest code, unless the sum wraps around.
//
// widen, narrow: convert tensors of other formats (Format) to and from the formats that the other kernels take. A float
// is rounded to the nearest value of 16 bits, half to even; NaN keeps its sign and no other bits. 8-bit codes saturate
// to 4 bits. Two codes of 4 bits share a byte, the first in the low half; the last half byte of an odd number is 0.
//
// fake_quantize    (clip(round(x / scale) + zp, low, high) - zp) * scale, with `low` as the code of NaN
//
// Compilers must not contract a product and a sum into a fused multiply-add; fused multiply-adds are written out.
#pragma once

#include <stdint.h>

#include "core/compiler.h"
#include "core/encodings.h"
#include "kernels/attention.h"
#include "kernels/compressed.h"
#include "kernels/numbers.h"
#include "kernels/programs.h"

namespace dynq {

enum Arithmetic { kOnnx, kOneDnn, kWrapping, kRoundedQuotient, kProduct, kArithmetics };
enum CodeKind { kU8, kS8, kCodeKinds };
enum Format { kF16, kBf16, kU4, kS4, kFormats };
enum Scaling { kDivide, kMultiplyByTheReciprocal, kMultiply, kScalings };  // of bounded kernels
enum BoundedOrder { kNoEffectOfZeroPoint, kAddsFirst, kRoundsQuotient, kBoundedOrders };
enum Parameters { kPerRow, kPerColumn, kParameterKinds };
enum Extremes { kMinMax, kAbsMax, kExtremes };  // the smallest and the largest element; the largest magnitude

// Only the portable kernels take zero points of larger magnitude. Within this limit a rounded quotient, saturated to 16
// bits, plus the zero point saturates to 8 bits as the exact sum does, and code - zp is exact in float32.
constexpr int32_t kNarrowZeroPoint = 1 << 14;

// Upper clamp of quotients before rounding: above every code that a narrow zero point can reach, and within int32.
constexpr float kQuotientBound = 8388608.0f;  // 2^23

// For scales within these bounds x / scale equals x * (1 / scale) after one correction (simd/quotient-inl.h).
constexpr float kSmallestSafeScale = 8.6736174e-19f;  // 2^-60
constexpr float kLargestSafeScale = 1.1529215e18f;    // 2^60

// With clips and float zero points up to this magnitude, a quotient clamped to kQuotientBound is clipped as the
// unclamped one is.
constexpr float kLargestSafeClip = 65536.0f;

// Up to this quotient RoundedProduct (simd/quotient-inl.h) rounds as float16 does.
constexpr float kLargestRoundedQuotient = 1024.0f;

// The most scales in one block. Kernels keep values that they derive from them on the stack.
constexpr int64_t kMaxParameters = 4096;

// The size of a block, in elements: at most kMaxParameters rows for kPerRow, at most kMaxParameters cols for
// kPerColumn. `stride` is the distance between rows in src and in dst.
struct Extent {
  int64_t rows, cols, stride;
};

// In the blocks below src and dst may be unaligned, the arrays of parameters not.
// `stream`: the output is larger than the caches; the kernel writes past them if dst is aligned.
struct QuantizeBlock : Extent {
  const void* src;  // float, or float16
  void* dst;        // codes of 8 bits, or of 4 bits
  const float* scales;
  const int32_t* zps;
  bool stream;
  const float* reciprocals = nullptr;  // of the scales of kPerColumn, if the caller has them
};

struct DequantizeBlock : Extent {
  const void* src;  // codes of 8 bits, or of 4 bits
  void* dst;        // float, or float16
  const float* scales;
  const int32_t* zps;
  bool stream;
};

struct FakeQuantizeBlock : Extent {
  const float* src;
  float* dst;
  const float* scales;
  const float* zps;  // integers between low and high
  float low, high;   // of the type of the codes
};

// For fake quantization per row without a clip: the caller has checked that every element is finite, that the clip
// changes no code, that quotients have safe scales and that zero points are narrow integers.
//
//   kDivide                     (round(x / scale) - zp) * factor
//   kMultiplyByTheReciprocal    (round(x * scale) - zp) * factor
//   kMultiply                   (round(x * scale) - zp) / factor
struct BoundedBlock : Extent {
  const void* src;  // both float, or float16 for bounded_f16
  void* dst;        // may be src
  const float* scales;
  const float* factors;
  const float* zps;          // added before rounding; read for kAddsFirst
  bool keeps_negative_zero;  // otherwise a code of -0 becomes +0
};

// TwoTermQuantize of adjacent rows: stride is cols. Element i of row r has t = src * inverses[r], or 0 if that is NaN;
// its code is t rounded half to even and clipped to -127 to 127, and its remainder is (t - code) * 254, rounded and
// clipped likewise. Every step is rounded to float32.
struct TwoTermBlock : Extent {
  const float* src;
  int8_t *codes, *remainders;
  const float* inverses;
};

constexpr int64_t kMinColumnsOf4Bits = 32;

// The smallest and the largest element, or 0 and the largest magnitude.
struct Range {
  float low, high;
  float not_finite;  // 0 if all elements are finite, otherwise NaN
};

using QuantizeKernel = void (*)(const QuantizeBlock&);
using DequantizeKernel = void (*)(const DequantizeBlock&);
using FakeQuantizeKernel = void (*)(const FakeQuantizeBlock&);
using BoundedKernel = void (*)(const BoundedBlock&);
using TwoTermKernel = void (*)(const TwoTermBlock&);

// The range of `count` > 0 elements, float or for ranges_f16 float16. It is NaN if the first element is NaN; any other
// NaN is ignored (ort_dynq/docs/numerics.md compares this with ONNX Runtime).
using RangeKernel = Range (*)(const void* x, int64_t count);

// Widen low[i] and high[i], which the caller has initialized, by the elements of row or column i; kernels of the
// largest magnitude widen high[i] only. NaN is ignored. If a column's extreme is a zero, the sign is that of its first
// zero. For a row, it may be the sign of any zero. RowRangesKernel returns whether all elements are finite.
using RowRangesKernel = bool (*)(const float* x, int64_t rows, int64_t cols, int64_t stride, float* low, float* high);
using ColumnRangesKernel = void (*)(const float* x, int64_t rows, int64_t cols, int64_t stride, float* low,
                                    float* high);

// Converts `count` elements. src and dst may be unaligned and do not overlap.
using ConvertKernel = void (*)(const void* src, void* dst, int64_t count);

// The elementwise kernels of one instruction set.
struct ElementwiseKernels {
  // kRoundedQuotient: as kOnnx, but the quotient is rounded to float16 first. Only kPerRow, for safe scales and
  // elements with codes that are not clipped; may be null. kProduct: only kPerRow.
  QuantizeKernel quantize[kArithmetics][kCodeKinds][kParameterKinds];
  DequantizeKernel dequantize[kCodeKinds][kParameterKinds];
  FakeQuantizeKernel fake_quantize[kParameterKinds];
  BoundedKernel bounded[kScalings][kBoundedOrders];  // kRoundsQuotient may be null
  TwoTermKernel two_terms;
  RangeKernel ranges[kExtremes];
  RowRangesKernel row_ranges[kExtremes];
  ColumnRangesKernel column_ranges[kExtremes];
  // As the kernels above without _f16; quantize for safe scales, dequantize for finite ones. Kernels that round
  // quotients x / scale to float16 are for scales of 11 significant bits or less and codes up to
  // kLargestRoundedQuotient. Null: float16 is converted to and from float.
  QuantizeKernel quantize_f16[kArithmetics][kCodeKinds][kParameterKinds];  // not kOneDnn, not kWrapping
  DequantizeKernel dequantize_f16[kCodeKinds][kParameterKinds];
  BoundedKernel bounded_f16[kScalings][kBoundedOrders];
  RangeKernel ranges_f16[kExtremes];
  // kOnnx, for codes of 4 bits as they are stored; quantize for safe scales, dequantize for finite ones. All rows begin
  // at a byte, and have an even number of elements, at least kMinColumnsOf4Bits. Null: codes of 4 bits are converted
  // to and from 8 bits.
  QuantizeKernel quantize_4bits[kCodeKinds][kParameterKinds];
  DequantizeKernel dequantize_4bits[kCodeKinds][kParameterKinds];
  QuantizeKernel quantize_4bits_f16[kCodeKinds][kParameterKinds];
  DequantizeKernel dequantize_4bits_f16[kCodeKinds][kParameterKinds];
  ConvertKernel widen[kFormats];   // to float, or to codes of 8 bits
  ConvertKernel narrow[kFormats];  // from them
  PassKernel run_pass;             // of programs
  SoftmaxKernel softmax;           // of attention
};

extern const ElementwiseKernels kPortableKernels;
extern const CompressedKernels kPortableCompressed;

}  // namespace dynq
