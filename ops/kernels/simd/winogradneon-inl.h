// The vectors of Winograd convolutions with NEON.

struct WinogradNeon {
  static constexpr int64_t kWords = 8, kLanes = 4;
  static constexpr int kRows = 4, kSumVectors = 4;
  struct Words {
    uint16x8_t v;
  };
  using Ints = int32x4_t;
  using Floats = float32x4_t;
  using V = VectorNeon;

  static Words add(Words a, Words b) { return {vaddq_u16(a.v, b.v)}; }
  static Words sub(Words a, Words b) { return {vsubq_u16(a.v, b.v)}; }
  template <int kBits>
  static Words shift(Words a) {
    return {vshlq_n_u16(a.v, kBits)};
  }
  static Words set1_word(int16_t value) { return {vdupq_n_u16(static_cast<uint16_t>(value))}; }
  static Words widen(const uint8_t* p) { return {vmovl_u8(vld1_u8(p))}; }
  static void store(int16_t* p, Words a) { vst1q_s16(p, vreinterpretq_s16_u16(a.v)); }

  static Ints add(Ints a, Ints b) { return V::add(a, b); }
  static Ints sub(Ints a, Ints b) { return V::sub(a, b); }
  static Ints mul(Ints a, Ints b) { return V::mul(a, b); }
  template <int kBits>
  static Ints shift(Ints a) {
    return vreinterpretq_s32_u32(vshlq_n_u32(vreinterpretq_u32_s32(a), kBits));
  }
  template <int kBits>
  static Ints shift_right(Ints a) {
    return vshrq_n_s32(a, kBits);
  }
  static Ints set1(int32_t value) { return V::set1(value); }
  static Ints load(const int32_t* p) { return V::load(static_cast<const void*>(p)); }
  static void store(int32_t* p, Ints a) { V::store(static_cast<void*>(p), a); }

  static Floats set1(float value) { return V::set1(value); }
  static Floats load(const float* p) { return V::load(p); }
  static void store(float* p, Floats a) { V::store(p, a); }
  static Floats to_float(Ints a) { return V::to_float(a); }
  static Floats add(Floats a, Floats b) { return V::add(a, b); }
  static Floats mul(Floats a, Floats b) { return V::mul(a, b); }
  static Floats min(Floats a, Floats b) { return V::min(a, b); }
  static Floats max(Floats a, Floats b) { return V::max(a, b); }

  // Eight output channels of one input channel each: [4][16].
  static Words weights(const int8_t* quad, int64_t part) {
    const int8x8x4_t eight = vld4_s8(quad + part % 2 * 32);
    const int8x8_t of_input = part < 2   ? eight.val[0]
                              : part < 4 ? eight.val[1]
                              : part < 6 ? eight.val[2]
                                         : eight.val[3];
    return {vreinterpretq_u16_s16(vmovl_s8(of_input))};
  }
  static void add_weights(const int8_t* quad, Ints (&sums)[4]) {
#pragma GCC unroll 4
    for (int64_t v = 0; v < 4; ++v) sums[v] = vpadalq_s16(sums[v], vpaddlq_s8(vld1q_s8(quad + 16 * v)));
  }
  // The magnitude of -128 is 128 as an unsigned byte.
  static void add_magnitudes(const int8_t* quad, Ints (&sums)[4]) {
#pragma GCC unroll 4
    for (int64_t v = 0; v < 4; ++v) {
      const uint8x16_t magnitudes = vreinterpretq_u8_s8(vabsq_s8(vld1q_s8(quad + 16 * v)));
      sums[v] = vreinterpretq_s32_u32(vpadalq_u16(vreinterpretq_u32_s32(sums[v]), vpaddlq_u8(magnitudes)));
    }
  }

  using Sums = int32x4_t;
  struct Weights {
    int16x4_t first, second;  // of two input channels
  };
  using Pair = int16x4_t;  // the first two
  static Sums no_sums() { return V::set1(int32_t{0}); }
  static Sums load_sums(const int32_t* p) { return load(p); }
  static void store_sums(int32_t* p, Sums a) { store(p, a); }
  static Weights load_weights(const int16_t* p, int64_t v) { return {vld1_s16(p + 4 * v), vld1_s16(p + 16 + 4 * v)}; }
  static Pair pair(const int16_t* p) {
    return vreinterpret_s16_s32(vdup_n_s32(dynq::load(reinterpret_cast<const int32_t*>(p))));
  }
  static Sums dot(Sums sums, Pair codes, Weights weights) {
    return vmlal_lane_s16(vmlal_lane_s16(sums, weights.first, codes, 0), weights.second, codes, 1);
  }

  static void store_columns(const Floats (&columns)[kWinogradOut], float* p, int64_t channel_stride) {
    const float32x4_t a = vzip1q_f32(columns[0], columns[2]), b = vzip2q_f32(columns[0], columns[2]);
    const float32x4_t c = vzip1q_f32(columns[1], columns[3]), d = vzip2q_f32(columns[1], columns[3]);
    store(p, vzip1q_f32(a, c));
    store(p + channel_stride, vzip2q_f32(a, c));
    store(p + 2 * channel_stride, vzip1q_f32(b, d));
    store(p + 3 * channel_stride, vzip2q_f32(b, d));
  }
  static void interleave(const uint8_t* const (&rows)[kWinogradUnit], int64_t i, uint8_t flip, uint8_t* to) {
    uint16x8_t pairs[8];  // of channels, of 8 positions
#pragma GCC unroll 8
    for (int64_t j = 0; j < 8; ++j) {
      const uint8x8_t a = vld1_u8(rows[2 * j] + i), b = vld1_u8(rows[2 * j + 1] + i);
      pairs[j] = vreinterpretq_u16_u8(veorq_u8(vcombine_u8(vzip1_u8(a, b), vzip2_u8(a, b)), vdupq_n_u8(flip)));
    }
    uint8_t* out = to + i * kWinogradUnit;
#pragma GCC unroll 2
    for (int64_t half = 0; half < 2; ++half) {  // of the positions
      uint32x4_t quads[4];
#pragma GCC unroll 4
      for (int64_t j = 0; j < 4; ++j)
        quads[j] = vreinterpretq_u32_u16(half == 0 ? vzip1q_u16(pairs[2 * j], pairs[2 * j + 1])
                                                   : vzip2q_u16(pairs[2 * j], pairs[2 * j + 1]));
      const auto put = [&](int64_t at, uint32x4_t low, uint32x4_t high, bool is_first) {
        const uint64x2_t a = vreinterpretq_u64_u32(low), b = vreinterpretq_u64_u32(high);
        vst1q_u8(out + (4 * half + at) * kWinogradUnit,
                 vreinterpretq_u8_u64(is_first ? vzip1q_u64(a, b) : vzip2q_u64(a, b)));
      };
      const uint32x4_t low[] = {vzip1q_u32(quads[0], quads[1]), vzip1q_u32(quads[2], quads[3])};
      const uint32x4_t high[] = {vzip2q_u32(quads[0], quads[1]), vzip2q_u32(quads[2], quads[3])};
      put(0, low[0], low[1], true);
      put(1, low[0], low[1], false);
      put(2, high[0], high[1], true);
      put(3, high[0], high[1], false);
    }
  }
};
