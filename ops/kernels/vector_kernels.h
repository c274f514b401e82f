// Every vectorised kernel, written once over a set of lanes `V` (avx2.cc, avx512.cc) and instantiated inside that
// file's anonymous namespace, so that no symbol compiled for one instruction set is visible to another.
//
// V::kLanes floats make a V::F, as many int32 a V::I. load_part/store_part touch the first n < kLanes elements only.
// V::max(a, b) and V::min(a, b) give b where a or b is NaN, as the x86 instructions do.

// x / scale, correctly rounded, clamped to +-kQuotientBound, a NaN going to the lower bound.
struct Division {
  static constexpr bool kNeedsReciprocal = false;
  V::F scale;
  Division(V::F scale_, V::F) : scale(scale_) {}
  V::F operator()(V::F x) const {
    const V::F quotient = V::div(x, scale);
    return V::min(V::max(quotient, V::set1(-kQuotientBound)), V::set1(kQuotientBound));
  }
};

// The same without the divider (Markstein): with r the correctly rounded 1/scale, x*r is off by few units in the last
// place, x - q0*scale is exact in one fused multiply-add, and a second one rounds the corrected quotient correctly.
// Needs kSmallestSafeScale <= scale <= kLargestSafeScale; x is clamped first, so that nothing overflows, and where
// the remainder underflows the quotient is far below one half. tests/test_exactness.py tries all 2^32 values of x.
struct Markstein {
  static constexpr bool kNeedsReciprocal = true;
  V::F scale, reciprocal, bound;
  Markstein(V::F scale_, V::F reciprocal_)
      : scale(scale_), reciprocal(reciprocal_), bound(V::mul(scale_, V::set1(kQuotientBound))) {}
  V::F operator()(V::F x) const {
    x = V::min(V::max(x, V::negate(bound)), bound);
    const V::F q0 = V::mul(x, reciprocal);
    const V::F remainder = V::fnmadd(q0, scale, x);
    return V::fmadd(remainder, reciprocal, q0);
  }
};

// From floats to codes: operator() gives int32, which storing saturates.
template <class Quotient>
struct OnnxQuantizer {
  static constexpr bool kNeedsReciprocal = Quotient::kNeedsReciprocal;
  Quotient quotient;
  V::I zp;
  OnnxQuantizer(V::F scale, V::F reciprocal, V::I zp_) : quotient(scale, reciprocal), zp(zp_) {}
  V::I operator()(V::F x) const { return V::add(V::round(quotient(x)), zp); }
};

struct OneDnnQuantizer {
  static constexpr bool kNeedsReciprocal = true;
  V::F reciprocal, zp;
  OneDnnQuantizer(V::F, V::F reciprocal_, V::I zp_) : reciprocal(reciprocal_), zp(V::to_float(zp_)) {}
  V::I operator()(V::F x) const {
    const V::F sum = V::add(V::mul(x, reciprocal), zp);
    return V::round(V::min(V::max(sum, V::set1(-kQuotientBound)), V::set1(kQuotientBound)));
  }
};

// Whether x / scale may be computed by Markstein's method for all of them.
inline bool are_safe(const float* scales, int64_t count) {
  int32_t unsafe = 0;
  for (int64_t i = 0; i < count; ++i) unsafe |= !(scales[i] >= kSmallestSafeScale && scales[i] <= kLargestSafeScale);
  return unsafe == 0;
}

template <class Quantizer, CodeType kType>
void quantize_row(const float* src, uint8_t* dst, int64_t cols, const Quantizer& quantizer) {
  constexpr int64_t L = V::kLanes;
  int64_t i = 0;
  for (; i + 4 * L <= cols; i += 4 * L)
    V::store4<kType>(dst + i, quantizer(V::load(src + i)), quantizer(V::load(src + i + L)),
                     quantizer(V::load(src + i + 2 * L)), quantizer(V::load(src + i + 3 * L)));
  for (; i + L <= cols; i += L) V::store1<kType>(dst + i, quantizer(V::load(src + i)));
  if (i < cols) V::store_part<kType>(dst + i, quantizer(V::load_part(src + i, cols - i)), cols - i);
}

template <Arithmetic kArithmetic, CodeType kType>
void quantize_rows(const Block& block) {
  for (int64_t row = 0; row < block.rows; ++row) {
    const float* src = static_cast<const float*>(block.src) + row * block.stride;
    uint8_t* dst = static_cast<uint8_t*>(block.dst) + row * block.stride;
    const V::F scale = V::set1(block.scales[row]), reciprocal = V::set1(1.0f / block.scales[row]);
    const V::I zp = V::set1(block.zps[row]);
    if (kArithmetic == kOneDnn)
      quantize_row<OneDnnQuantizer, kType>(src, dst, block.cols, {scale, reciprocal, zp});
    else if (are_safe(block.scales + row, 1))
      quantize_row<OnnxQuantizer<Markstein>, kType>(src, dst, block.cols, {scale, reciprocal, zp});
    else
      quantize_row<OnnxQuantizer<Division>, kType>(src, dst, block.cols, {scale, reciprocal, zp});
  }
}

template <class Quantizer, CodeType kType>
void quantize_columns_with(const Block& block) {
  constexpr int64_t L = V::kLanes;
  alignas(64) float storage[Quantizer::kNeedsReciprocal ? kMaxParameters : 1];
  const float* scales = block.scales;
  const int32_t* zps = block.zps;
  const float* reciprocals = Quantizer::kNeedsReciprocal ? storage : scales;
  if (Quantizer::kNeedsReciprocal)
    for (int64_t i = 0; i < block.cols; ++i) storage[i] = 1.0f / scales[i];
  const auto at = [&](int64_t i) -> Quantizer {
    return {V::load(scales + i), V::load(reciprocals + i), V::load(zps + i)};
  };
  for (int64_t row = 0; row < block.rows; ++row) {
    const float* src = static_cast<const float*>(block.src) + row * block.stride;
    uint8_t* dst = static_cast<uint8_t*>(block.dst) + row * block.stride;
    int64_t i = 0;
    for (; i + 4 * L <= block.cols; i += 4 * L)
      V::store4<kType>(dst + i, at(i)(V::load(src + i)), at(i + L)(V::load(src + i + L)),
                       at(i + 2 * L)(V::load(src + i + 2 * L)), at(i + 3 * L)(V::load(src + i + 3 * L)));
    for (; i + L <= block.cols; i += L) V::store1<kType>(dst + i, at(i)(V::load(src + i)));
    if (const int64_t n = block.cols - i) {
      const Quantizer last{V::load_part(scales + i, n), V::load_part(reciprocals + i, n), V::load_part(zps + i, n)};
      V::store_part<kType>(dst + i, last(V::load_part(src + i, n)), n);
    }
  }
}

template <Arithmetic kArithmetic, CodeType kType>
void quantize_columns(const Block& block) {
  if (kArithmetic == kOneDnn)
    quantize_columns_with<OneDnnQuantizer, kType>(block);
  else if (block.rows > 1 && are_safe(block.scales, block.cols))  // one row would not repay the reciprocals
    quantize_columns_with<OnnxQuantizer<Markstein>, kType>(block);
  else
    quantize_columns_with<OnnxQuantizer<Division>, kType>(block);
}

struct Dequantizer {
  V::F scale;
  V::I zp;
  V::F operator()(V::I code) const { return V::mul(V::to_float(V::sub(code, zp)), scale); }
};

template <CodeType kType>
void dequantize_rows(const Block& block) {
  constexpr int64_t L = V::kLanes;
  for (int64_t row = 0; row < block.rows; ++row) {
    const uint8_t* src = static_cast<const uint8_t*>(block.src) + row * block.stride;
    float* dst = static_cast<float*>(block.dst) + row * block.stride;
    const Dequantizer dequantizer{V::set1(block.scales[row]), V::set1(block.zps[row])};
    int64_t i = 0;
    for (; i + 4 * L <= block.cols; i += 4 * L)
      for (int64_t k = 0; k < 4 * L; k += L) V::store(dst + i + k, dequantizer(V::load_codes<kType>(src + i + k)));
    for (; i + L <= block.cols; i += L) V::store(dst + i, dequantizer(V::load_codes<kType>(src + i)));
    if (const int64_t n = block.cols - i)
      V::store_part(dst + i, dequantizer(V::load_codes_part<kType>(src + i, n)), n);
  }
}

template <CodeType kType>
void dequantize_columns(const Block& block) {
  constexpr int64_t L = V::kLanes;
  const float* scales = block.scales;
  const int32_t* zps = block.zps;
  for (int64_t row = 0; row < block.rows; ++row) {
    const uint8_t* src = static_cast<const uint8_t*>(block.src) + row * block.stride;
    float* dst = static_cast<float*>(block.dst) + row * block.stride;
    int64_t i = 0;
    for (; i + L <= block.cols; i += L) {
      const Dequantizer dequantizer{V::load(scales + i), V::load(zps + i)};
      V::store(dst + i, dequantizer(V::load_codes<kType>(src + i)));
    }
    if (const int64_t n = block.cols - i) {
      const Dequantizer dequantizer{V::load_part(scales + i, n), V::load_part(zps + i, n)};
      V::store_part(dst + i, dequantizer(V::load_codes_part<kType>(src + i, n)), n);
    }
  }
}

constexpr KernelTable make_table(const char* name) {
  return {
      name,
      {{{quantize_rows<kOnnx, kU8>, quantize_columns<kOnnx, kU8>},
        {quantize_rows<kOnnx, kS8>, quantize_columns<kOnnx, kS8>}},
       {{quantize_rows<kOneDnn, kU8>, quantize_columns<kOneDnn, kU8>},
        {quantize_rows<kOneDnn, kS8>, quantize_columns<kOneDnn, kS8>}}},
      {{dequantize_rows<kU8>, dequantize_columns<kU8>}, {dequantize_rows<kS8>, dequantize_columns<kS8>}},
  };
}
