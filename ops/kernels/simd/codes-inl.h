// How kernels load and store the codes of a tensor: in 8 bits, or in 4.

template <CodeKind kKind>
struct Codes8 {
  static constexpr int kBits = 8;
  static uint8_t* at(void* codes, int64_t i) { return static_cast<uint8_t*>(codes) + i; }
  static const uint8_t* at(const void* codes, int64_t i) { return static_cast<const uint8_t*>(codes) + i; }
  // Zero points of int16 as store4 takes them.
  static V::I zero_points(V::I zps) { return zps; }
  template <bool kStream>
  static void store4(uint8_t* p, V::I ab, V::I cd) {
    V::store4<kKind, kStream>(p, ab, cd);
  }
  static void store1(uint8_t* p, V::I a, V::I zp) { V::store1<kKind>(p, a, zp); }
  static void store_part(uint8_t* p, V::I a, V::I zp, int64_t n) { V::store_part<kKind>(p, a, zp, n); }
  static V::I load(const uint8_t* p) { return V::load_codes<kKind>(p); }
  static V::I load_part(const uint8_t* p, int64_t n) { return V::load_codes_part<kKind>(p, n); }
};

// Rows have at least kLeastColumnsOf4Bits: two vectors or more. Without kClips, stored codes are at most the highest
// one. `Vector` is V, which needs store2_of_4_bits only for such rows.
template <CodeKind kKind, bool kClips, class Vector = V>
struct Codes4 {
  static constexpr int kBits = 4;
  static constexpr bool kHasRowsOfTwo = kLeastColumnsOf4Bits < 4 * V::kLanes;  // vectors, or three
  static_assert(kLeastColumnsOf4Bits >= 2 * V::kLanes, "rows have two vectors");
  static uint8_t* at(void* codes, int64_t i) { return static_cast<uint8_t*>(codes) + (i >> 1); }
  static const uint8_t* at(const void* codes, int64_t i) { return static_cast<const uint8_t*>(codes) + (i >> 1); }
  static constexpr int kFlipped = kKind == kU8 ? 0 : 0x88;  // the highest bits of both codes
  // Signed codes are computed as unsigned ones, which are 8 larger: one clip serves both.
  static V::I zero_points(V::I zps) { return kKind == kU8 ? zps : V::add16(zps, V::set1(int32_t{0x00080008})); }
  template <bool kStream>
  static void store4(uint8_t* p, V::I ab, V::I cd) {
    V::store4_of_4_bits<kClips>(p, ab, cd, kFlipped);
  }
  static void store2(uint8_t* p, V::I ab) { Vector::template store2_of_4_bits<kClips>(p, ab, kFlipped); }
  static V::I load(const uint8_t* p) { return V::load_codes_of_4_bits<kKind>(p); }
};
