// The V of elementwise kernels, sixteen lanes: table-inl.h lists its members. Needs AVX-512 F, BW, VL and DQ.
#pragma once

#include "kernels/simd/vector128.h"
#include "kernels/simd/vector512.h"

namespace dynq {
namespace {

struct Elementwise512 : Vector512 {
  static constexpr int kRows = 4;  // the rows that kernels of columns process at once: as many as registers allow

  static F div(F a, F b) { return _mm512_div_ps(a, b); }
  static float lowest(F a) { return _mm512_reduce_min_ps(a); }
  static float highest(F a) { return _mm512_reduce_max_ps(a); }
  // Transposes 4x4 numbers within quarters, then quarters.
  template <class Op>
  static F combine_lanes(const F* rows, const Op& op) {
    F fours[4];
    for (int64_t i = 0; i < 4; ++i) {
      const F* r = rows + 4 * i;
      const __m512d ab = _mm512_castps_pd(op(_mm512_unpacklo_ps(r[0], r[1]), _mm512_unpackhi_ps(r[0], r[1])));
      const __m512d cd = _mm512_castps_pd(op(_mm512_unpacklo_ps(r[2], r[3]), _mm512_unpackhi_ps(r[2], r[3])));
      fours[i] = op(_mm512_castpd_ps(_mm512_unpacklo_pd(ab, cd)), _mm512_castpd_ps(_mm512_unpackhi_pd(ab, cd)));
    }
    const auto halves = [&](F a, F b) {
      return op(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));  // even quarters, odd quarters
    };
    return halves(halves(fours[0], fours[1]), halves(fours[2], fours[3]));
  }
  static F larger_bits(F a, F b) {
    return _mm512_castsi512_ps(_mm512_max_epi32(_mm512_castps_si512(a), _mm512_castps_si512(b)));
  }
  static F negate(F a) { return _mm512_xor_ps(a, _mm512_set1_ps(-0.0f)); }
  static F abs(F a) { return _mm512_andnot_ps(_mm512_set1_ps(-0.0f), a); }
  static F with_sign_of(F a, F b) {
    constexpr int kBFromMask = 0xe4;  // the third operand's set bits choose b
    return _mm512_castsi512_ps(_mm512_ternarylogic_epi32(_mm512_castps_si512(b), _mm512_castps_si512(a),
                                                         _mm512_set1_epi32(INT32_MIN), kBFromMask));
  }
  static F round_float(F a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static F replace_nan(F a, F b) { return _mm512_mask_mov_ps(a, _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), b); }
  static F or_nan(F a, F b) { return _mm512_mask_mov_ps(a, _mm512_cmp_ps_mask(b, b, _CMP_UNORD_Q), b); }
  static F floor(F a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC); }
  static F ceil(F a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC); }
  static F sqrt(F a) { return _mm512_sqrt_ps(a); }
  static F times_power_of_2(F a, F n) { return _mm512_scalef_ps(a, n); }
  static void store_bytes(uint8_t* low, uint8_t* high, I a) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(low), _mm512_cvtepi32_epi8(a));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(high), _mm512_cvtepi32_epi8(_mm512_srli_epi32(a, 8)));
  }
  static void store_bytes(uint8_t* low, uint8_t* high, const I (&a)[4]) {
    const I even = _mm512_set_epi32(0x3e003c, 0x3a0038, 0x360034, 0x320030, 0x2e002c, 0x2a0028, 0x260024, 0x220020,
                                    0x1e001c, 0x1a0018, 0x160014, 0x120010, 0x0e000c, 0x0a0008, 0x060004, 0x020000);
    const I words[2] = {_mm512_permutex2var_epi16(a[0], even, a[1]), _mm512_permutex2var_epi16(a[2], even, a[3])};
    const I byte = _mm512_set1_epi16(255), order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
    const I lows = _mm512_packus_epi16(_mm512_and_si512(words[0], byte), _mm512_and_si512(words[1], byte));
    const I highs = _mm512_packus_epi16(_mm512_srli_epi16(words[0], 8), _mm512_srli_epi16(words[1], 8));
    _mm512_storeu_si512(low, _mm512_permutexvar_epi64(order, lows));
    _mm512_storeu_si512(high, _mm512_permutexvar_epi64(order, highs));
  }
  static F shift_exponent(F a, F n) {
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(a), _mm512_slli_epi32(_mm512_castps_si512(n), 23)));
  }
  static F equal(F a, F b) { return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ), set1(1.0f)); }
  static F less(F a, F b) { return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), set1(1.0f)); }
  static F less_or_equal(F a, F b) { return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a, b, _CMP_LE_OQ), set1(1.0f)); }
  static F choose(F c, F a, F b) { return _mm512_mask_mov_ps(b, _mm512_cmp_ps_mask(c, set1(0.0f), _CMP_NEQ_UQ), a); }
  static float first_lane(F a) { return _mm512_cvtss_f32(a); }
  static bool has_nan(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q) != 0; }
  static I round(F a) { return _mm512_cvtps_epi32(a); }
  static I round_wrapping(F a) { return round(a); }

  template <bool kStream>
  static void store(float* p, F a) {
    kStream ? _mm512_stream_ps(p, a) : _mm512_storeu_ps(p, a);
  }
  static constexpr bool kStreams = true;
  static void fence() { _mm_sfence(); }

  static __mmask16 first(int64_t n) { return static_cast<__mmask16>((1u << n) - 1); }
  static F load_part(const float* p, int64_t n) { return _mm512_maskz_loadu_ps(first(n), p); }
  static F load_part(const float* p, int64_t n, F rest) { return _mm512_mask_loadu_ps(rest, first(n), p); }
  static I load_part(const int32_t* p, int64_t n) { return _mm512_maskz_loadu_epi32(first(n), p); }
  static void store_part(float* p, F a, int64_t n) { _mm512_mask_storeu_ps(p, first(n), a); }

  // Saturates two vectors of int32 to one of int16, interleaved: packing works within 128-bit quarters.
  static I pack16(I a, I b) { return _mm512_packs_epi32(a, b); }
  // Adds int16 with saturation.
  static I add16(I a, I b) { return _mm512_adds_epi16(a, b); }
  static I sub16(I a, I b) { return _mm512_sub_epi16(a, b); }

  // Saturates 4 * kLanes int16 to codes, interleaved.
  using Packed8 = I;
  template <CodeKind kKind>
  static Packed8 pack8(I ab, I cd) {
    return kKind == kU8 ? _mm512_packus_epi16(ab, cd) : _mm512_packs_epi16(ab, cd);
  }
  template <bool kStream>
  static void store_codes8(uint8_t* p, Packed8 packed) {
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512i ordered = _mm512_permutexvar_epi32(order, packed);
    kStream ? _mm512_stream_si512(reinterpret_cast<__m512i*>(p), ordered) : _mm512_storeu_si512(p, ordered);
  }
  // Adds zero points in saturating int16 and saturates to codes.
  template <CodeKind kKind>
  static __m128i narrow(I a, I zp) {
    const __m256i words = _mm256_adds_epi16(_mm512_cvtsepi32_epi16(a), _mm512_cvtsepi32_epi16(zp));
    return kKind == kU8 ? _mm256_cvtusepi16_epi8(_mm256_max_epi16(words, _mm256_setzero_si256()))
                        : _mm256_cvtsepi16_epi8(words);
  }
  template <CodeKind kKind>
  static void store1(uint8_t* p, I a, I zp) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), narrow<kKind>(a, zp));
  }
  template <CodeKind kKind>
  static void store_part(uint8_t* p, I a, I zp, int64_t n) {
    _mm_mask_storeu_epi8(p, first(n), narrow<kKind>(a, zp));
  }
  template <CodeKind kKind>
  static I widen(__m128i codes) {
    return kKind == kU8 ? _mm512_cvtepu8_epi32(codes) : _mm512_cvtepi8_epi32(codes);
  }
  template <CodeKind kKind>
  static I load_codes(const uint8_t* p) {
    return widen<kKind>(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  template <CodeKind kKind>
  static I load_codes_part(const uint8_t* p, int64_t n) {
    return widen<kKind>(_mm_maskz_loadu_epi8(first(n), p));
  }

  template <CodeKind kKind>
  static I words_of(__m256i codes) {
    return kKind == kU8 ? _mm512_cvtepu8_epi16(codes) : _mm512_cvtepi8_epi16(codes);
  }
  template <CodeKind kKind>
  static I words(const uint8_t* p) {
    return words_of<kKind>(load32(p));
  }
  template <CodeKind kKind>
  static void word_pairs(const uint8_t* first, const uint8_t* second, I& low, I& high) {
    const __m256i a = load32(first), b = load32(second);
    low = words_of<kKind>(_mm256_unpacklo_epi8(a, b));  // columns 0 to 7 and 16 to 23
    high = words_of<kKind>(_mm256_unpackhi_epi8(a, b));
  }
  static void order_pairs(I& low, I& high) {
    const I second = _mm512_shuffle_i64x2(low, high, 0xee);
    low = _mm512_inserti64x4(low, _mm512_castsi512_si256(high), 1);
    high = second;
  }
  static I flip(I codes, I flips) { return _mm512_xor_si512(codes, flips); }
  template <bool kIsShifted>
  static void half_pairs(const uint8_t* first, const uint8_t* second, I flips, I& low, I& high) {
    const __m128i a = _mm_loadu_si128(reinterpret_cast<const __m128i*>(first));
    __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(second));
    if constexpr (kIsShifted) b = shifted_halves(b, _mm_loadu_si128(reinterpret_cast<const __m128i*>(second + 1)));
    const __m256i both =
        _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_unpacklo_epi8(a, b)), _mm_unpackhi_epi8(a, b), 1);
    const I pairs = _mm512_cvtepu8_epi16(_mm256_xor_si256(both, _mm512_castsi512_si256(flips)));
    low = _mm512_and_si512(pairs, _mm512_set1_epi16(15));
    high = _mm512_srli_epi16(pairs, 4);
  }
  static I words_of_halves(const uint8_t* codes, I flips) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes));
    const I pairs = _mm512_cvtepu8_epi32(_mm_xor_si128(bytes, _mm512_castsi512_si128(flips)));
    return _mm512_and_si512(_mm512_or_si512(pairs, _mm512_slli_epi32(pairs, 12)), _mm512_set1_epi16(15));
  }
  // Bytes 0 and 2 of each lane as int16, then bytes 1 and 3.
  static void byte_words(I codes, I (&words)[2]) {
    words[0] = _mm512_srai_epi16(_mm512_slli_epi16(codes, 8), 8);
    words[1] = _mm512_srai_epi16(codes, 8);
  }
  static void half_words(I codes, I (&words)[4]) {
    const I mask = _mm512_set1_epi16(15);
    words[0] = _mm512_and_si512(codes, mask);
    words[1] = _mm512_and_si512(_mm512_srli_epi16(codes, 4), mask);
    words[2] = _mm512_and_si512(_mm512_srli_epi16(codes, 8), mask);
    words[3] = _mm512_srli_epi16(codes, 12);
  }
  static void zip_lanes(I& low, I& high) {
    const I first = _mm512_unpacklo_epi32(low, high), second = _mm512_unpackhi_epi32(low, high);
    low = _mm512_permutex2var_epi64(first, _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11), second);
    high = _mm512_permutex2var_epi64(first, _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15), second);
  }
  static void zip_words(I a, I b, I& low, I& high) {
    const I first = _mm512_unpacklo_epi16(a, b), second = _mm512_unpackhi_epi16(a, b);
    low = _mm512_permutex2var_epi64(first, _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11), second);
    high = _mm512_permutex2var_epi64(first, _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15), second);
  }
  static __m256 joined(__m256i high, __m256i low) {
    return _mm512_cvtpd_ps(
        _mm512_fmadd_pd(_mm512_cvtepi32_pd(high), _mm512_set1_pd(kHighByte), _mm512_cvtepi32_pd(low)));
  }
  static F joined(I high, I low) {
    const __m256 first = joined(_mm512_castsi512_si256(high), _mm512_castsi512_si256(low));
    const __m256 second = joined(_mm512_extracti64x4_epi64(high, 1), _mm512_extracti64x4_epi64(low, 1));
    return _mm512_insertf32x8(_mm512_castps256_ps512(first), second, 1);
  }
  static I dot_words(I sums, I a, I b) { return add(sums, _mm512_madd_epi16(a, b)); }
  // Adds four products of codes of at most 15 with bytes, in two int16, at most eight times: 8 * 2 * 15 * 128 < 2^15.
  static I add_byte_pairs(I sums, I codes, I b) { return _mm512_add_epi16(sums, _mm512_maddubs_epi16(codes, b)); }
  static I add_bytes(I sums, I codes, I b) { return add_byte_pairs(sums, codes, b); }
  // Of each 128 bits of a and b.
  static void zip_bytes_of_lanes(I a, I b, I& low, I& high) {
    low = _mm512_unpacklo_epi8(a, b);
    high = _mm512_unpackhi_epi8(a, b);
  }
  static void zip_words_of_lanes(I a, I b, I& low, I& high) {
    low = _mm512_unpacklo_epi16(a, b);
    high = _mm512_unpackhi_epi16(a, b);
  }
  static I sums_of_bytes(I sums) { return _mm512_madd_epi16(sums, _mm512_set1_epi16(1)); }
  static I sum_lanes(const I* rows) {
    I parts[2];
    sum_parts(rows, parts);
    return add(parts[0], parts[1]);
  }
  static I load_bytes(const uint8_t* p, int64_t n) {
    return _mm512_maskz_loadu_epi8(n < 64 ? (uint64_t{1} << n) - 1 : ~uint64_t{0}, p);
  }
  static I times_256(I a) { return _mm512_slli_epi32(a, 8); }
  // Low and high halves of bytes, with the bits `flips` flipped.
  static void half_bytes(I codes, I flips, I (&halves)[2]) {
    constexpr int kFlippedOfMask = 0x28;  // (the first operand ^ the second) & the third
    const I mask = _mm512_set1_epi8(15);
    halves[0] = _mm512_ternarylogic_epi32(codes, flips, mask, kFlippedOfMask);
    halves[1] = _mm512_ternarylogic_epi32(_mm512_srli_epi16(codes, 4), flips, mask, kFlippedOfMask);
  }
  // Of each quarter of four rows: byte 4 * i + j of each becomes lane j of the quarter of quads[i].
  static void byte_quads(const I (&rows)[4], I (&quads)[4]) {
    const I a = _mm512_unpacklo_epi8(rows[0], rows[1]), b = _mm512_unpacklo_epi8(rows[2], rows[3]);
    const I c = _mm512_unpackhi_epi8(rows[0], rows[1]), d = _mm512_unpackhi_epi8(rows[2], rows[3]);
    quads[0] = _mm512_unpacklo_epi16(a, b);
    quads[1] = _mm512_unpackhi_epi16(a, b);
    quads[2] = _mm512_unpacklo_epi16(c, d);
    quads[3] = _mm512_unpackhi_epi16(c, d);
  }
  // Sums of the low and the high halves of quads, in the order of the codes.
  static void order_half_quads(I (&sums)[4][2], I (&to)[8]) {
    for (auto& both : sums) zip_lanes(both[0], both[1]);
    for (int64_t half = 0; half < 2; ++half)
      for (int64_t i = 0; i < 2; ++i) {
        const I a = sums[2 * i][half], b = sums[2 * i + 1][half];
        to[4 * half + i] = _mm512_shuffle_i64x2(a, b, 0x44);
        to[4 * half + 2 + i] = _mm512_shuffle_i64x2(a, b, 0xee);
      }
  }
  // Sums of the lanes of each row, or of each half or quarter of it.
  static void sum_parts(const I* rows, I (&sums)[1]) { sums[0] = sum_lanes(rows); }
  static void sum_parts(const I* rows, I (&sums)[2]) {
    I fours[4];
    sum_quarters(rows, fours);
    const auto halves = [](I a, I b) {
      return _mm512_add_epi32(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xdd));
    };
    const I first = halves(fours[0], fours[1]), second = halves(fours[2], fours[3]);
    sums[0] = _mm512_shuffle_i32x4(first, second, 0x88);
    sums[1] = _mm512_shuffle_i32x4(first, second, 0xdd);
  }
  static void sum_parts(const I* rows, I (&sums)[4]) {
    I fours[4];
    sum_quarters(rows, fours);
    const I a = _mm512_shuffle_i32x4(fours[0], fours[1], 0x88), b = _mm512_shuffle_i32x4(fours[2], fours[3], 0x88);
    const I c = _mm512_shuffle_i32x4(fours[0], fours[1], 0xdd), d = _mm512_shuffle_i32x4(fours[2], fours[3], 0xdd);
    sums[0] = _mm512_shuffle_i32x4(a, b, 0x88);
    sums[1] = _mm512_shuffle_i32x4(c, d, 0x88);
    sums[2] = _mm512_shuffle_i32x4(a, b, 0xdd);
    sums[3] = _mm512_shuffle_i32x4(c, d, 0xdd);
  }
  // Quarter q of fours[i] has the sums of quarter q of the rows from 4 * i on.
  static void sum_quarters(const I* rows, I (&fours)[4]) {
    for (int64_t i = 0; i < 4; ++i) {
      const I* r = rows + 4 * i;
      const I ab = _mm512_add_epi32(_mm512_unpacklo_epi32(r[0], r[1]), _mm512_unpackhi_epi32(r[0], r[1]));
      const I cd = _mm512_add_epi32(_mm512_unpacklo_epi32(r[2], r[3]), _mm512_unpackhi_epi32(r[2], r[3]));
      fours[i] = _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
    }
  }
  static void store_words(int16_t* p, I a) { store32(reinterpret_cast<uint8_t*>(p), _mm512_cvtsepi32_epi16(a)); }

  static F load_bits(const uint8_t* p) { return _mm512_loadu_ps(p); }
  static void store_bits(uint8_t* p, F a) { _mm512_storeu_ps(p, a); }
  static __m256i load32(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
  static void store32(uint8_t* p, __m256i a) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a); }
  static void store_f16(uint8_t* p, F a) { store32(p, _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT)); }
  static F rounded_to_f16(F a) { return _mm512_cvtph_ps(_mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT)); }
  static F load_bf16(const uint8_t* p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load32(p)), 16));
  }
  static I bits(F a) { return _mm512_castps_si512(a); }
  static I high_halves(I a) { return _mm512_srli_epi32(a, 16); }
  static I lowest_bits(I a) { return _mm512_and_si512(a, set1(1)); }
  static void store_low_halves(uint8_t* p, I a) { store32(p, _mm512_cvtepi32_epi16(a)); }
  // Takes 4 * kLanes int16 of at most 15, raises negative ones to 0, and joins two of them to a byte.
  using Packed4 = I;
  static Packed4 pack4(I ab, I cd) {
    return _mm512_maddubs_epi16(_mm512_packus_epi16(ab, cd), _mm512_set1_epi16(0x1001));  // the first + 16 * the second
  }
  // Flips bits of each byte.
  static I ordered4(Packed4 first, Packed4 second, uint8_t flipped) {
    constexpr auto words = [](int low, int high) { return high << 16 | low; };
    const I order =
        _mm512_setr_epi32(words(0, 8), words(16, 24), words(1, 9), words(17, 25), words(2, 10), words(18, 26),
                          words(3, 11), words(19, 27), words(4, 12), words(20, 28), words(5, 13), words(21, 29),
                          words(6, 14), words(22, 30), words(7, 15), words(23, 31));
    const I codes = _mm512_permutexvar_epi16(order, _mm512_packus_epi16(first, second));
    return _mm512_xor_si512(codes, _mm512_set1_epi8(static_cast<char>(flipped)));
  }
  static void store_codes4(uint8_t* p, Packed4 first, Packed4 second, uint8_t flipped) {
    _mm512_storeu_si512(p, ordered4(first, second, flipped));
  }
  // Stores the first 32 codes.
  static void store_32_codes4(uint8_t* p, Packed4 packed, uint8_t flipped) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_castsi512_si128(ordered4(packed, packed, flipped)));
  }
  // The bytes of sixteen codes: the first four bytes in each of the first eight lanes, the others in each other lane.
  static I bytes_in_lanes(const uint8_t* p) {
    const I both = _mm512_castsi128_si512(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
    return _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1), both);
  }
  template <CodeKind kKind>
  static I load_codes_of_4_bits(const uint8_t* p) {
    const I shifts = _mm512_setr_epi32(28, 24, 20, 16, 12, 8, 4, 0, 28, 24, 20, 16, 12, 8, 4, 0);
    const I highest = _mm512_sllv_epi32(bytes_in_lanes(p), shifts);
    return kKind == kU8 ? _mm512_srli_epi32(highest, 28) : _mm512_srai_epi32(highest, 28);
  }
  // The elements of `values` that sixteen codes of 4 bits choose.
  static F look_up_codes_of_4_bits(F values, const uint8_t* p) {
    const I shifts = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28);
    return _mm512_permutexvar_ps(_mm512_srlv_epi32(bytes_in_lanes(p), shifts), values);  // uses the low 4 bits
  }
  // Sixteen elements of float16, in both halves.
  static I f16_twice(F a) { return _mm512_broadcast_i64x4(_mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT)); }
  // Stores the elements of `values`, sixteen of 16 bits twice, that 32 codes of 4 bits choose.
  static void store_chosen_words(uint16_t* p, I values, const uint8_t* codes) {
    const I bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
    const I chosen = _mm512_or_si512(bytes, _mm512_slli_epi32(bytes, 12));  // the low 4 bits of each 16
    _mm512_storeu_si512(p, _mm512_permutexvar_epi16(chosen, values));
  }
  // Between 32 bytes of 4-bit codes and 64 bytes of codes.
  template <CodeKind kKind>
  static void widen_codes(const uint8_t* from, uint8_t* to) {
    const I words = _mm512_cvtepu8_epi16(load32(from)), sign = _mm512_set1_epi8(8);
    const I codes = _mm512_and_si512(_mm512_or_si512(words, _mm512_slli_epi16(words, 4)), _mm512_set1_epi8(15));
    _mm512_storeu_si512(to, kKind == kU8 ? codes : _mm512_sub_epi8(_mm512_xor_si512(codes, sign), sign));
  }
  template <CodeKind kKind>
  static void narrow_codes(const uint8_t* from, uint8_t* to) {
    const I codes = _mm512_loadu_si512(from), highest = _mm512_set1_epi8(kKind == kU8 ? 15 : 7);
    const I clipped = kKind == kU8 ? _mm512_min_epu8(codes, highest)
                                   : _mm512_max_epi8(_mm512_min_epi8(codes, highest), _mm512_set1_epi8(-8));
    const I halves = kKind == kU8 ? clipped : _mm512_and_si512(clipped, _mm512_set1_epi8(15));
    const I words = _mm512_maddubs_epi16(halves, _mm512_set1_epi16(0x1001));  // the first + 16 * the second
    store32(to, _mm512_cvtepi16_epi8(words));
  }
};

}  // namespace
}  // namespace dynq
