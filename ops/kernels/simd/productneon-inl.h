// Products and convolutions with NEON: four columns or positions in a vector.

#if defined(__GNUC__) && !defined(__clang__)  // GCC 12 would load too early, and keep some of the sums on the stack
#pragma GCC optimize("no-schedule-insns")
#endif

#include "kernels/simd/wholequads-inl.h"

struct ProductNeon : VectorNeon, WholeQuads {
  static constexpr int kSteps = 1, kBlocks = 1, kGroupBlocks = 1, kSplit = 1;
  static constexpr int64_t kBytesAhead = 0;
  static constexpr int kConvRows = 8, kConvChannels = 4, kConvSums = 24;
  static constexpr bool kUnsignedWeights = false, kSignedCodes = false;
  using Bytes = uint8x16_t;

  static Bytes bytes(I a) { return vreinterpretq_u8_s32(a); }
  static I ints(Bytes a) { return vreinterpretq_s32_u8(a); }
  static int8x16_t signed_bytes(I a) { return vreinterpretq_s8_s32(a); }

  using Mask = int64_t;
  static Mask first(int64_t n) { return n; }
  static I load_zps(const int8_t* p, int64_t n) {
    return widen<kS8>(load4_part(reinterpret_cast<const uint8_t*>(p), n));
  }

  // The quad is in the first four bytes: dot product instructions multiply it by all quads of a vector.
  using Quad = uint8x8_t;
  static Quad quad(const uint8_t* p) { return load4(p); }
  // The quads at p, p + kBytes, p + 2 * kBytes and p + 3 * kBytes.
  template <int kBytes>
  static I overlapping_quads(const uint8_t* p) {
    constexpr int b = kBytes;
    constexpr uint8_t kOrder[] = {0,     1,         2,         3,         b,     b + 1,     b + 2,     b + 3,
                                  2 * b, 2 * b + 1, 2 * b + 2, 2 * b + 3, 3 * b, 3 * b + 1, 3 * b + 2, 3 * b + 3};
    return ints(vqtbl1q_u8(bytes(load(static_cast<const void*>(p))), vld1q_u8(kOrder)));
  }

  // Stores the quads of kCodes codes of each row, from code i on.
  template <int64_t kCodes>
  static void store_quads(const uint8_t* const (&rows)[kQuad], int64_t i, uint8_t flip, uint8_t* to) {
    if constexpr (kCodes == 16) {
      uint8x16x4_t quads;
      for (int j = 0; j < kQuad; ++j) quads.val[j] = veorq_u8(vld1q_u8(rows[j] + i), vdupq_n_u8(flip));
      vst4q_u8(to + i * kQuad, quads);
    } else {
      uint8x8x4_t quads;
      for (int j = 0; j < kQuad; ++j)
        quads.val[j] = veor_u8(kCodes == 8 ? vld1_u8(rows[j] + i) : load4(rows[j] + i), vdup_n_u8(flip));
      if constexpr (kCodes == 8) {
        vst4_u8(to + i * kQuad, quads);
      } else {
        const uint8x8_t low = vzip1_u8(quads.val[0], quads.val[1]), high = vzip1_u8(quads.val[2], quads.val[3]);
        const uint16x4x2_t all = vzip_u16(vreinterpret_u16_u8(low), vreinterpret_u16_u8(high));
        vst1_u8(to + i * kQuad, vreinterpret_u8_u16(all.val[0]));
        vst1_u8(to + i * kQuad + 8, vreinterpret_u8_u16(all.val[1]));
      }
    }
  }

  static I low_nibbles(I a) { return vandq_s32(a, set1(15)); }
  // The halves and quarters of bytes.
  static void split(I both, I& low, I& high) {
    low = ints(vandq_u8(bytes(both), vdupq_n_u8(15)));
    high = ints(vshrq_n_u8(bytes(both), 4));
  }
  static void split(I all, I (&quads)[4]) {
    I low, high;
    split(all, low, high);
    quads[0] = ints(vandq_u8(bytes(low), vdupq_n_u8(3)));
    quads[1] = ints(vandq_u8(bytes(high), vdupq_n_u8(3)));
    quads[2] = ints(vshrq_n_u8(bytes(low), 2));
    quads[3] = ints(vshrq_n_u8(bytes(high), 2));
  }
  static void quarters(const int8_t* p, I (&quads)[4]) { split(load(static_cast<const void*>(p)), quads); }

  // Older CPUs multiply two unsigned or two signed bytes. For them products take weights + 128 and convolutions take
  // codes - 128: both flip the highest bit.
  static I flipped(I a) { return ints(veorq_u8(bytes(a), vdupq_n_u8(128))); }
};

struct UnsignedProductNeon : ProductNeon {
  static constexpr bool kUnsignedWeights = true;

  static int32_t sum_codes(const uint8_t* codes, int64_t count) {
    uint32x4_t sums = vdupq_n_u32(0);
    int64_t i = 0;
    for (; i + 16 <= count; i += 16)
      sums = vpadalq_u16(sums, vpaddlq_u8(bytes(load(static_cast<const void*>(codes + i)))));
    for (; i < count; i += kQuad) sums = vpadalq_u16(sums, vpaddlq_u8(vcombine_u8(load4(codes + i), vcreate_u8(0))));
    return static_cast<int32_t>(vaddvq_u32(sums));
  }
  static I zps4(I zps) { return vandq_s32(zps, set1(15)); }
  static void halves(const int8_t* p, I, I& low, I& high) { split(load(static_cast<const void*>(p)), low, high); }
};

struct SignedConvNeon : ProductNeon {
  static constexpr bool kSignedCodes = true;

  // sums[c] = the sum of the weights of channel c.
  static void sum_weights(const int8_t* weights, int64_t step, int64_t quads, int64_t channels, int32_t* sums) {
    for (int64_t channel = 0; channel < channels; channel += kLanes) {
      const int64_t n = channels - channel;
      I four = set1(0);
      for (int64_t quad = 0; quad < quads; ++quad) {
        const auto* p = reinterpret_cast<const int32_t*>(weights + quad * step) + channel;
        four = vpadalq_s16(four, vpaddlq_s8(signed_bytes(load_part(p, n))));
      }
      for (int64_t c = 0; c < kLanes && c < n; ++c) sums[channel + c] = four[c];
    }
  }
};
