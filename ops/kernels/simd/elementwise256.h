// The V of elementwise kernels, eight lanes: table-inl.h lists its members. Needs AVX2, FMA and F16C.
#pragma once

#include "kernels/simd/vector128.h"
#include "kernels/simd/vector256.h"

namespace dynq {
namespace {

struct Elementwise256 : Vector256 {
  static constexpr int kRows = 4;  // the rows that kernels of columns process at once: as many as registers allow

  static F div(F a, F b) { return _mm256_div_ps(a, b); }
  static float lowest(F a) {
    const __m128 four = _mm_min_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    const __m128 two = _mm_min_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_min_ss(two, _mm_movehdup_ps(two)));
  }
  static float highest(F a) {
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
  }
  // Transposes 4x4 numbers within halves, then halves.
  template <class Op>
  static F combine_lanes(const F* rows, const Op& op) {
    F fours[2];
    for (int64_t i = 0; i < 2; ++i) {
      const F* r = rows + 4 * i;
      const __m256d ab = _mm256_castps_pd(op(_mm256_unpacklo_ps(r[0], r[1]), _mm256_unpackhi_ps(r[0], r[1])));
      const __m256d cd = _mm256_castps_pd(op(_mm256_unpacklo_ps(r[2], r[3]), _mm256_unpackhi_ps(r[2], r[3])));
      fours[i] = op(_mm256_castpd_ps(_mm256_unpacklo_pd(ab, cd)), _mm256_castpd_ps(_mm256_unpackhi_pd(ab, cd)));
    }
    return op(_mm256_permute2f128_ps(fours[0], fours[1], 0x20), _mm256_permute2f128_ps(fours[0], fours[1], 0x31));
  }
  static F larger_bits(F a, F b) {
    return _mm256_castsi256_ps(_mm256_max_epi32(_mm256_castps_si256(a), _mm256_castps_si256(b)));
  }
  static F negate(F a) { return _mm256_xor_ps(a, _mm256_set1_ps(-0.0f)); }
  static F abs(F a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
  static F with_sign_of(F a, F b) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return _mm256_or_ps(_mm256_andnot_ps(sign, a), _mm256_and_ps(sign, b));
  }
  static F round_float(F a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static F replace_nan(F a, F b) { return _mm256_blendv_ps(a, b, _mm256_cmp_ps(a, a, _CMP_UNORD_Q)); }
  static F or_nan(F a, F b) { return _mm256_blendv_ps(a, b, _mm256_cmp_ps(b, b, _CMP_UNORD_Q)); }
  static F floor(F a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC); }
  static F ceil(F a) { return _mm256_round_ps(a, _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC); }
  static F sqrt(F a) { return _mm256_sqrt_ps(a); }
  static F times_power_of_2(F a, F n) {
    const __m256i exponents = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
    return _mm256_mul_ps(a, _mm256_castsi256_ps(exponents));
  }
  static void store_bytes(uint8_t* low, uint8_t* high, I a) {
    const __m128i order = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m256i bytes = _mm256_shuffle_epi8(a, _mm256_broadcastsi128_si256(order));  // of each half: low, high, ...
    const __m128i both = _mm_unpacklo_epi32(_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(low), both);
    _mm_storel_epi64(reinterpret_cast<__m128i*>(high), _mm_unpackhi_epi64(both, both));
  }
  static void store_bytes(uint8_t* low, uint8_t* high, const I (&a)[4]) {
    const __m256i word = _mm256_set1_epi32(0xffff), byte = _mm256_set1_epi16(255);
    const auto words_of = [&](I first, I second) {
      return _mm256_packus_epi32(_mm256_and_si256(first, word), _mm256_and_si256(second, word));
    };
    const __m256i words[2] = {words_of(a[0], a[1]), words_of(a[2], a[3])};
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const __m256i lows = _mm256_packus_epi16(_mm256_and_si256(words[0], byte), _mm256_and_si256(words[1], byte));
    const __m256i highs = _mm256_packus_epi16(_mm256_srli_epi16(words[0], 8), _mm256_srli_epi16(words[1], 8));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(low), _mm256_permutevar8x32_epi32(lows, order));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(high), _mm256_permutevar8x32_epi32(highs, order));
  }
  static F shift_exponent(F a, F n) {
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a), _mm256_slli_epi32(_mm256_castps_si256(n), 23)));
  }
  static F equal(F a, F b) { return _mm256_and_ps(_mm256_cmp_ps(a, b, _CMP_EQ_OQ), set1(1.0f)); }
  static F less(F a, F b) { return _mm256_and_ps(_mm256_cmp_ps(a, b, _CMP_LT_OQ), set1(1.0f)); }
  static F less_or_equal(F a, F b) { return _mm256_and_ps(_mm256_cmp_ps(a, b, _CMP_LE_OQ), set1(1.0f)); }
  static F choose(F c, F a, F b) { return _mm256_blendv_ps(b, a, _mm256_cmp_ps(c, set1(0.0f), _CMP_NEQ_UQ)); }
  static float first_lane(F a) { return _mm256_cvtss_f32(a); }
  static bool has_nan(F a, F b) { return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_UNORD_Q)) != 0; }
  static I round(F a) { return _mm256_cvtps_epi32(a); }
  static I round_wrapping(F a) { return round(a); }

  template <bool kStream>
  static void store(float* p, F a) {
    kStream ? _mm256_stream_ps(p, a) : _mm256_storeu_ps(p, a);
  }
  static constexpr bool kStreams = true;
  static void fence() { _mm_sfence(); }

  static I first(int64_t n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int32_t>(n)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  static F load_part(const float* p, int64_t n) { return _mm256_maskload_ps(p, first(n)); }
  static F load_part(const float* p, int64_t n, F rest) {
    return _mm256_blendv_ps(rest, _mm256_maskload_ps(p, first(n)), _mm256_castsi256_ps(first(n)));
  }
  static I load_part(const int32_t* p, int64_t n) { return _mm256_maskload_epi32(p, first(n)); }
  static void store_part(float* p, F a, int64_t n) { _mm256_maskstore_ps(p, first(n), a); }

  // Saturates two vectors of int32 to one of int16, interleaved: packing works within 128-bit halves.
  static I pack16(I a, I b) { return _mm256_packs_epi32(a, b); }
  // Adds int16 with saturation.
  static I add16(I a, I b) { return _mm256_adds_epi16(a, b); }
  static I sub16(I a, I b) { return _mm256_sub_epi16(a, b); }

  // Saturates 4 * kLanes int16 to codes, interleaved.
  using Packed8 = I;
  template <CodeKind kKind>
  static Packed8 pack8(I ab, I cd) {
    return kKind == kU8 ? _mm256_packus_epi16(ab, cd) : _mm256_packs_epi16(ab, cd);
  }
  template <bool kStream>
  static void store_codes8(uint8_t* p, Packed8 packed) {
    const __m256i ordered = _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    auto* to = reinterpret_cast<__m256i*>(p);
    kStream ? _mm256_stream_si256(to, ordered) : _mm256_storeu_si256(to, ordered);
  }
  // Adds zero points in saturating int16 and saturates to codes.
  template <CodeKind kKind>
  static int64_t narrow(I a, I zp) {
    const __m256i words = add16(pack16(a, a), pack16(zp, zp));
    const __m256i codes = kKind == kU8 ? _mm256_packus_epi16(words, words) : _mm256_packs_epi16(words, words);
    return _mm_cvtsi128_si64(_mm_unpacklo_epi32(_mm256_castsi256_si128(codes), _mm256_extracti128_si256(codes, 1)));
  }
  template <CodeKind kKind>
  static void store1(uint8_t* p, I a, I zp) {
    const int64_t codes = narrow<kKind>(a, zp);
    memcpy(p, &codes, 8);
  }
  template <CodeKind kKind>
  static void store_part(uint8_t* p, I a, I zp, int64_t n) {
    int64_t codes = narrow<kKind>(a, zp);
    for (int64_t i = 0; i < n; ++i, codes >>= 8) p[i] = static_cast<uint8_t>(codes);
  }
  template <CodeKind kKind>
  static I widen(__m128i codes) {
    return kKind == kU8 ? _mm256_cvtepu8_epi32(codes) : _mm256_cvtepi8_epi32(codes);
  }
  template <CodeKind kKind>
  static I load_codes(const uint8_t* p) {
    return widen<kKind>(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  }
  template <CodeKind kKind>
  static I load_codes_part(const uint8_t* p, int64_t n) {
    uint64_t codes = 0;
    for (int64_t i = n; i-- > 0;) codes = codes << 8 | p[i];
    return widen<kKind>(_mm_cvtsi64_si128(static_cast<int64_t>(codes)));
  }

  template <CodeKind kKind>
  static I words_of(__m128i codes) {
    return kKind == kU8 ? _mm256_cvtepu8_epi16(codes) : _mm256_cvtepi8_epi16(codes);
  }
  template <CodeKind kKind>
  static I words(const uint8_t* p) {
    return words_of<kKind>(load16(p));
  }
  template <CodeKind kKind>
  static void word_pairs(const uint8_t* first, const uint8_t* second, I& low, I& high) {
    const __m128i a = load16(first), b = load16(second);
    low = words_of<kKind>(_mm_unpacklo_epi8(a, b));
    high = words_of<kKind>(_mm_unpackhi_epi8(a, b));
  }
  static void order_pairs(I&, I&) {}
  static I flip(I codes, I flips) { return _mm256_xor_si256(codes, flips); }
  template <bool kIsShifted>
  static void half_pairs(const uint8_t* first, const uint8_t* second, I flips, I& low, I& high) {
    __m128i b = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(second));
    if constexpr (kIsShifted) b = shifted_halves(b, _mm_loadl_epi64(reinterpret_cast<const __m128i*>(second + 1)));
    const __m128i both = _mm_unpacklo_epi8(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(first)), b);
    const I pairs = _mm256_cvtepu8_epi16(_mm_xor_si128(both, _mm256_castsi256_si128(flips)));
    low = _mm256_and_si256(pairs, _mm256_set1_epi16(15));
    high = _mm256_srli_epi16(pairs, 4);
  }
  static I words_of_halves(const uint8_t* codes, I flips) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes));
    const I pairs = _mm256_cvtepu8_epi32(_mm_xor_si128(bytes, _mm256_castsi256_si128(flips)));
    return _mm256_and_si256(_mm256_or_si256(pairs, _mm256_slli_epi32(pairs, 12)), _mm256_set1_epi16(15));
  }
  // Bytes 0 and 2 of each lane as int16, then bytes 1 and 3.
  static void byte_words(I codes, I (&words)[2]) {
    words[0] = _mm256_srai_epi16(_mm256_slli_epi16(codes, 8), 8);
    words[1] = _mm256_srai_epi16(codes, 8);
  }
  static void half_words(I codes, I (&words)[4]) {
    const I mask = _mm256_set1_epi16(15);
    words[0] = _mm256_and_si256(codes, mask);
    words[1] = _mm256_and_si256(_mm256_srli_epi16(codes, 4), mask);
    words[2] = _mm256_and_si256(_mm256_srli_epi16(codes, 8), mask);
    words[3] = _mm256_srli_epi16(codes, 12);
  }
  static void zip_lanes(I& low, I& high) {
    const I first = _mm256_unpacklo_epi32(low, high), second = _mm256_unpackhi_epi32(low, high);
    low = _mm256_permute2x128_si256(first, second, 0x20);
    high = _mm256_permute2x128_si256(first, second, 0x31);
  }
  static void zip_words(I a, I b, I& low, I& high) {
    const I first = _mm256_unpacklo_epi16(a, b), second = _mm256_unpackhi_epi16(a, b);
    low = _mm256_permute2x128_si256(first, second, 0x20);
    high = _mm256_permute2x128_si256(first, second, 0x31);
  }
  static __m128 joined(__m128i high, __m128i low) {
    return _mm256_cvtpd_ps(
        _mm256_fmadd_pd(_mm256_cvtepi32_pd(high), _mm256_set1_pd(kHighByte), _mm256_cvtepi32_pd(low)));
  }
  static F joined(I high, I low) {
    return _mm256_set_m128(joined(_mm256_extracti128_si256(high, 1), _mm256_extracti128_si256(low, 1)),
                           joined(_mm256_castsi256_si128(high), _mm256_castsi256_si128(low)));
  }
  static I dot_words(I sums, I a, I b) {
    ORT_DYNQ_ADD_PRODUCT("vpmaddwd", "vpaddd", add(sums, _mm256_madd_epi16(a, b)), sums, a, b);
    return sums;
  }
  // Adds four products of codes of at most 15 with bytes, in two int16, at most eight times: 8 * 2 * 15 * 128 < 2^15.
  static I add_byte_pairs(I sums, I codes, I b) {
    ORT_DYNQ_ADD_PRODUCT("vpmaddubsw", "vpaddw", _mm256_add_epi16(sums, _mm256_maddubs_epi16(codes, b)), sums, codes,
                         b);
    return sums;
  }
  static I add_bytes(I sums, I codes, I b) { return add_byte_pairs(sums, codes, b); }
  // Of each 128 bits of a and b.
  static void zip_bytes_of_lanes(I a, I b, I& low, I& high) {
    low = _mm256_unpacklo_epi8(a, b);
    high = _mm256_unpackhi_epi8(a, b);
  }
  static void zip_words_of_lanes(I a, I b, I& low, I& high) {
    low = _mm256_unpacklo_epi16(a, b);
    high = _mm256_unpackhi_epi16(a, b);
  }
  static I sums_of_bytes(I sums) { return _mm256_madd_epi16(sums, _mm256_set1_epi16(1)); }
  static I sum_lanes(const I* rows) {
    I parts[2];
    sum_parts(rows, parts);
    return add(parts[0], parts[1]);
  }
  static I load_bytes(const uint8_t* p, int64_t n) {
    if (n % 4 == 0) return load_part(reinterpret_cast<const int32_t*>(p), n / 4);
    uint8_t bytes[32] = {};
    memcpy(bytes, p, static_cast<size_t>(n));
    return load(static_cast<const void*>(bytes));
  }
  static I times_256(I a) { return _mm256_slli_epi32(a, 8); }
  // Low and high halves of bytes, with the bits `flips` flipped.
  static void half_bytes(I codes, I flips, I (&halves)[2]) {
    const I mask = _mm256_set1_epi8(15);
    halves[0] = _mm256_xor_si256(_mm256_and_si256(codes, mask), flips);
    halves[1] = _mm256_xor_si256(_mm256_and_si256(_mm256_srli_epi16(codes, 4), mask), flips);
  }
  // Of each half of four rows: byte 4 * i + j of each becomes lane j of the half of quads[i].
  static void byte_quads(const I (&rows)[4], I (&quads)[4]) {
    const I a = _mm256_unpacklo_epi8(rows[0], rows[1]), b = _mm256_unpacklo_epi8(rows[2], rows[3]);
    const I c = _mm256_unpackhi_epi8(rows[0], rows[1]), d = _mm256_unpackhi_epi8(rows[2], rows[3]);
    quads[0] = _mm256_unpacklo_epi16(a, b);
    quads[1] = _mm256_unpackhi_epi16(a, b);
    quads[2] = _mm256_unpacklo_epi16(c, d);
    quads[3] = _mm256_unpackhi_epi16(c, d);
  }
  // Sums of the low and the high halves of quads, in the order of the codes.
  static void order_half_quads(I (&sums)[4][2], I (&to)[8]) {
    for (int i = 0; i < 4; ++i) {
      zip_lanes(sums[i][0], sums[i][1]);
      to[i] = sums[i][0];
      to[4 + i] = sums[i][1];
    }
  }
  // Sums of the lanes of each row, or of each half of it.
  static void sum_parts(const I* rows, I (&sums)[1]) { sums[0] = sum_lanes(rows); }
  static void sum_parts(const I* rows, I (&sums)[2]) {
    I fours[2];
    for (int64_t i = 0; i < 2; ++i) {
      const I* r = rows + 4 * i;
      fours[i] = _mm256_hadd_epi32(_mm256_hadd_epi32(r[0], r[1]), _mm256_hadd_epi32(r[2], r[3]));
    }
    sums[0] = _mm256_permute2x128_si256(fours[0], fours[1], 0x20);
    sums[1] = _mm256_permute2x128_si256(fours[0], fours[1], 0x31);
  }
  static void store_words(int16_t* p, I a) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                     _mm_packs_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1)));
  }

  static F load_bits(const uint8_t* p) { return _mm256_loadu_ps(reinterpret_cast<const float*>(p)); }
  static void store_bits(uint8_t* p, F a) { _mm256_storeu_ps(reinterpret_cast<float*>(p), a); }
  static __m128i load16(const uint8_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
  static void store16(uint8_t* p, __m128i a) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), a); }
  static void store_f16(uint8_t* p, F a) { store16(p, _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT)); }
  static F rounded_to_f16(F a) { return _mm256_cvtph_ps(_mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT)); }
  static F load_bf16(const uint8_t* p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load16(p)), 16));
  }
  static I bits(F a) { return _mm256_castps_si256(a); }
  static I high_halves(I a) { return _mm256_srli_epi32(a, 16); }
  static I lowest_bits(I a) { return _mm256_and_si256(a, set1(1)); }
  static void store_low_halves(uint8_t* p, I a) {
    store16(p, _mm_packus_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1)));
  }
  // Takes 4 * kLanes int16 of at most 15, raises negative ones to 0, and joins two of them to a byte.
  using Packed4 = I;
  static Packed4 pack4(I ab, I cd) {
    return _mm256_maddubs_epi16(_mm256_packus_epi16(ab, cd), _mm256_set1_epi16(0x1001));  // the first + 16 * the second
  }
  // Flips bits of each byte.
  static I ordered4(Packed4 first, Packed4 second, uint8_t flipped) {
    const I halves = _mm256_permute4x64_epi64(_mm256_packus_epi16(first, second), _MM_SHUFFLE(3, 1, 2, 0));
    const I order = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15));
    return _mm256_xor_si256(_mm256_shuffle_epi8(halves, order), _mm256_set1_epi8(static_cast<char>(flipped)));
  }
  static void store_codes4(uint8_t* p, Packed4 first, Packed4 second, uint8_t flipped) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), ordered4(first, second, flipped));
  }
  // Stores the first 32 codes.
  static void store_32_codes4(uint8_t* p, Packed4 packed, uint8_t flipped) {
    store16(p, _mm256_castsi256_si128(ordered4(packed, packed, flipped)));
  }
  template <CodeKind kKind>
  static I load_codes_of_4_bits(const uint8_t* p) {
    const I all = set1(dynq::load(reinterpret_cast<const int32_t*>(p)));
    const I highest = _mm256_sllv_epi32(all, _mm256_setr_epi32(28, 24, 20, 16, 12, 8, 4, 0));
    return kKind == kU8 ? _mm256_srli_epi32(highest, 28) : _mm256_srai_epi32(highest, 28);
  }
  // Between 16 bytes of 4-bit codes and 32 bytes of codes.
  template <CodeKind kKind>
  static void widen_codes(const uint8_t* from, uint8_t* to) {
    const I words = _mm256_cvtepu8_epi16(load16(from)), sign = _mm256_set1_epi8(8);
    const I codes = _mm256_and_si256(_mm256_or_si256(words, _mm256_slli_epi16(words, 4)), _mm256_set1_epi8(15));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                        kKind == kU8 ? codes : _mm256_sub_epi8(_mm256_xor_si256(codes, sign), sign));
  }
  template <CodeKind kKind>
  static void narrow_codes(const uint8_t* from, uint8_t* to) {
    const I codes = load(static_cast<const void*>(from)), highest = _mm256_set1_epi8(kKind == kU8 ? 15 : 7);
    const I clipped = kKind == kU8 ? _mm256_min_epu8(codes, highest)
                                   : _mm256_max_epi8(_mm256_min_epi8(codes, highest), _mm256_set1_epi8(-8));
    const I halves = kKind == kU8 ? clipped : _mm256_and_si256(clipped, _mm256_set1_epi8(15));
    const I words = _mm256_maddubs_epi16(halves, _mm256_set1_epi16(0x1001));  // the first + 16 * the second
    store16(to, _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
  }
};

}  // namespace
}  // namespace dynq
