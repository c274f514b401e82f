// All vector kernels. Each family is one file, written once for any vector type `V`. avx2.cc, avx512.cc and neon.cc
// define V and include this file inside their anonymous namespace: no symbol compiled for one instruction set is
// visible elsewhere.
//
// A V::F has V::kLanes floats, a V::I as many int32. load_part and store_part access only the first n < kLanes
// elements. As the x86 instructions do, V::min(a, b) returns b if either is NaN, and V::round returns the lowest int32
// if its argument is NaN or below int32; callers pass nothing above. V::round_wrapping returns it there, too.
// clang-format off: the order of the files matters
#include "kernels/simd/quotient-inl.h"
#include "kernels/simd/stores-inl.h"
#include "kernels/simd/floats-inl.h"
#include "kernels/simd/codes-inl.h"
#include "kernels/simd/quantize-inl.h"
#include "kernels/simd/dequantize-inl.h"
#include "kernels/simd/affine-inl.h"
#include "kernels/simd/bounded-inl.h"
#include "kernels/simd/range-inl.h"
#include "kernels/simd/formats-inl.h"
// clang-format on

#include "kernels/affine-table-inl.h"

template <CodeKind kKind, Parameters kParameters>
constexpr void set_codes(ElementwiseKernels& table) {
  table.quantize[kOnnx][kKind][kParameters] = quantize<kOnnx, kKind, kParameters>;
  table.quantize[kOneDnn][kKind][kParameters] = quantize<kOneDnn, kKind, kParameters>;
  table.quantize[kWrapping][kKind][kParameters] = quantize<kWrapping, kKind, kParameters>;
  table.dequantize[kKind][kParameters] = dequantize<kKind, kParameters>;
  table.quantize_f16[kOnnx][kKind][kParameters] = quantize_f16<kOnnx, kKind, kParameters>;
  table.dequantize_f16[kKind][kParameters] = dequantize_f16<kKind, kParameters>;
  table.quantize_4bits[kKind][kParameters] = quantize_4bits<kKind, kParameters>;
  table.dequantize_4bits[kKind][kParameters] = dequantize_4bits<kKind, kParameters>;
  table.quantize_4bits_f16[kKind][kParameters] = quantize_4bits_f16<kKind, kParameters>;
  table.dequantize_4bits_f16[kKind][kParameters] = dequantize_4bits_f16<kKind, kParameters>;
}

template <CodeKind kKind>
constexpr void set_codes(ElementwiseKernels& table) {
  set_codes<kKind, kPerRow>(table);
  set_codes<kKind, kPerColumn>(table);
  table.quantize[kRoundedQuotient][kKind][kPerRow] = quantize<kRoundedQuotient, kKind, kPerRow>;
  table.quantize_f16[kRoundedQuotient][kKind][kPerRow] = quantize_f16<kRoundedQuotient, kKind, kPerRow>;
}

template <Scaling kScaling, BoundedOrder kOrder>
constexpr void set_bounded(ElementwiseKernels& table) {
  table.bounded[kScaling][kOrder] = bounded<kScaling, kOrder>;
  table.bounded_f16[kScaling][kOrder] = bounded_f16<kScaling, kOrder>;
}

template <Scaling kScaling>
constexpr void set_bounded(ElementwiseKernels& table) {
  set_bounded<kScaling, kNoEffectOfZeroPoint>(table);
  set_bounded<kScaling, kAddsFirst>(table);
  set_bounded<kScaling, kRoundsQuotient>(table);
}

// All kernels. Constant: no code compiled for an instruction set may run before dispatch.cc has checked that the CPU
// supports it.
constexpr ElementwiseKernels elementwise_kernels() {
  ElementwiseKernels table = {};
  set_codes<kU8>(table);
  set_codes<kS8>(table);
  set_affine<kPerRow>(table);
  set_affine<kPerColumn>(table);
  set_bounded<kDivide>(table);
  set_bounded<kMultiplyByTheReciprocal>(table);
  set_bounded<kMultiply>(table);
  table.ranges[kMinMax] = range<kMinMax>;
  table.ranges[kAbsMax] = range<kAbsMax>;
  table.ranges_f16[kMinMax] = range_f16<kMinMax>;
  table.ranges_f16[kAbsMax] = range_f16<kAbsMax>;
  table.min_max_of[kPerRow] = row_range<kMinMax>;
  table.min_max_of[kPerColumn] = column_range<kMinMax>;
  table.abs_max_of[kPerRow] = row_range<kAbsMax>;
  table.abs_max_of[kPerColumn] = column_range<kAbsMax>;
  table.widen[kF16] = convert<WidenF16>;
  table.widen[kBf16] = convert<WidenBf16>;
  table.widen[kU4] = convert<WidenCodes<kU8>>;
  table.widen[kS4] = convert<WidenCodes<kS8>>;
  table.narrow[kF16] = convert<NarrowF16>;
  table.narrow[kBf16] = convert<NarrowBf16>;
  table.narrow[kU4] = convert<NarrowCodes<kU8>>;
  table.narrow[kS4] = convert<NarrowCodes<kS8>>;
  return table;
}
