// Winograd convolutions in plain C++, from the source that the instruction sets share. Compilers vectorize the loops.
#include "core/compiler.h"
#include "kernels/winograd.h"

namespace dynq {
namespace {

// Unsigned numbers wrap.
struct W {
  static constexpr int64_t kWords = 16, kLanes = 8;
  static constexpr int kRows = 2, kSumVectors = 2;
  struct Words {
    uint16_t v[kWords];
  };
  struct Ints {
    uint32_t v[kLanes];
  };
  struct Floats {
    float v[kLanes];
  };

  // The numbers that `of` makes of 0, 1, 2 and so on.
  template <class T, class Of>
  static T each(const Of& of) {
    T result;
    for (size_t i = 0; i < sizeof result.v / sizeof result.v[0]; ++i) result.v[i] = of(i);
    return result;
  }

  template <class T>
  static T loaded(const void* p) {
    T result;
    memcpy(result.v, p, sizeof result.v);
    return result;
  }

  static Words add(Words a, Words b) {
    return each<Words>([&](size_t i) { return static_cast<uint16_t>(a.v[i] + b.v[i]); });
  }
  static Words sub(Words a, Words b) {
    return each<Words>([&](size_t i) { return static_cast<uint16_t>(a.v[i] - b.v[i]); });
  }
  template <int kBits>
  static Words shift(Words a) {
    return each<Words>([&](size_t i) { return static_cast<uint16_t>(a.v[i] << kBits); });
  }
  static Words set1_word(int16_t value) {
    return each<Words>([&](size_t) { return static_cast<uint16_t>(value); });
  }
  static Words widen(const uint8_t* p) {
    return each<Words>([&](size_t i) { return p[i]; });
  }
  static void store(int16_t* p, Words a) { memcpy(p, a.v, sizeof a.v); }

  static Ints add(Ints a, Ints b) {
    return each<Ints>([&](size_t i) { return a.v[i] + b.v[i]; });
  }
  static Ints sub(Ints a, Ints b) {
    return each<Ints>([&](size_t i) { return a.v[i] - b.v[i]; });
  }
  static Ints mul(Ints a, Ints b) {
    return each<Ints>([&](size_t i) { return a.v[i] * b.v[i]; });
  }
  template <int kBits>
  static Ints shift(Ints a) {
    return each<Ints>([&](size_t i) { return a.v[i] << kBits; });
  }
  template <int kBits>
  static Ints shift_right(Ints a) {
    return each<Ints>([&](size_t i) { return static_cast<uint32_t>(static_cast<int32_t>(a.v[i]) >> kBits); });
  }
  static Ints set1(int32_t value) {
    return each<Ints>([&](size_t) { return static_cast<uint32_t>(value); });
  }
  static Ints load(const int32_t* p) { return loaded<Ints>(p); }
  static void store(int32_t* p, Ints a) { memcpy(p, a.v, sizeof a.v); }

  static Floats set1(float value) {
    return each<Floats>([&](size_t) { return value; });
  }
  static Floats load(const float* p) { return loaded<Floats>(p); }
  static void store(float* p, Floats a) { memcpy(p, a.v, sizeof a.v); }
  static Floats to_float(Ints a) {
    return each<Floats>([&](size_t i) { return static_cast<float>(static_cast<int32_t>(a.v[i])); });
  }
  static Floats add(Floats a, Floats b) {
    return each<Floats>([&](size_t i) { return a.v[i] + b.v[i]; });
  }
  static Floats mul(Floats a, Floats b) {
    return each<Floats>([&](size_t i) { return a.v[i] * b.v[i]; });
  }
  static Floats min(Floats a, Floats b) {
    return each<Floats>([&](size_t i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
  }
  static Floats max(Floats a, Floats b) {
    return each<Floats>([&](size_t i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
  }

  // Parts 0 and 1: the first two weights of 8 output channels each; 2 and 3: the last two.
  static Words weights(const int8_t* quad, int64_t part) {
    return each<Words>([&](size_t i) {
      return static_cast<uint16_t>(quad[part % 2 * kLanes * kQuad + static_cast<int64_t>(i) / 2 * kQuad + part / 2 * 2 +
                                        static_cast<int64_t>(i) % 2]);
    });
  }
  static void add_weights(const int8_t* quad, Ints (&sums)[2]) {
    for (int64_t i = 0; i < kBlockColumns * kQuad; ++i)
      sums[i / kQuad / kLanes].v[i / kQuad % kLanes] += static_cast<uint32_t>(quad[i]);
  }
  static void add_magnitudes(const int8_t* quad, Ints (&sums)[2]) {
    for (int64_t i = 0; i < kBlockColumns * kQuad; ++i)
      sums[i / kQuad / kLanes].v[i / kQuad % kLanes] += static_cast<uint32_t>(quad[i] < 0 ? -quad[i] : quad[i]);
  }

  using Sums = Ints;
  using Weights = Words;
  struct Pair {
    int16_t first, second;
  };
  static Sums no_sums() { return set1(int32_t{0}); }
  static Sums load_sums(const int32_t* p) { return load(p); }
  static void store_sums(int32_t* p, Sums a) { store(p, a); }
  static Weights load_weights(const int16_t* p, int v) { return loaded<Weights>(p + v * kWords); }
  static Pair pair(const int16_t* p) { return {p[0], p[1]}; }
  static Sums dot(Sums sums, Pair codes, Weights weights) {
    return each<Sums>([&](size_t i) {
      const int32_t first = static_cast<int16_t>(weights.v[2 * i]), second = static_cast<int16_t>(weights.v[2 * i + 1]);
      return sums.v[i] + static_cast<uint32_t>(codes.first * first) + static_cast<uint32_t>(codes.second * second);
    });
  }

  static void store_columns(const Floats (&columns)[kWinogradOut], float* p, int64_t channel_stride) {
    for (int64_t c = 0; c < kLanes; ++c)
      for (int64_t j = 0; j < kWinogradOut; ++j) dynq::store(p + c * channel_stride + j, columns[j].v[c]);
  }
  static void interleave(const uint8_t* const (&rows)[kWinogradUnit], int64_t i, uint8_t flip, uint8_t* to) {
    for (int64_t at = i; at < i + 8; ++at)
      for (int64_t j = 0; j < kWinogradUnit; ++j) to[kWinogradUnit * at + j] = rows[j][at] ^ flip;
  }
};

#include "kernels/simd/winograd-inl.h"

}  // namespace

constexpr WinogradKernels kPortableWinograd = kWinograd;

}  // namespace dynq
