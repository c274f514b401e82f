// The vectors of Winograd convolutions on x86-64. Needs AVX2.

struct Winograd256 {
  static constexpr int64_t kWords = 16, kLanes = 8;
  static constexpr int kRows = 6, kSumVectors = 2;
  struct Words {
    __m256i v;
  };
  using Ints = __m256i;
  using Floats = __m256;

  static Words add(Words a, Words b) { return {_mm256_add_epi16(a.v, b.v)}; }
  static Words sub(Words a, Words b) { return {_mm256_sub_epi16(a.v, b.v)}; }
  template <int kBits>
  static Words shift(Words a) {
    return {_mm256_slli_epi16(a.v, kBits)};
  }
  static Words set1_word(int16_t value) { return {_mm256_set1_epi16(value)}; }
  static Words widen(const uint8_t* p) { return {_mm256_cvtepu8_epi16(load16(p))}; }
  static void store(int16_t* p, Words a) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a.v); }
  static __m128i load16(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }

  static Ints add(Ints a, Ints b) { return _mm256_add_epi32(a, b); }
  static Ints sub(Ints a, Ints b) { return _mm256_sub_epi32(a, b); }
  static Ints mul(Ints a, Ints b) { return _mm256_mullo_epi32(a, b); }
  template <int kBits>
  static Ints shift(Ints a) {
    return _mm256_slli_epi32(a, kBits);
  }
  template <int kBits>
  static Ints shift_right(Ints a) {
    return _mm256_srai_epi32(a, kBits);
  }
  static Ints set1(int32_t value) { return _mm256_set1_epi32(value); }
  static Ints load(const int32_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
  static void store(int32_t* p, Ints a) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a); }

  static Floats set1(float value) { return _mm256_set1_ps(value); }
  static Floats load(const float* p) { return _mm256_loadu_ps(p); }
  static void store(float* p, Floats a) { _mm256_storeu_ps(p, a); }
  static Floats to_float(Ints a) { return _mm256_cvtepi32_ps(a); }
  static Floats add(Floats a, Floats b) { return _mm256_add_ps(a, b); }
  static Floats mul(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
  static Floats min(Floats a, Floats b) { return _mm256_min_ps(a, b); }
  static Floats max(Floats a, Floats b) { return _mm256_max_ps(a, b); }

  // Parts 0 and 1: the first two weights of 8 output channels each; 2 and 3: the last two. They are in the high bytes
  // of the words: their shift extends the sign.
  static Words weights(const int8_t* quad, int64_t part) {
    const __m128i order = part < 2 ? _mm_setr_epi8(-1, 0, -1, 1, -1, 4, -1, 5, -1, 8, -1, 9, -1, 12, -1, 13)
                                   : _mm_setr_epi8(-1, 2, -1, 3, -1, 6, -1, 7, -1, 10, -1, 11, -1, 14, -1, 15);
    const __m256i eight = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(quad + part % 2 * 32));
    return {_mm256_srai_epi16(_mm256_shuffle_epi8(eight, _mm256_broadcastsi128_si256(order)), 8)};
  }
  static void add_weights(const int8_t* quad, Ints (&sums)[2]) {
    for (int64_t v = 0; v < 2; ++v) {
      const __m256i eight = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(quad + 32 * v));
      sums[v] = add(sums[v], sum_fours(_mm256_maddubs_epi16(_mm256_set1_epi8(1), eight)));
    }
  }
  static void add_magnitudes(const int8_t* quad, Ints (&sums)[2]) {
    for (int64_t v = 0; v < 2; ++v) {
      const __m256i eight = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(quad + 32 * v));
      sums[v] = add(sums[v], sum_fours(_mm256_maddubs_epi16(_mm256_abs_epi8(eight), _mm256_set1_epi8(1))));
    }
  }
  static Ints sum_fours(__m256i twos) { return _mm256_madd_epi16(twos, _mm256_set1_epi16(1)); }

  using Sums = __m256i;
  using Weights = __m256i;
  using Pair = __m256i;
  static Sums no_sums() { return _mm256_setzero_si256(); }
  static Sums load_sums(const int32_t* p) { return load(p); }
  static void store_sums(int32_t* p, Sums a) { store(p, a); }
  static Weights load_weights(const int16_t* p, int64_t v) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 16 * v));
  }
  static Pair pair(const int16_t* p) { return _mm256_set1_epi32(dynq::load(reinterpret_cast<const int32_t*>(p))); }

  static void store_columns(const Floats (&columns)[kWinogradOut], float* p, int64_t channel_stride) {
    const __m256 a = _mm256_unpacklo_ps(columns[0], columns[1]), b = _mm256_unpackhi_ps(columns[0], columns[1]);
    const __m256 c = _mm256_unpacklo_ps(columns[2], columns[3]), d = _mm256_unpackhi_ps(columns[2], columns[3]);
    const __m256 channels[] = {
        _mm256_shuffle_ps(a, c, _MM_SHUFFLE(1, 0, 1, 0)), _mm256_shuffle_ps(a, c, _MM_SHUFFLE(3, 2, 3, 2)),
        _mm256_shuffle_ps(b, d, _MM_SHUFFLE(1, 0, 1, 0)), _mm256_shuffle_ps(b, d, _MM_SHUFFLE(3, 2, 3, 2))};
#pragma GCC unroll 4
    for (int64_t i = 0; i < 4; ++i) {
      _mm_storeu_ps(p + i * channel_stride, _mm256_castps256_ps128(channels[i]));
      _mm_storeu_ps(p + (i + 4) * channel_stride, _mm256_extractf128_ps(channels[i], 1));
    }
  }

  static void interleave(const uint8_t* const (&rows)[kWinogradUnit], int64_t i, uint8_t flip, uint8_t* to) {
    __m128i a[16], b[16];
#pragma GCC unroll 16
    for (int64_t j = 0; j < 16; j += 2)
      a[j / 2] = _mm_unpacklo_epi8(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(rows[j] + i)),
                                   _mm_loadl_epi64(reinterpret_cast<const __m128i*>(rows[j + 1] + i)));
#pragma GCC unroll 16
    for (int64_t j = 0; j < 4; ++j) {  // quads of channels: positions 0 to 3, then 4 to 7
      b[j] = _mm_unpacklo_epi16(a[2 * j], a[2 * j + 1]);
      b[j + 4] = _mm_unpackhi_epi16(a[2 * j], a[2 * j + 1]);
    }
    const __m128i flips = _mm_set1_epi8(static_cast<char>(flip));
    auto* out = reinterpret_cast<__m128i*>(to + i * kWinogradUnit);
#pragma GCC unroll 16
    for (int64_t half = 0; half < 2; ++half) {
      const __m128i* q = b + 4 * half;
      const __m128i low[] = {_mm_unpacklo_epi32(q[0], q[1]), _mm_unpacklo_epi32(q[2], q[3])};
      const __m128i high[] = {_mm_unpackhi_epi32(q[0], q[1]), _mm_unpackhi_epi32(q[2], q[3])};
      const auto put = [&](int64_t at, __m128i codes) {
        _mm_storeu_si128(out + 4 * half + at, _mm_xor_si128(codes, flips));
      };
      put(0, _mm_unpacklo_epi64(low[0], low[1]));
      put(1, _mm_unpackhi_epi64(low[0], low[1]));
      put(2, _mm_unpacklo_epi64(high[0], high[1]));
      put(3, _mm_unpackhi_epi64(high[0], high[1]));
    }
  }
};
