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

// The table of all kernels. Constant: no code compiled for an instruction set may run before dispatch.cc has checked
// that the CPU supports it.
constexpr KernelTable make_table() {
  return {
      {{{quantize<kOnnx, kU8, kPerRow>, quantize<kOnnx, kU8, kPerColumn>},
        {quantize<kOnnx, kS8, kPerRow>, quantize<kOnnx, kS8, kPerColumn>}},
       {{quantize<kOneDnn, kU8, kPerRow>, quantize<kOneDnn, kU8, kPerColumn>},
        {quantize<kOneDnn, kS8, kPerRow>, quantize<kOneDnn, kS8, kPerColumn>}},
       {{quantize<kWrapping, kU8, kPerRow>, quantize<kWrapping, kU8, kPerColumn>},
        {quantize<kWrapping, kS8, kPerRow>, quantize<kWrapping, kS8, kPerColumn>}},
       {{quantize<kRoundedQuotient, kU8, kPerRow>, nullptr}, {quantize<kRoundedQuotient, kS8, kPerRow>, nullptr}}},
      {{dequantize<kU8, kPerRow>, dequantize<kU8, kPerColumn>},
       {dequantize<kS8, kPerRow>, dequantize<kS8, kPerColumn>}},
      ORT_DYNQ_AFFINE_TABLE,
      ORT_DYNQ_BOUNDED_TABLE(bounded),
      {range<false>, range<true>},
      {row_range<false>, column_range<false>},
      {row_range<true>, column_range<true>},
      {{{quantize_f16<kOnnx, kU8, kPerRow>, quantize_f16<kOnnx, kU8, kPerColumn>},
        {quantize_f16<kOnnx, kS8, kPerRow>, quantize_f16<kOnnx, kS8, kPerColumn>}},
       {},
       {},
       {{quantize_f16<kRoundedQuotient, kU8, kPerRow>, nullptr},
        {quantize_f16<kRoundedQuotient, kS8, kPerRow>, nullptr}}},
      {{dequantize_f16<kU8, kPerRow>, dequantize_f16<kU8, kPerColumn>},
       {dequantize_f16<kS8, kPerRow>, dequantize_f16<kS8, kPerColumn>}},
      ORT_DYNQ_BOUNDED_TABLE(bounded_f16),
      {range_f16<false>, range_f16<true>},
      {{quantize_4bits<kU8, kPerRow>, quantize_4bits<kU8, kPerColumn>},
       {quantize_4bits<kS8, kPerRow>, quantize_4bits<kS8, kPerColumn>}},
      {{dequantize_4bits<kU8, kPerRow>, dequantize_4bits<kU8, kPerColumn>},
       {dequantize_4bits<kS8, kPerRow>, dequantize_4bits<kS8, kPerColumn>}},
      {{quantize_4bits_f16<kU8, kPerRow>, quantize_4bits_f16<kU8, kPerColumn>},
       {quantize_4bits_f16<kS8, kPerRow>, quantize_4bits_f16<kS8, kPerColumn>}},
      {{dequantize_4bits_f16<kU8, kPerRow>, dequantize_4bits_f16<kU8, kPerColumn>},
       {dequantize_4bits_f16<kS8, kPerRow>, dequantize_4bits_f16<kS8, kPerColumn>}},
      {convert<WidenF16>, convert<WidenBf16>, convert<WidenCodes<kU8>>, convert<WidenCodes<kS8>>},
      {convert<NarrowF16>, convert<NarrowBf16>, convert<NarrowCodes<kU8>>, convert<NarrowCodes<kS8>>},
  };
}
