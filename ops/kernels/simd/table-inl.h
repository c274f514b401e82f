// All elementwise vector kernels. Each family is one file, written once for any vector type V. avx2.cc, avx512.cc and
// neon.cc define V and include this file inside their anonymous namespace: no symbol compiled for one instruction set
// is visible elsewhere.

// The members of V. Nothing uses this struct, but the compiler checks that every member exists with its type.
struct VectorMembers {
  using F = V::F;  // kLanes floats
  using I = V::I;  // kLanes int32
  using Packed8 = V::Packed8;
  using Packed4 = V::Packed4;
  static constexpr int64_t kLanes = V::kLanes;
  static constexpr int kRows = V::kRows;         // the rows that kernels per column process together
  static constexpr bool kStreams = V::kStreams;  // there are streaming stores

  F (*set1_float)(float) = V::set1;
  I (*set1_int)(int32_t) = V::set1;
  F (*load_floats)(const float*) = V::load;
  I (*load_ints)(const void*) = V::load;
  void (*store)(float*, F) = V::store<false>;
  void (*stream)(float*, F) = V::store<true>;
  void (*fence)() = V::fence;  // after streaming stores
  // Only the first n elements, n < kLanes. The others are 0, or taken from `rest`.
  F (*load_first_floats)(const float*, int64_t n) = V::load_part;
  F (*load_first_floats_or)(const float*, int64_t n, F rest) = V::load_part;
  I (*load_first_ints)(const int32_t*, int64_t n) = V::load_part;
  void (*store_first)(float*, F, int64_t n) = V::store_part;

  F (*add)(F, F) = V::add;
  F (*sub)(F, F) = V::sub;
  F (*mul)(F, F) = V::mul;
  F (*div)(F, F) = V::div;
  F (*fmadd)(F a, F b, F c) = V::fmadd;     // a * b + c, rounded once
  F (*fnmadd)(F a, F b, F c) = V::fnmadd;   // c - a * b, rounded once
  F (*min)(F, F) = V::min;                  // the second argument if either is NaN, or if both are zeros
  F (*max)(F, F) = V::max;                  // likewise
  F (*larger_bits)(F, F) = V::larger_bits;  // the larger one as int32: of magnitudes NaN, if there is one
  F (*negate)(F) = V::negate;
  F (*abs)(F) = V::abs;
  F (*with_sign_of)(F magnitude, F sign) = V::with_sign_of;
  F (*round_float)(F) = V::round_float;  // half to even
  F (*replace_nan)(F, F replacement) = V::replace_nan;
  F (*or_nan)(F a, F b) = V::or_nan;  // b if it is NaN, otherwise a
  F (*floor)(F) = V::floor;
  F (*ceil)(F) = V::ceil;
  F (*sqrt)(F) = V::sqrt;
  F (*times_power_of_2)(F a, F n) = V::times_power_of_2;  // n: integers from -126 to 127; the result is not denormal
  void (*store_bytes)(uint8_t* low, uint8_t* high, I) = V::store_bytes;  // the lowest byte, and the next one
  void (*store_bytes_of_four)(uint8_t* low, uint8_t* high, const I (&)[4]) = V::store_bytes;  // likewise
  F (*shift_exponent)(F a, F n) = V::shift_exponent;  // a * 2^n, where n is the integer of the last bits
  F (*equal)(F, F) = V::equal;                        // 1 or 0, as the next two
  F (*less)(F, F) = V::less;
  F (*less_or_equal)(F, F) = V::less_or_equal;
  F (*choose)(F c, F a, F b) = V::choose;  // c != 0 ? a : b
  float (*first_lane)(F) = V::first_lane;
  bool (*has_nan)(F, F) = V::has_nan;  // in either argument
  float (*lowest)(F) = V::lowest;
  float (*highest)(F) = V::highest;
  // Of kLanes rows: the lanes of row i, combined by `op` in any order, become lane i.
  F (*combine_lanes)(const F* rows, F (*const& op)(F, F)) = V::combine_lanes;

  I (*add_ints)(I, I) = V::add;
  I (*sub_ints)(I, I) = V::sub;
  F (*to_float)(I) = V::to_float;
  I (*round)(F) = V::round;                    // the lowest int32 for NaN and below int32; callers pass nothing above
  I (*round_wrapping)(F) = V::round_wrapping;  // the lowest int32 for NaN, below and above

  // int16: V::I as pairs of int16, saturated. The order of elements is that of the instruction, which pack8 and pack4
  // expect.
  I (*pack16)(I, I) = V::pack16;
  I (*add16)(I, I) = V::add16;
  I (*sub16)(I, I) = V::sub16;  // wraps
  Packed8 (*pack8)(I, I) = V::pack8<kU8>;
  Packed4 (*pack4)(I, I) = V::pack4;  // int16 of at most 15; negative ones become 0
  void (*store_codes8)(uint8_t*, Packed8) = V::store_codes8<false>;
  void (*store_codes4)(uint8_t*, Packed4, Packed4, uint8_t flipped) = V::store_codes4;  // flips bits of each byte
  // Of kLanes codes, or the first n: with zero points, saturated to 8 bits.
  void (*store1)(uint8_t*, I codes, I zps) = V::store1<kU8>;
  void (*store_first_codes)(uint8_t*, I codes, I zps, int64_t n) = V::store_part<kU8>;
  I (*load_codes)(const uint8_t*) = V::load_codes<kU8>;
  I (*load_codes_part)(const uint8_t*, int64_t n) = V::load_codes_part<kU8>;
  I (*load_codes_of_4_bits)(const uint8_t*) = V::load_codes_of_4_bits<kU8>;

  // int16: 2 * kLanes of them in a vector.
  I (*words)(const uint8_t* codes) = V::words<kU8>;
  // The codes of two rows, which take turns: 2 * kLanes of each. order_pairs() puts them in the order of columns.
  void (*word_pairs)(const uint8_t*, const uint8_t*, I& low, I& high) = V::word_pairs<kU8>;
  void (*order_pairs)(I& low, I& high) = V::order_pairs;
  // Of codes of 4 bits: those of two rows, the even columns and the odd ones; and the first, second, third and fourth
  // of each four, as int16. `flips` are bits to flip. With true, the second row begins at the high half of its first
  // byte.
  void (*half_pairs)(const uint8_t*, const uint8_t*, I flips, I& even, I& odd) = V::half_pairs<false>;
  void (*shifted_half_pairs)(const uint8_t*, const uint8_t*, I flips, I& even, I& odd) = V::half_pairs<true>;
  void (*half_words)(I codes, I (&words)[4]) = V::half_words;
  I (*words_of_halves)(const uint8_t*, I flips) = V::words_of_halves;  // 2 * kLanes codes in their order
  I (*flip)(I codes, I flips) = V::flip;
  void (*zip_lanes)(I& even, I& odd) = V::zip_lanes;  // int32, as zip_words
  // The first int16 of each, the second ones, and so on.
  void (*zip_words)(I, I, I& low, I& high) = V::zip_words;
  F (*joined)(I high, I low) = V::joined;             // kHighByte * high + low, rounded once
  I (*dot_words)(I sums, I, I) = V::dot_words;        // adds the products of two int16 to each int32
  I (*sum_lanes)(const I* rows) = V::sum_lanes;       // as combine_lanes
  void (*store_words)(int16_t*, I) = V::store_words;  // int32 that fit

  // Formats.
  F (*load_bits)(const uint8_t*) = V::load_bits;
  void (*store_bits)(uint8_t*, F) = V::store_bits;
  F (*load_f16)(const uint8_t*) = V::load_f16;
  void (*store_f16)(uint8_t*, F) = V::store_f16;
  F (*rounded_to_f16)(F) = V::rounded_to_f16;
  F (*load_bf16)(const uint8_t*) = V::load_bf16;
  I (*bits)(F) = V::bits;
  I (*high_halves)(I) = V::high_halves;
  I (*lowest_bits)(I) = V::lowest_bits;
  void (*store_low_halves)(uint8_t*, I) = V::store_low_halves;
  void (*widen_codes)(const uint8_t* from, uint8_t* to) = V::widen_codes<kU8>;    // 2 * kLanes bytes of 4-bit codes
  void (*narrow_codes)(const uint8_t* from, uint8_t* to) = V::narrow_codes<kU8>;  // 4 * kLanes bytes of codes
  // Also store_32_codes4 if kLanes > 4, and look_up_codes_of_4_bits, f16_twice and store_chosen_words if kLanes is 16.
};

// clang-format off: the order of the files matters
#include "kernels/simd/quotient-inl.h"
#include "kernels/simd/stores-inl.h"
#include "kernels/simd/floats-inl.h"
#include "kernels/simd/codes-inl.h"
#include "kernels/simd/quantize-inl.h"
#include "kernels/simd/dequantize-inl.h"
#include "kernels/simd/fake-quantize-inl.h"
#include "kernels/simd/bounded-inl.h"
#include "kernels/simd/range-inl.h"
#include "kernels/simd/two-term-inl.h"
#include "kernels/simd/formats-inl.h"
#include "kernels/simd/program-inl.h"
#include "kernels/simd/attention-inl.h"
// clang-format on

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
  table.quantize[kProduct][kKind][kPerRow] = quantize<kProduct, kKind, kPerRow>;
  table.quantize_f16[kProduct][kKind][kPerRow] = quantize_f16<kProduct, kKind, kPerRow>;
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
  table.fake_quantize[kPerRow] = fake_quantize<kPerRow>;
  table.fake_quantize[kPerColumn] = fake_quantize<kPerColumn>;
  set_bounded<kDivide>(table);
  set_bounded<kMultiplyByTheReciprocal>(table);
  set_bounded<kMultiply>(table);
  table.two_terms = two_terms;
  table.ranges[kMinMax] = range<kMinMax>;
  table.ranges[kAbsMax] = range<kAbsMax>;
  table.ranges_f16[kMinMax] = range_f16<kMinMax>;
  table.ranges_f16[kAbsMax] = range_f16<kAbsMax>;
  table.row_ranges[kMinMax] = row_ranges<kMinMax>;
  table.row_ranges[kAbsMax] = row_ranges<kAbsMax>;
  table.column_ranges[kMinMax] = column_ranges<kMinMax>;
  table.column_ranges[kAbsMax] = column_ranges<kAbsMax>;
  table.widen[kF16] = convert<WidenF16>;
  table.widen[kBf16] = convert<WidenBf16>;
  table.widen[kU4] = convert<WidenCodes<kU8>>;
  table.widen[kS4] = convert<WidenCodes<kS8>>;
  table.narrow[kF16] = convert<NarrowF16>;
  table.narrow[kBf16] = convert<NarrowBf16>;
  table.narrow[kU4] = convert<NarrowCodes<kU8>>;
  table.narrow[kS4] = convert<NarrowCodes<kS8>>;
  table.run_pass = run_pass;
  table.softmax = softmax;
  return table;
}
