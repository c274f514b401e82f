// The parameters of every kernel, and the table of kernels of one instruction set.
//
// A kernel processes a block: `rows` rows of `cols` adjacent elements, `stride` elements apart, with one scale and one
// zero point per row or per column. core/layout.h cuts tensors into such blocks; kernels do not know ONNX. Files of one
// instruction set include this header, those of simd/ and the header of the instructions, and nothing else: the linker
// could choose an inline function of the standard library that was compiled for AVX-512 for the whole program. (What
// this header includes uses no functions but static ones and those of C.)
//
// portable.cc and portable_products.cc define the correct results; every other kernel returns the same bits.
//
//   quantize, kOnnx     saturate(round(x / scale) + zp)        divides, rounds half to even, adds integers
//   quantize, kOneDnn   saturate(round(x * (1 / scale) + zp))  rounds every step to float32
//   quantize, kWrapping as kOnnx, but the sum is one of int32, which wraps around, and the quotient is the lowest int32
//                       if it is NaN or beyond int32
//   dequantize          float(code - zp) * scale               the difference is exact
//
// quantize: a quotient that is NaN gives the lowest code, unless the sum wraps around.
//
// widen, narrow: tensors of other formats (Format) are converted to and from what the other kernels take. A float is
// rounded to the nearest value of 16 bits, half to even; NaN keeps its sign and no other bits. 8-bit codes saturate to
// 4 bits. Two codes of 4 bits share a byte, the first in the low half; the last half byte of an odd number is 0.
//
// affine: the chains that exporters write with Div, Round, Add and Clip. Every step is rounded to float32. `t` is
// x / scale, x * (1 / scale) or x * scale (Scaling).
//
//   kRoundThenAdd   code = clip(round(t) + zp, low, high)
//   kAddThenRound   code = round(clip(t + zp, low, high))
//   kNoZeroPoint    code = clip(round(t), low, high)
//   kFloat16Quotient   the same, with t rounded to float16
//   kFloat16Sum     as kAddThenRound, with t + zp rounded to float16
//
// `nan_code` replaces NaN. If `integer_codes`, the code is truncated toward zero and `code_offset` is added: 0 turns -0
// into +0; +-128 stores int8 codes as uint8 or the reverse. Otherwise codes stay floats and keep -0.
// If codes `wrap`, they are not clipped: the code is the low byte of the truncated value, in the range that begins at
// `low`, and 0 if the value is beyond int32.
// kToU8 and kToS8 store the code; kToFloat dequantizes it: (code - zp) * scale, or / scale for Scaling kMultiply.
//
// products, convolutions: codes times packed weights, to floats. portable_products.cc has the arithmetic, and the
// order of the operations on floats.
//
// No product and sum are contracted into a fused multiply-add; fused multiply-adds are written out.
#pragma once

#include <string.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "core/compiler.h"
#include "core/encodings.h"
#include "kernels/numbers.h"

namespace dynq {

enum Arithmetic { kOnnx, kOneDnn, kWrapping, kRoundedQuotient, kArithmetics };
enum CodeKind { kU8, kS8, kCodeKinds };
enum Format { kF16, kBf16, kU4, kS4, kFormats };
enum BoundedOrder { kNoEffectOfZeroPoint, kAddsFirst, kRoundsQuotient, kBoundedOrders };
enum AffineTarget { kToU8, kToS8, kToFloat, kAffineTargets };
enum Parameters { kPerRow, kPerColumn, kParameterKinds };

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

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// The most scales in one block. Kernels keep values that they derive from them on the stack.
constexpr int64_t kMaxParameters = 4096;

// Callers' tensors may be unaligned, even for float. Static, so that every file has its own copy.
template <class T>
static inline T load(const T* from) {
  T value;
  memcpy(&value, static_cast<const void*>(from), sizeof value);  // a T* would promise the alignment of a T
  return value;
}
template <class T>
static inline void store(T* to, T value) {
  memcpy(static_cast<void*>(to), &value, sizeof value);
}

constexpr bool adds_first(RoundingOrder order) { return order == kAddThenRound || order == kFloat16Sum; }
constexpr bool has_zero_point(RoundingOrder order) { return order == kRoundThenAdd || adds_first(order); }

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

struct AffineBlock : Extent {
  const float* src;
  void* dst;  // codes of 8 bits or float, as the kernel's AffineTarget says
  const float* scales;
  const float* zps;
  float low, high;
  float nan_code;
  bool integer_codes;
  float code_offset;  // only if integer_codes
  bool wraps;         // only if integer_codes, and only for the portable kernels
};

// For fake quantization per row without a clip: the caller has checked that every element is finite, that the clip
// changes no code, that scales are safe and that zero points are narrow integers.
struct BoundedBlock : Extent {
  const void* src;  // both float, or float16 for bounded_f16
  void* dst;
  const float* scales;
  const float* zps;
  bool keeps_negative_zero;  // otherwise a code of -0 becomes +0
};

constexpr int64_t kLeastColumnsOf4Bits = 32;

// Columns and adjacent k that packed weights keep together: weights are [columns / 16][depth / 4][16][4]. A byte of
// 4-bit weights has two codes, [columns / 16][depth / 8][16][4]: the low half is one of the first four k, the high half
// the one 4 later.
constexpr int64_t kBlockColumns = 16;
constexpr int64_t kQuad = 4;

// Rows and bytes of a row that the codes for ProductKernels::tiles keep together: [rows / 16][depth / 64][16][64].
constexpr int64_t kTileRows = 16;
constexpr int64_t kTileBytes = 64;

// Groups of weights have a multiple of this number of k. tile_groups takes groups up to the other one, whose sums are
// exact as floats.
constexpr int64_t kGroupUnit = 16, kLongestTileGroup = 512;
static_assert(int64_t{255} * 128 * kLongestTileGroup <= 1 << 24, "sums are exact as floats");

// Sums of groups up to kLongestTileGroup minus zero points times sums of columns within this bound fit int32.
constexpr uint32_t kColumnSumBound = 1 << 22;
static_assert(int64_t{255} * kColumnSumBound + int64_t{255} * 128 * kLongestTileGroup <= INT32_MAX, "they fit int32");

// rows x cols elements of dst. The first column is the first one of a block of weights. Pointers to columns point to
// the first column; those with groups have the columns of the next group `columns` elements later. Weights and arrays
// of columns may be unaligned, too.
struct ProductBlock {
  int64_t rows, cols;
  int64_t depth;  // bytes of a row of codes: a multiple of 4; of 8 for 4-bit weights. Padding of weights or codes is 0.
  int64_t groups;  // of depth / groups, a multiple of kGroupUnit if there are several
  const uint8_t* codes;
  int64_t codes_stride;  // from row to row; for tiles, from 16 rows to the next 16
  const int8_t* weights;
  int64_t weights_stride;  // from a block of 16 columns to the next
  float* dst;
  int64_t dst_stride;
  bool stream;                 // as for blocks of elementwise kernels; kernels may ignore it
  const float* scales;         // per row: [rows][row_groups]
  const int32_t* zps;          // per row: [rows][row_groups], 0 to 255
  int64_t row_groups;          // 1 or `groups`
  const int32_t* row_sums;     // of codes, [rows][groups]; null: 4-bit weights, or 8-bit weights without zero points
  const int8_t* weight_zps;    // [groups][columns]; null: all are `weight_zp`. Of 4-bit weights the low 4 bits count,
  int32_t weight_zp;           // so that weights minus zero points fit 5 bits.
  const float* column_scales;  // [column_groups][columns]
  int64_t column_groups;       // 1 or `groups`
  const int32_t* column_sums;  // [groups][columns]
  const float* bias;           // [columns]
  int64_t columns;
  bool is_bounded;  // has_bounded_groups() was true
  ScaleOrder order;
};

// Whether the sums of groups minus zero points times sums of columns may be computed in floats: a fused multiply-add
// rounds them as a conversion from int32 does. False as well if rows have several scales or weights zero points.
bool has_bounded_groups(const ProductBlock& all) noexcept;

// Output channels x output positions of a convolution. The image is made of quads of codes, one for each position: 4
// bytes apart, or 1 or 2 bytes, where quads overlap. `offsets` are the bytes from `image` to the quads of the first
// position. Pointers to channels point to the first channel. image, weights, dst and arrays of channels may be
// unaligned.
//
// From the first byte of a quad of the first position to the end of the last one, and kConvSlack * 4 bytes more, the
// image is readable: kernels read whole vectors, and do not use the codes beyond the last position.
struct ConvBlock {
  int64_t channels;        // up to 16, of one block of weights; for conv_tiles up to 32, from the begin of a block on
  int64_t rows, cols;      // positions; those of a row are adjacent
  int64_t image_row;       // the positions from a row to the next in the image
  int64_t dst_row;         // the elements from a row to the next in dst
  int64_t position_bytes;  // 4, 2 or 1
  const uint8_t* image;
  const int64_t* offsets;  // [quads]
  int64_t quads;
  int64_t run;  // quads are [quads / run][run]; those of a run are run_bytes apart in the image
  int64_t run_bytes;
  int64_t kernel_rows;     // 0, or quads are [kernel_rows][quads of a row]: rows of the image, and quads 4 bytes apart
  const int8_t* weights;   // [quads][16][4], from the first channel
  int64_t weights_stride;  // from a block of 16 channels to the next
  float* dst;
  int64_t dst_stride;  // from channel to channel
  float scale;
  int32_t zp;
  const int8_t* weight_zps;  // [channels]; null: all are `weight_zp`
  int32_t weight_zp;
  int32_t* code_sums;  // of the image's positions and kConvSlack more; for weight zero points: sum_codes writes them
  const int8_t* ones;  // [quads][4]: 1 for each weight that is not padding; for sum_codes
  const float* channel_scales;
  const int32_t* channel_sums;
  const float* bias;
  ScaleOrder order;
  float lowest, highest;  // of the output, which is clipped; NaN and zeros stay as they are
  uint8_t* tiles;         // conv_tiles_bytes() at a multiple of 64; for conv_tiles: image_tiles writes them
};

constexpr int64_t kConvSlack = 128;

// The bytes of ConvBlock::tiles: 64 bytes for each 16 quads of a run and each quad of the image, and slack.
constexpr int64_t conv_tiles_bytes(int64_t run, int64_t run_bytes) {
  return ((run + kTileRows - 1) / kTileRows * (run_bytes / kQuad) + 2 * kTileRows) * kTileBytes;
}

// The smallest and the largest element, or 0 and the largest magnitude.
struct Range {
  float low, high;
  float not_finite;  // 0 if all elements are finite, otherwise NaN
};

using QuantizeKernel = void (*)(const QuantizeBlock&);
using DequantizeKernel = void (*)(const DequantizeBlock&);
using AffineKernel = void (*)(const AffineBlock&);
using BoundedKernel = void (*)(const BoundedBlock&);

// The range of `count` > 0 elements, float or for ranges_f16 float16. It is NaN if the first element is NaN; any other
// NaN is ignored (ort_dynq/docs/numerics.md compares this with ONNX Runtime).
using RangeKernel = Range (*)(const void* x, int64_t count);

// Widens low[i] and high[i], which the caller has initialized, by the elements of row or column i; kernels of the
// largest magnitude widen high[i] only. NaN is ignored. If a column's extreme is a zero, the sign is that of its first
// zero; for a row it may be that of any zero.
using RangesKernel = void (*)(const float* x, int64_t rows, int64_t cols, int64_t stride, float* low, float* high);

// Converts `count` elements. src and dst may be unaligned and do not overlap.
using ConvertKernel = void (*)(const void* src, void* dst, int64_t count);

using ProductKernel = void (*)(const ProductBlock&);
using ConvKernel = void (*)(const ConvBlock&);

// to[4 * i + j] = rows[j][i] ^ flip, for i < count.
using InterleaveKernel = void (*)(const uint8_t* const (&rows)[kQuad], int64_t count, uint8_t flip, uint8_t* to);

// The products of one instruction set.
struct ProductKernels {
  ProductKernel one_group;  // 8-bit weights, one group
  ProductKernel groups8;    // 8-bit weights
  ProductKernel groups4;    // 4-bit weights, one group or more
  // As one_group, groups8 and groups4, for 16 rows or more and several groups up to kLongestTileGroup, from codes in
  // tiles; null: those serve any number.
  ProductKernel tiles, tile_groups8, tile_groups4;
  ConvKernel conv;
  ConvKernel conv_tiles;   // as conv, for quads 4 bytes apart, from ConvBlock::tiles; null: conv serves all
  ConvKernel image_tiles;  // writes ConvBlock::tiles
  ConvKernel sum_codes;    // code_sums[i] = the sum of the codes of position i of the image
  InterleaveKernel interleave;
};

// The elementwise kernels of one instruction set.
struct KernelTable {
  // kRoundedQuotient: as kOnnx, but the quotient is rounded to float16 first. Only kPerRow, for safe scales and
  // elements whose codes are not clipped; may be null.
  QuantizeKernel quantize[kArithmetics][kCodeKinds][kParameterKinds];
  DequantizeKernel dequantize[kCodeKinds][kParameterKinds];
  AffineKernel affine[kScalings][kRoundingOrders][kAffineTargets][kParameterKinds];
  BoundedKernel bounded[kScalings][kBoundedOrders];  // kRoundsQuotient may be null
  RangeKernel ranges[2];  // of the smallest and the largest element; of the largest magnitude
  RangesKernel min_max_of[kParameterKinds], abs_max_of[kParameterKinds];
  // As the kernels above without _f16; quantize for safe scales, dequantize for finite ones. Those that round quotients
  // x / scale to float16 are for scales of 11 significant bits or less and codes up to kLargestRoundedQuotient. Null:
  // float16 is converted to and from float.
  QuantizeKernel quantize_f16[kArithmetics][kCodeKinds][kParameterKinds];  // not kOneDnn, not kWrapping
  DequantizeKernel dequantize_f16[kCodeKinds][kParameterKinds];
  BoundedKernel bounded_f16[kScalings][kBoundedOrders];
  RangeKernel ranges_f16[2];
  // kOnnx, for codes of 4 bits as they are stored; quantize for safe scales, dequantize for finite ones. All rows begin
  // at a byte, and have an even number of elements, at least kLeastColumnsOf4Bits. Null: codes of 4 bits are converted
  // to and from 8 bits.
  QuantizeKernel quantize_4bits[kCodeKinds][kParameterKinds];
  DequantizeKernel dequantize_4bits[kCodeKinds][kParameterKinds];
  QuantizeKernel quantize_4bits_f16[kCodeKinds][kParameterKinds];
  DequantizeKernel dequantize_4bits_f16[kCodeKinds][kParameterKinds];
  ConvertKernel widen[kFormats];   // to float, or to codes of 8 bits
  ConvertKernel narrow[kFormats];  // from them
};

const KernelTable& portable_kernels() noexcept;
extern const ProductKernels kPortableProducts;

// KernelTable::affine from a file's function template affine<scaling, order, target, parameters>.
#define ORT_DYNQ_AFFINE_OF(scaling, order, target) \
  {affine<scaling, order, target, kPerRow>, affine<scaling, order, target, kPerColumn>}
#define ORT_DYNQ_AFFINE_TARGETS(scaling, order)                                          \
  {ORT_DYNQ_AFFINE_OF(scaling, order, kToU8), ORT_DYNQ_AFFINE_OF(scaling, order, kToS8), \
   ORT_DYNQ_AFFINE_OF(scaling, order, kToFloat)}
#define ORT_DYNQ_AFFINE_ORDERS(scaling)                                                                \
  {ORT_DYNQ_AFFINE_TARGETS(scaling, kRoundThenAdd), ORT_DYNQ_AFFINE_TARGETS(scaling, kAddThenRound),   \
   ORT_DYNQ_AFFINE_TARGETS(scaling, kNoZeroPoint), ORT_DYNQ_AFFINE_TARGETS(scaling, kFloat16Quotient), \
   ORT_DYNQ_AFFINE_TARGETS(scaling, kFloat16Sum)}
#define ORT_DYNQ_AFFINE_TABLE \
  {ORT_DYNQ_AFFINE_ORDERS(kDivide), ORT_DYNQ_AFFINE_ORDERS(kMultiplyByTheReciprocal), ORT_DYNQ_AFFINE_ORDERS(kMultiply)}

// KernelTable::bounded, from a function template kernel<scaling, order>.
#define ORT_DYNQ_BOUNDED_OF(kernel, scaling) \
  {kernel<scaling, kNoEffectOfZeroPoint>, kernel<scaling, kAddsFirst>, kernel<scaling, kRoundsQuotient>}
#define ORT_DYNQ_BOUNDED_TABLE(kernel)                                                          \
  {ORT_DYNQ_BOUNDED_OF(kernel, kDivide), ORT_DYNQ_BOUNDED_OF(kernel, kMultiplyByTheReciprocal), \
   ORT_DYNQ_BOUNDED_OF(kernel, kMultiply)}

// An instruction set of the list in dispatch.cc.
struct InstructionSet {
  const char* name;
  const KernelTable* kernels;
  const ProductKernels* products;
  bool (*is_supported)();  // by the CPU and the operating system
  bool (*enable)();  // null, or asks the operating system for registers that it grants on request; called before use
};

// The instruction set in use: the one that ORT_DYNQ_ISA or select_isa() names, otherwise the best that this CPU
// supports. Throws std::runtime_error if ORT_DYNQ_ISA names none that this CPU supports.
const InstructionSet& active_isa();
const KernelTable& active_kernels();  // of active_isa()

// Switches to the instruction set of that name, or with nullptr back to the default. Throws as active_isa() does.
void select_isa(const char* name);

// The name of supported instruction set number `index`, best first; null past the last.
const char* supported_isa(size_t index);

}  // namespace dynq
