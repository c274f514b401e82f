// widen and narrow: 16-bit floats to and from float, 4-bit codes to and from codes of 8 bits.
//
// A Step converts kElements elements of kFrom bits to kTo bits.

struct WidenF16 {
  static constexpr int64_t kElements = V::kLanes, kFrom = 16, kTo = 32;
  static void run(const uint8_t* from, uint8_t* to) { V::store_bits(to, V::load_f16(from)); }
};

struct WidenBf16 {
  static constexpr int64_t kElements = V::kLanes, kFrom = 16, kTo = 32;
  static void run(const uint8_t* from, uint8_t* to) { V::store_bits(to, V::load_bf16(from)); }
};

// Four vectors, which share one check for NaN.
struct NarrowF16 {
  static constexpr int64_t kElements = 4 * V::kLanes, kFrom = 32, kTo = 16;
  static void run(const uint8_t* from, uint8_t* to) {
    V::F floats[4];
    for (int k = 0; k < 4; ++k) floats[k] = V::load_bits(from + k * V::kLanes * 4);
    if (V::has_nan(floats[0], floats[1]) || V::has_nan(floats[2], floats[3]))
      for (V::F& some : floats) some = quiet(some);
    for (int k = 0; k < 4; ++k) V::store_f16(to + k * V::kLanes * 2, floats[k]);
  }
};

struct NarrowBf16 {
  static constexpr int64_t kElements = V::kLanes, kFrom = 32, kTo = 16;
  static void run(const uint8_t* from, uint8_t* to) {
    const V::I bits = V::bits(quiet(V::load_bits(from))), odd = V::lowest_bits(V::high_halves(bits));
    V::store_low_halves(to, V::high_halves(V::add(V::add(bits, V::set1(int32_t{0x7fff})), odd)));
  }
};

template <CodeKind kKind>
struct WidenCodes {
  static constexpr int64_t kElements = 4 * V::kLanes, kFrom = 4, kTo = 8;
  static void run(const uint8_t* from, uint8_t* to) { V::widen_codes<kKind>(from, to); }
};

template <CodeKind kKind>
struct NarrowCodes {
  static constexpr int64_t kElements = 4 * V::kLanes, kFrom = 8, kTo = 4;
  static void run(const uint8_t* from, uint8_t* to) { V::narrow_codes<kKind>(from, to); }
};

template <class Step>
void convert(const void* src, void* dst, int64_t count) {
  constexpr int64_t kFromBytes = Step::kElements * Step::kFrom / 8, kToBytes = Step::kElements * Step::kTo / 8;
  const auto* from = static_cast<const uint8_t*>(src);
  auto* to = static_cast<uint8_t*>(dst);
  for (; count >= Step::kElements; count -= Step::kElements, from += kFromBytes, to += kToBytes) Step::run(from, to);
  if (count == 0) return;
  uint8_t rest_from[kFromBytes] = {}, rest_to[kToBytes];
  memcpy(rest_from, from, static_cast<size_t>((count * Step::kFrom + 7) / 8));
  Step::run(rest_from, rest_to);
  memcpy(to, rest_to, static_cast<size_t>((count * Step::kTo + 7) / 8));
}
