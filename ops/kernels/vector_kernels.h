// Every vectorised kernel, written once over a set of lanes `V` (avx2.cc, avx512.cc) and instantiated inside that
// file's anonymous namespace, so that no symbol compiled for one instruction set is visible to another.
//
// V::kLanes floats make a V::F, as many int32 a V::I. load_part/store_part touch the first n < kLanes elements only.
// V::min(a, b) gives b where either is NaN, and V::round gives the lowest int32 where its argument is NaN or beyond
// int32, as the x86 instructions do. Hence no lower clamp: NaN, -inf and whatever is far below the lowest code all
// round to the lowest int32, which saturates to the lowest code. The upper clamp lets a NaN pass.

// x / scale, correctly rounded; from above clamped to kQuotientBound.
struct Division {
  static constexpr bool kNeedsReciprocal = false;
  V::F scale;
  Division(V::F scale_, V::F) : scale(scale_) {}
  V::F operator()(V::F x) const { return V::min(V::set1(kQuotientBound), V::div(x, scale)); }
};

// The same without the divider (Markstein): with r the correctly rounded 1/scale, x*r is off by few units in the last
// place, x - q0*scale is exact in one fused multiply-add, and a second one rounds the corrected quotient correctly.
// Needs kSmallestSafeScale <= scale <= kLargestSafeScale. Far below the lowest code the products may overflow and give
// NaN, which is right there; where the remainder underflows, the quotient is far below one half.
// tests/test_exactness.py tries all 2^32 values of x.
struct Markstein {
  static constexpr bool kNeedsReciprocal = true;
  V::F scale, reciprocal, bound;
  Markstein(V::F scale_, V::F reciprocal_)
      : scale(scale_), reciprocal(reciprocal_), bound(V::mul(scale_, V::set1(kQuotientBound))) {}
  V::F operator()(V::F x) const {
    x = V::min(bound, x);
    const V::F q0 = V::mul(x, reciprocal);
    const V::F remainder = V::fnmadd(q0, scale, x);
    return V::fmadd(remainder, reciprocal, q0);
  }
};

// From floats to int32, to which the zero point has yet to be added.
template <class Quotient>
struct OnnxQuantizer {
  static constexpr bool kNeedsReciprocal = Quotient::kNeedsReciprocal;
  Quotient quotient;
  V::I zp;
  OnnxQuantizer(V::F scale, V::F reciprocal, V::I zp_) : quotient(scale, reciprocal), zp(zp_) {}
  V::I operator()(V::F x) const { return V::round(quotient(x)); }
};

struct OneDnnQuantizer {
  static constexpr bool kNeedsReciprocal = true;
  V::F reciprocal, zp_f32;
  V::I zp;  // nothing: it has been added before rounding
  OneDnnQuantizer(V::F, V::F reciprocal_, V::I zp_)
      : reciprocal(reciprocal_), zp_f32(V::to_float(zp_)), zp(V::set1(int32_t{0})) {}
  V::I operator()(V::F x) const {
    return V::round(V::min(V::set1(kQuotientBound), V::add(V::mul(x, reciprocal), zp_f32)));
  }
};

// The parameters of a block, one for each row or column, with their reciprocals where they are wanted.
template <class Quantizer>
class Quantizers {
 public:
  Quantizers(const float* scales, const int32_t* zps, int64_t count)
      : scales_(scales), zps_(zps), reciprocals_(Quantizer::kNeedsReciprocal ? storage_ : scales) {
    if (Quantizer::kNeedsReciprocal)
      for (int64_t i = 0; i < count; ++i) storage_[i] = 1.0f / scales[i];
  }
  Quantizer of_row(int64_t i) const { return {V::set1(scales_[i]), V::set1(reciprocals_[i]), V::set1(zps_[i])}; }
  Quantizer of_columns(int64_t i) const { return {V::load(scales_ + i), V::load(reciprocals_ + i), V::load(zps_ + i)}; }
  Quantizer of_last_columns(int64_t i, int64_t n) const {
    return {V::load_part(scales_ + i, n), V::load_part(reciprocals_ + i, n), V::load_part(zps_ + i, n)};
  }

 private:
  const float* scales_;
  const int32_t* zps_;
  const float* reciprocals_;
  alignas(64) float storage_[Quantizer::kNeedsReciprocal ? kMaxParameters : 1];
};

template <class Quantizer, CodeType kType, bool kStream>
void quantize_rows_with(const Block& block) {
  constexpr int64_t L = V::kLanes;
  const Quantizers<Quantizer> quantizers(block.scales, block.zps, block.rows);
  for (int64_t row = 0; row < block.rows; ++row) {
    const float* src = static_cast<const float*>(block.src) + row * block.stride;
    uint8_t* dst = static_cast<uint8_t*>(block.dst) + row * block.stride;
    const Quantizer quantizer = quantizers.of_row(row);
    const V::I zp = V::pack16(quantizer.zp, quantizer.zp);
    const auto two = [&](int64_t i) {
      return V::add16(V::pack16(quantizer(V::load(src + i)), quantizer(V::load(src + i + L))), zp);
    };
    int64_t i = 0;
    for (; i + 4 * L <= block.cols; i += 4 * L) V::store4<kType, kStream>(dst + i, two(i), two(i + 2 * L));
    for (; i + L <= block.cols; i += L) V::store1<kType>(dst + i, quantizer(V::load(src + i)), quantizer.zp);
    if (const int64_t n = block.cols - i)
      V::store_part<kType>(dst + i, quantizer(V::load_part(src + i, n)), quantizer.zp, n);
  }
}

// kRows rows at once, so that parameters are loaded once for all of them.
template <int kRows, CodeType kType, bool kStream, class Quantizer>
void quantize_some_rows(const Quantizers<Quantizer>& quantizers, const float* src, uint8_t* dst, int64_t cols,
                        int64_t stride) {
  constexpr int64_t L = V::kLanes;
  int64_t i = 0;
  for (; i + 4 * L <= cols; i += 4 * L) {
    V::I halves[2][kRows];
    for (int64_t half = 0; half < 2; ++half) {
      const int64_t first = i + half * 2 * L;
      const Quantizer low = quantizers.of_columns(first), high = quantizers.of_columns(first + L);
      const V::I zp = V::pack16(low.zp, high.zp);
      for (int64_t row = 0; row < kRows; ++row) {
        const float* from = src + row * stride + first;
        halves[half][row] = V::add16(V::pack16(low(V::load(from)), high(V::load(from + L))), zp);
      }
    }
    for (int64_t row = 0; row < kRows; ++row)
      V::store4<kType, kStream>(dst + row * stride + i, halves[0][row], halves[1][row]);
  }
  for (; i + L <= cols; i += L) {
    const Quantizer quantizer = quantizers.of_columns(i);
    for (int64_t row = 0; row < kRows; ++row)
      V::store1<kType>(dst + row * stride + i, quantizer(V::load(src + row * stride + i)), quantizer.zp);
  }
  if (const int64_t n = cols - i) {
    const Quantizer quantizer = quantizers.of_last_columns(i, n);
    for (int64_t row = 0; row < kRows; ++row)
      V::store_part<kType>(dst + row * stride + i, quantizer(V::load_part(src + row * stride + i, n)), quantizer.zp, n);
  }
}

template <class Quantizer, CodeType kType, bool kStream>
void quantize_columns_with(const Block& block) {
  const Quantizers<Quantizer> quantizers(block.scales, block.zps, block.cols);
  const float* src = static_cast<const float*>(block.src);
  uint8_t* dst = static_cast<uint8_t*>(block.dst);
  int64_t row = 0;
  for (; row + V::kRows <= block.rows; row += V::kRows)
    quantize_some_rows<V::kRows, kType, kStream>(quantizers, src + row * block.stride, dst + row * block.stride,
                                                 block.cols, block.stride);
  for (; row < block.rows; ++row)
    quantize_some_rows<1, kType, kStream>(quantizers, src + row * block.stride, dst + row * block.stride, block.cols,
                                          block.stride);
}

template <class Quantizer, CodeType kType, Parameters kParameters, bool kStream>
void quantize_with(const Block& block) {
  if (kParameters == kPerRow)
    quantize_rows_with<Quantizer, kType, kStream>(block);
  else
    quantize_columns_with<Quantizer, kType, kStream>(block);
}

// Whether x / scale may be computed by Markstein's method for all of them.
inline bool are_safe(const float* scales, int64_t count) {
  int32_t unsafe = 0;
  for (int64_t i = 0; i < count; ++i) unsafe |= !(scales[i] >= kSmallestSafeScale && scales[i] <= kLargestSafeScale);
  return unsafe == 0;
}

// Whether clamping the quotient to kQuotientBound changes nothing after the zero point is added and the sum is clipped.
inline bool are_small(const float* zps, int64_t count) {
  int32_t large = 0;
  for (int64_t i = 0; i < count; ++i) large |= !(zps[i] >= -kLargestSafeClip && zps[i] <= kLargestSafeClip);
  return large == 0;
}

// Whether small zero points are integers, so that their sums with rounded quotients are.
inline bool are_whole(const float* zps, int64_t count) {
  int32_t broken = 0;
  for (int64_t i = 0; i < count; ++i) broken |= static_cast<float>(static_cast<int32_t>(zps[i])) != zps[i];
  return broken == 0;
}

// Stores past the caches must be aligned, in every row.
inline bool can_stream(const Block& block, uintptr_t dst_size) {
  const uintptr_t step = block.rows > 1 ? static_cast<uintptr_t>(block.stride) * dst_size : 0;
  return block.stream && (reinterpret_cast<uintptr_t>(block.dst) | step) % 64 == 0;
}

template <Arithmetic kArithmetic, CodeType kType, Parameters kParameters>
void quantize(const Block& block) {
  const int64_t count = kParameters == kPerRow ? block.rows : block.cols;
  if (kArithmetic == kOneDnn) {
    quantize_with<OneDnnQuantizer, kType, kParameters, false>(block);
  } else if ((kParameters == kPerColumn && block.rows == 1) || !are_safe(block.scales, count)) {
    quantize_with<OnnxQuantizer<Division>, kType, kParameters, false>(block);  // one row would not repay reciprocals
  } else if (can_stream(block, 1)) {
    quantize_with<OnnxQuantizer<Markstein>, kType, kParameters, true>(block);
    V::fence();
  } else {
    quantize_with<OnnxQuantizer<Markstein>, kType, kParameters, false>(block);
  }
}

struct Dequantizer {
  V::F scale;
  V::I zp;
  V::F operator()(V::I code) const { return V::mul(V::to_float(V::sub(code, zp)), scale); }
};

template <CodeType kType, bool kStream>
void dequantize_rows(const Block& block) {
  constexpr int64_t L = V::kLanes;
  for (int64_t row = 0; row < block.rows; ++row) {
    const uint8_t* src = static_cast<const uint8_t*>(block.src) + row * block.stride;
    float* dst = static_cast<float*>(block.dst) + row * block.stride;
    const Dequantizer dequantizer{V::set1(block.scales[row]), V::set1(block.zps[row])};
    int64_t i = 0;
    for (; i + 4 * L <= block.cols; i += 4 * L)
      for (int64_t k = i; k < i + 4 * L; k += L) V::store<kStream>(dst + k, dequantizer(V::load_codes<kType>(src + k)));
    for (; i + L <= block.cols; i += L) V::store<kStream>(dst + i, dequantizer(V::load_codes<kType>(src + i)));
    if (const int64_t n = block.cols - i) V::store_part(dst + i, dequantizer(V::load_codes_part<kType>(src + i, n)), n);
  }
}

template <int kRows, CodeType kType, bool kStream>
void dequantize_some_rows(const Block& block, int64_t first) {
  constexpr int64_t L = V::kLanes;
  const uint8_t* src = static_cast<const uint8_t*>(block.src) + first * block.stride;
  float* dst = static_cast<float*>(block.dst) + first * block.stride;
  int64_t i = 0;
  for (; i + L <= block.cols; i += L) {
    const Dequantizer dequantizer{V::load(block.scales + i), V::load(block.zps + i)};
    for (int64_t at = i; at < i + kRows * block.stride; at += block.stride)
      V::store<kStream>(dst + at, dequantizer(V::load_codes<kType>(src + at)));
  }
  if (const int64_t n = block.cols - i) {
    const Dequantizer dequantizer{V::load_part(block.scales + i, n), V::load_part(block.zps + i, n)};
    for (int64_t at = i; at < i + kRows * block.stride; at += block.stride)
      V::store_part(dst + at, dequantizer(V::load_codes_part<kType>(src + at, n)), n);
  }
}

template <CodeType kType, Parameters kParameters, bool kStream>
void dequantize_with(const Block& block) {
  if (kParameters == kPerRow) return dequantize_rows<kType, kStream>(block);
  int64_t row = 0;
  for (; row + V::kRows <= block.rows; row += V::kRows) dequantize_some_rows<V::kRows, kType, kStream>(block, row);
  for (; row < block.rows; ++row) dequantize_some_rows<1, kType, kStream>(block, row);
}

template <CodeType kType, Parameters kParameters>
void dequantize(const Block& block) {
  if (can_stream(block, sizeof(float))) {
    dequantize_with<kType, kParameters, true>(block);
    V::fence();
  } else {
    dequantize_with<kType, kParameters, false>(block);
  }
}

// Quotients of the affine kernels, in full: overflow and NaN are seen.
struct AffineDivision {
  V::F scale;
  AffineDivision(V::F scale_, V::F) : scale(scale_) {}
  V::F operator()(V::F x) const { return V::div(x, scale); }
};

// As Markstein, with both clamps, which let a NaN pass, and with the sign of x, which the correction takes from -0; for
// clips well within kQuotientBound.
struct AffineMarkstein {
  Markstein quotient;
  AffineMarkstein(V::F scale, V::F reciprocal) : quotient(scale, reciprocal) {}
  V::F operator()(V::F x) const { return V::with_sign_of(quotient(V::max(V::negate(quotient.bound), x)), x); }
};

struct AffineProduct {
  V::F factor;
  AffineProduct(V::F, V::F factor_) : factor(factor_) {}
  V::F operator()(V::F x) const { return V::mul(x, factor); }
};

template <class Quotient, Order kOrder>
struct AffineQuantizer {
  Quotient quotient;
  V::F zp, low, high, nan, zero;
  AffineQuantizer(const Block& block, V::F scale, V::F reciprocal, V::F zp_)
      : quotient(scale, reciprocal),
        zp(zp_),
        low(V::set1(block.low)),
        high(V::set1(block.high)),
        nan(V::set1(block.nan)),
        zero(V::set1(block.zero)) {}
  V::F clip(V::F x) const { return V::min(high, V::max(low, x)); }
  V::F operator()(V::F x) const {
    const V::F t = quotient(x);
    const V::F code = kOrder == kRoundThenAdd   ? clip(V::add(V::round_float(t), zp))
                      : kOrder == kAddThenRound ? V::round_float(clip(V::add(t, zp)))
                                                : clip(V::round_float(t));
    return V::add(V::replace_nan(code, nan), zero);
  }
};

template <class Quantizer, AffineTarget kTarget, Order kOrder, bool kInverse>
void affine_run(const Quantizer& quantizer, V::F scale, const float* src, void* dst, int64_t i, int64_t n) {
  constexpr int64_t L = V::kLanes;
  const V::F code = quantizer(n == L ? V::load(src + i) : V::load_part(src + i, n));
  if (kTarget == kToFloat) {
    const V::F difference = kOrder == kNoAdd ? code : V::sub(code, quantizer.zp);
    const V::F y = kInverse ? V::div(difference, scale) : V::mul(difference, scale);
    float* to = static_cast<float*>(dst) + i;
    n == L ? V::store<false>(to, y) : V::store_part(to, y, n);
  } else {
    constexpr CodeType kType = kTarget == kToU8 ? kU8 : kS8;
    const V::I zero = V::set1(int32_t{0});
    uint8_t* to = static_cast<uint8_t*>(dst) + i;
    n == L ? V::store1<kType>(to, V::round(code), zero) : V::store_part<kType>(to, V::round(code), zero, n);
  }
}

template <class Quantizer, AffineTarget kTarget, Order kOrder, bool kInverse, Parameters kParameters>
void affine_with(const Block& block) {
  constexpr int64_t L = V::kLanes;
  constexpr int64_t size = kTarget == kToFloat ? sizeof(float) : 1;
  alignas(64) float reciprocals[kMaxParameters];
  const int64_t count = kParameters == kPerRow ? block.rows : block.cols;
  for (int64_t i = 0; i < count; ++i) reciprocals[i] = kInverse ? block.scales[i] : 1.0f / block.scales[i];
  for (int64_t row = 0; row < block.rows; ++row) {
    const float* src = static_cast<const float*>(block.src) + row * block.stride;
    void* dst = static_cast<char*>(block.dst) + row * block.stride * size;
    if (kParameters == kPerRow) {
      const V::F scale = V::set1(block.scales[row]);
      const Quantizer quantizer(block, scale, V::set1(reciprocals[row]), V::set1(block.float_zps[row]));
      int64_t i = 0;
      for (; i + L <= block.cols; i += L)
        affine_run<Quantizer, kTarget, kOrder, kInverse>(quantizer, scale, src, dst, i, L);
      if (i < block.cols)
        affine_run<Quantizer, kTarget, kOrder, kInverse>(quantizer, scale, src, dst, i, block.cols - i);
    } else {
      for (int64_t i = 0; i < block.cols; i += L) {
        const int64_t n = block.cols - i < L ? block.cols - i : L;
        const V::F scale = n == L ? V::load(block.scales + i) : V::load_part(block.scales + i, n);
        const V::F reciprocal = n == L ? V::load(reciprocals + i) : V::load_part(reciprocals + i, n);
        const V::F zp = n == L ? V::load(block.float_zps + i) : V::load_part(block.float_zps + i, n);
        affine_run<Quantizer, kTarget, kOrder, kInverse>(Quantizer(block, scale, reciprocal, zp), scale, src, dst, i,
                                                         n);
      }
    }
  }
}

template <Quotient kQuotient, Order kOrder, AffineTarget kTarget, Parameters kParameters>
void affine(const Block& block) {
  constexpr bool kInverse = kQuotient == kMultiply;
  const int64_t count = kParameters == kPerRow ? block.rows : block.cols;
  const bool is_small = are_small(block.float_zps, count);
  if (kOrder == kRoundThenAdd && has_integer_codes(block) && !(is_small && are_whole(block.float_zps, count)))
    return portable_kernels().affine[kQuotient][kOrder][kTarget][kParameters](block);  // a cast has to cut digits off
  if (kQuotient != kDivide)
    affine_with<AffineQuantizer<AffineProduct, kOrder>, kTarget, kOrder, kInverse, kParameters>(block);
  else if (!(kOrder == kAddThenRound && !has_integer_codes(block)) &&  // -0 + 0 is not what -tiny + 0 rounds to
           block.low >= -kLargestSafeClip && block.high <= kLargestSafeClip && are_safe(block.scales, count) &&
           is_small)
    affine_with<AffineQuantizer<AffineMarkstein, kOrder>, kTarget, kOrder, false, kParameters>(block);
  else
    affine_with<AffineQuantizer<AffineDivision, kOrder>, kTarget, kOrder, false, kParameters>(block);
}

// As AffineMarkstein where nothing is out of bounds.
struct BoundedMarkstein {
  V::F scale, reciprocal;
  BoundedMarkstein(V::F scale_, V::F reciprocal_) : scale(scale_), reciprocal(reciprocal_) {}
  V::F operator()(V::F x) const {
    const V::F q0 = V::mul(x, reciprocal);
    return V::with_sign_of(V::fmadd(V::fnmadd(q0, scale, x), reciprocal, q0), x);
  }
};

template <class Quotient, bool kInverse, bool kAddFirst>
void bounded_with(const Block& block) {
  constexpr int64_t L = V::kLanes;
  const V::F zero = V::set1(block.zero);
  for (int64_t row = 0; row < block.rows; ++row) {
    const float* src = static_cast<const float*>(block.src) + row * block.stride;
    float* dst = static_cast<float*>(block.dst) + row * block.stride;
    const float scale_f32 = block.scales[row];
    const V::F scale = V::set1(scale_f32), zp = V::set1(block.float_zps[row]);
    const Quotient quotient(scale, V::set1(kInverse ? scale_f32 : 1.0f / scale_f32));
    // Adding an integer zero point after rounding and taking it away again leaves the sum as it was.
    const auto fake = [&](V::F x) {
      const V::F t = quotient(x);
      const V::F code = V::add(V::round_float(kAddFirst ? V::add(t, zp) : t), zero);
      const V::F difference = kAddFirst ? V::sub(code, zp) : code;
      return kInverse ? V::div(difference, scale) : V::mul(difference, scale);
    };
    int64_t i = 0;
    for (; i + 4 * L <= block.cols; i += 4 * L)
      for (int64_t k = i; k < i + 4 * L; k += L) V::store<false>(dst + k, fake(V::load(src + k)));
    for (; i + L <= block.cols; i += L) V::store<false>(dst + i, fake(V::load(src + i)));
    if (const int64_t n = block.cols - i) V::store_part(dst + i, fake(V::load_part(src + i, n)), n);
  }
}

// The largest (and the smallest) element, or magnitude, in four independent chains of vectors.
template <bool kMagnitude>
void range(const float* x, int64_t count, float result[3]) {
  constexpr int64_t L = V::kLanes;
  constexpr float kInfinity = __builtin_inff();
  V::F low[4], high[4];
  for (int k = 0; k < 4; ++k) {
    low[k] = V::set1(kInfinity);
    high[k] = V::set1(kMagnitude ? 0.0f : -kInfinity);
  }
  V::F finite[4] = {V::set1(0.0f), V::set1(0.0f), V::set1(0.0f), V::set1(0.0f)};
  const auto take = [&](int k, V::F v) {
    finite[k] = V::fmadd(v, V::set1(0.0f), finite[k]);  // 0 for as long as every element is finite
    if (kMagnitude) v = V::magnitude(v);
    if (!kMagnitude) low[k] = V::min(v, low[k]);
    high[k] = V::max(v, high[k]);
  };
  int64_t i = 0;
  for (; i + 4 * L <= count; i += 4 * L)
    for (int k = 0; k < 4; ++k) take(k, V::load(x + i + k * L));
  for (; i + L <= count; i += L) take(0, V::load(x + i));
  // What is left is short of a vector; lanes that saw no element hold what every element beats.
  alignas(64) float lowest[L], highest[L], not_finite[L];
  V::store<false>(not_finite, V::add(V::add(finite[0], finite[1]), V::add(finite[2], finite[3])));
  V::store<false>(lowest, V::min(V::min(low[0], low[1]), V::min(low[2], low[3])));
  V::store<false>(highest, V::max(V::max(high[0], high[1]), V::max(high[2], high[3])));
  float smallest = kInfinity, largest = kMagnitude ? 0.0f : -kInfinity, result_is_finite = 0.0f;
  for (int64_t k = 0; k < L; ++k) {
    if (lowest[k] < smallest) smallest = lowest[k];
    if (highest[k] > largest) largest = highest[k];
    result_is_finite += not_finite[k];
  }
  for (; i < count; ++i) {
    const float element = load(x + i), v = kMagnitude && element < 0 ? -element : element;
    if (v < smallest) smallest = v;
    if (v > largest) largest = v;
    result_is_finite += v * 0.0f;
  }
  const float first = load(x);
  const bool is_nan = first != first;
  result[0] = is_nan ? first : kMagnitude ? 0.0f : smallest;
  result[1] = is_nan ? first : largest;
  result[2] = result_is_finite;
}

template <ScaleOrder kOrder>
struct AccumulatorDequantizer {
  V::F scale;
  V::I sum;
  V::F bias;
  V::F operator()(V::I acc, V::F row_scale, V::I row_zp) const {
    const V::F real = V::to_float(V::sub(acc, V::mul(row_zp, sum)));
    return V::add(kOrder == kScalesFirst ? V::mul(real, V::mul(row_scale, scale))
                  : kOrder == kRowFirst  ? V::mul(V::mul(real, row_scale), scale)
                                         : V::mul(V::mul(real, scale), row_scale),
                  bias);
  }
};

// kRows rows at once, so that what belongs to the columns is loaded once for all of them.
template <int kRows, ScaleOrder kOrder>
void some_accumulators(const Accumulators& block, int64_t first) {
  constexpr int64_t L = V::kLanes;
  const int32_t* src = block.src + first * block.stride;
  float* dst = block.dst + first * block.stride;
  V::F scales[kRows];
  V::I zps[kRows];
  for (int row = 0; row < kRows; ++row) {
    scales[row] = V::set1(block.scales[first + row]);
    zps[row] = V::set1(block.zps[first + row]);
  }
  int64_t i = 0;
  for (; i + L <= block.cols; i += L) {
    const AccumulatorDequantizer<kOrder> dequantizer{V::load(block.column_scales + i), V::load(block.column_sums + i),
                                                     V::load(block.bias + i)};
    for (int row = 0; row < kRows; ++row) {
      const int64_t at = row * block.stride + i;
      V::store<false>(dst + at, dequantizer(V::load(src + at), scales[row], zps[row]));
    }
  }
  if (const int64_t n = block.cols - i) {
    const AccumulatorDequantizer<kOrder> dequantizer{V::load_part(block.column_scales + i, n),
                                                     V::load_part(block.column_sums + i, n),
                                                     V::load_part(block.bias + i, n)};
    for (int row = 0; row < kRows; ++row) {
      const int64_t at = row * block.stride + i;
      V::store_part(dst + at, dequantizer(V::load_part(src + at, n), scales[row], zps[row]), n);
    }
  }
}

template <ScaleOrder kOrder>
void accumulators(const Accumulators& block) {
  int64_t row = 0;
  for (; row + V::kRows <= block.rows; row += V::kRows) some_accumulators<V::kRows, kOrder>(block, row);
  for (; row < block.rows; ++row) some_accumulators<1, kOrder>(block, row);
}

template <bool kMagnitude>
void widen(V::F v, V::F& low, V::F& high) {
  if (kMagnitude)
    v = V::magnitude(v);
  else
    low = V::min(v, low);
  high = V::max(v, high);
}

// What is left of a row is short of a vector; where the row is not, it is read together with elements before it, which
// count twice.
template <bool kMagnitude>
void row_range(const float* x, int64_t rows, int64_t cols, int64_t stride, float* low, float* high) {
  constexpr int64_t L = V::kLanes;
  for (int64_t row = 0; row < rows; ++row) {
    const float* from = x + row * stride;
    V::F h = V::set1(high[row]), l = kMagnitude ? h : V::set1(low[row]);
    int64_t i = 0;
    if (cols >= 4 * L) {
      V::F ls[4] = {l, l, l, l}, hs[4] = {h, h, h, h};
      for (; i + 4 * L <= cols; i += 4 * L)
        for (int k = 0; k < 4; ++k) widen<kMagnitude>(V::load(from + i + k * L), ls[k], hs[k]);
      l = V::min(V::min(ls[0], ls[1]), V::min(ls[2], ls[3]));
      h = V::max(V::max(hs[0], hs[1]), V::max(hs[2], hs[3]));
    }
    for (; i + L <= cols; i += L) widen<kMagnitude>(V::load(from + i), l, h);
    if (i < cols)
      widen<kMagnitude>(cols >= L ? V::load(from + cols - L) : V::load_part(from, cols, V::set1(load(from))), l, h);
    if (!kMagnitude) low[row] = V::lowest(l);
    high[row] = V::highest(h);
  }
}

template <bool kMagnitude, int kCount>
void column_range_of_some_rows(const float* x, int64_t cols, int64_t stride, float* low, float* high) {
  constexpr int64_t L = V::kLanes;
  int64_t i = 0;
  for (; i + L <= cols; i += L) {
    V::F h = V::load(high + i), l = kMagnitude ? h : V::load(low + i);
    for (int row = 0; row < kCount; ++row) widen<kMagnitude>(V::load(x + row * stride + i), l, h);
    if (!kMagnitude) V::store<false>(low + i, l);
    V::store<false>(high + i, h);
  }
  if (const int64_t n = cols - i) {
    V::F h = V::load_part(high + i, n), l = kMagnitude ? h : V::load_part(low + i, n);
    for (int row = 0; row < kCount; ++row) widen<kMagnitude>(V::load_part(x + row * stride + i, n), l, h);
    if (!kMagnitude) V::store_part(low + i, l, n);
    V::store_part(high + i, h, n);
  }
}

// Several rows at once, so that low and high are loaded and stored once for all of them.
template <bool kMagnitude>
void column_range(const float* x, int64_t rows, int64_t cols, int64_t stride, float* low, float* high) {
  int64_t row = 0;
  for (; row + 8 <= rows; row += 8) column_range_of_some_rows<kMagnitude, 8>(x + row * stride, cols, stride, low, high);
  for (; row < rows; ++row) column_range_of_some_rows<kMagnitude, 1>(x + row * stride, cols, stride, low, high);
}

// Constant: nothing compiled for an instruction set may run before dispatch.cc has asked for it.
constexpr KernelTable make_table(const char* name) {
  return {
      name,
      {{{quantize<kOnnx, kU8, kPerRow>, quantize<kOnnx, kU8, kPerColumn>},
        {quantize<kOnnx, kS8, kPerRow>, quantize<kOnnx, kS8, kPerColumn>}},
       {{quantize<kOneDnn, kU8, kPerRow>, quantize<kOneDnn, kU8, kPerColumn>},
        {quantize<kOneDnn, kS8, kPerRow>, quantize<kOneDnn, kS8, kPerColumn>}}},
      {{dequantize<kU8, kPerRow>, dequantize<kU8, kPerColumn>},
       {dequantize<kS8, kPerRow>, dequantize<kS8, kPerColumn>}},
      ORT_DYNQ_AFFINE_TABLE,
      {{bounded_with<BoundedMarkstein, false, false>, bounded_with<BoundedMarkstein, false, true>},
       {bounded_with<AffineProduct, false, false>, bounded_with<AffineProduct, false, true>},
       {bounded_with<AffineProduct, true, false>, bounded_with<AffineProduct, true, true>}},
      range<false>,
      range<true>,
      {accumulators<kScalesFirst>, accumulators<kRowFirst>, accumulators<kColumnFirst>},
      {row_range<false>, column_range<false>},
      {row_range<true>, column_range<true>},
  };
}
