// How kernels load and store the codes of a tensor: in 8 bits, or in 4.
//
// Kernels compute codes as pairs: vectors of int16, each of two vectors of elements. `pack` saturates two pairs, and
// `store` stores kWhole elements: one packed vector of 8 bits, or two of 4 bits.

template <CodeKind kKind>
struct Codes8 {
  static constexpr int kBits = 8;
  static constexpr int64_t kWhole = 4 * V::kLanes;
  using Packed = V::Packed8;
  static uint8_t* at(void* codes, int64_t i) { return static_cast<uint8_t*>(codes) + i; }
  static const uint8_t* at(const void* codes, int64_t i) { return static_cast<const uint8_t*>(codes) + i; }
  // Zero points of int16 as pack takes them.
  static V::I zero_points(V::I zps) { return zps; }
  static Packed pack(V::I ab, V::I cd) { return V::pack8<kKind>(ab, cd); }
  template <bool kStream>
  static void store(uint8_t* p, Packed packed) {
    V::store_codes8<kStream>(p, packed);
  }
  static void store1(uint8_t* p, V::I a, V::I zp) { V::store1<kKind>(p, a, zp); }
  static void store_part(uint8_t* p, V::I a, V::I zp, int64_t n) { V::store_part<kKind>(p, a, zp, n); }
  static V::I load(const uint8_t* p) { return V::load_codes<kKind>(p); }
  static V::I load_part(const uint8_t* p, int64_t n) { return V::load_codes_part<kKind>(p, n); }
};

// Of a kind that is known at run time. Kernels that divide, or wrap around, have one copy for both kinds; others would
// take up to 5 % longer.
struct AnyCodes8 : Codes8<kU8> {
  CodeKind kind;
  explicit AnyCodes8(CodeKind kind_) : kind(kind_) {}

  Packed pack(V::I ab, V::I cd) const {
    if (kind == kU8) return V::pack8<kU8>(ab, cd);
    return V::pack8<kS8>(ab, cd);
  }
  void store1(uint8_t* p, V::I a, V::I zp) const {
    if (kind == kU8) return V::store1<kU8>(p, a, zp);
    V::store1<kS8>(p, a, zp);
  }
  void store_part(uint8_t* p, V::I a, V::I zp, int64_t n) const {
    if (kind == kU8) return V::store_part<kU8>(p, a, zp, n);
    V::store_part<kS8>(p, a, zp, n);
  }
};

// Rows have at least kMinColumnsOf4Bits columns. pack() has no upper clip: no code exceeds the highest one. `Vector`
// is V, which needs store_32_codes4 only if kHasShortRows.
template <CodeKind kKind, class Vector = V>
struct Codes4 {
  static constexpr int kBits = 4;
  static constexpr int64_t kWhole = 8 * V::kLanes;
  static constexpr bool kHasShortRows = kMinColumnsOf4Bits < kWhole;
  using Packed = V::Packed4;
  static uint8_t* at(void* codes, int64_t i) { return static_cast<uint8_t*>(codes) + (i >> 1); }
  static const uint8_t* at(const void* codes, int64_t i) { return static_cast<const uint8_t*>(codes) + (i >> 1); }
  static constexpr uint8_t kFlipped = kKind == kU8 ? 0 : 0x88;  // the highest bits of both codes
  // Signed codes are computed as unsigned codes, 8 larger: both kinds share one clip.
  static V::I zero_points(V::I zps) { return kKind == kU8 ? zps : V::add16(zps, V::set1(int32_t{0x00080008})); }
  static Packed pack(V::I ab, V::I cd) { return V::pack4(ab, cd); }
  static void store(uint8_t* p, Packed first, Packed second) { V::store_codes4(p, first, second, kFlipped); }
  static void store_least(uint8_t* p, Packed packed) { Vector::store_32_codes4(p, packed, kFlipped); }
  static V::I load(const uint8_t* p) { return V::load_codes_of_4_bits<kKind>(p); }
  // The value of each code of 4 bits.
  static constexpr float kHigh = kKind == kU8 ? 8 : -8;
  static constexpr float kFloats[] = {
      0, 1, 2, 3, 4, 5, 6, 7, kHigh, kHigh + 1, kHigh + 2, kHigh + 3, kHigh + 4, kHigh + 5, kHigh + 6, kHigh + 7};
};
