// How kernels load and store the floats of a tensor. They compute in float32.

// NaN keeps its sign and no other bits.
inline V::F quiet(V::F a) { return V::replace_nan(a, V::with_sign_of(V::set1(kNan), a)); }

// Stores that straddle cache lines cost up to 1.5 times as much as others. A row of at least this many vectors
// therefore begins with one unaligned vector, and the first aligned vector overlaps it. For shorter rows the extra
// vector costs more than it saves.
constexpr int64_t kVectorsToAlign = 6;

constexpr bool is_worth_aligning(int64_t cols) { return cols >= kVectorsToAlign * V::kLanes; }

struct Float32 {
  using Element = float;
  static float element(const float* p) { return dynq::load(p); }
  static V::F load(const float* p) { return V::load(p); }
  static V::F load_part(const float* p, int64_t n) { return V::load_part(p, n); }
  template <bool kStream>
  static void store(float* p, V::F a) {
    V::store<kStream>(p, a);
  }
  static void store_part(float* p, V::F a, int64_t n) { V::store_part(p, a, n); }
  // The index of the first element with an address aligned to a vector, less than kLanes. If there is none (the
  // address is no multiple of 4), the result is still less than kLanes, and the stores are unaligned.
  static int64_t first_aligned(const float* dst, int64_t cols) {
    if (!is_worth_aligning(cols)) return 0;
    return static_cast<int64_t>((-reinterpret_cast<uintptr_t>(dst) & (sizeof(V::F) - 1)) / sizeof(float));
  }
  // Rows this many apart have the same alignment; 1 if `cols` is not worth aligning.
  static int64_t rows_to_same_alignment(int64_t stride, int64_t cols) {
    int64_t rows = 1;
    if (is_worth_aligning(cols))
      while (rows * stride % V::kLanes != 0) rows *= 2;
    return rows;
  }
};

struct Float16 {
  using Element = uint16_t;
  static V::F load(const uint16_t* p) { return V::load_f16(reinterpret_cast<const uint8_t*>(p)); }
  static V::F load_part(const uint16_t* p, int64_t n) {
    uint16_t part[V::kLanes] = {};
    memcpy(part, p, static_cast<size_t>(n) * sizeof *p);
    return load(part);
  }
  static float element(const uint16_t* p) { return widen_f16(dynq::load(p)); }
  template <bool>
  static void store(uint16_t* p, V::F a) {
    V::store_f16(reinterpret_cast<uint8_t*>(p), quiet(a));
  }
  static void store_part(uint16_t* p, V::F a, int64_t n) {
    uint16_t part[V::kLanes];
    store<false>(part, a);
    memcpy(p, part, static_cast<size_t>(n) * sizeof *p);
  }
  static int64_t first_aligned(const uint16_t*, int64_t) { return 0; }  // fewer of these stores straddle cache lines
  static int64_t rows_to_same_alignment(int64_t, int64_t) { return 1; }
};

// For floats that are not NaN. (store_part still handles NaN.)
struct NumericFloat16 : Float16 {
  template <bool>
  static void store(uint16_t* p, V::F a) {
    V::store_f16(reinterpret_cast<uint8_t*>(p), a);
  }
};
