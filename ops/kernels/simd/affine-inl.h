// affine: float to 8-bit codes, or through codes to float, with float zero points.

// Whether a quotient clamped to kQuotientBound, plus the zero point, is clipped as the unclamped quotient is.
inline bool are_small(const float* zps, int64_t count) {
  int32_t large = 0;
  for (int64_t i = 0; i < count; ++i) large |= !(zps[i] >= -kLargestSafeClip && zps[i] <= kLargestSafeClip);
  return large == 0;
}

// Whether small zero points are integers. Then their sums with rounded quotients are integers, too.
inline bool are_whole(const float* zps, int64_t count) {
  int32_t broken = 0;
  for (int64_t i = 0; i < count; ++i) broken |= static_cast<float>(static_cast<int32_t>(zps[i])) != zps[i];
  return broken == 0;
}

// Markstein, clamped on both sides and with the sign of x: the correction turns -0 into +0. NaN stays NaN. For clips
// well within kQuotientBound.
struct AffineMarkstein {
  Markstein<> quotient;
  AffineMarkstein(V::F scale, V::F reciprocal) : quotient(scale, reciprocal) {}
  V::F operator()(V::F x) const { return V::with_sign_of(quotient(V::max(V::negate(quotient.bound), x)), x); }
};

// The constants of a block in vectors, prepared once.
struct AffineVectors {
  V::F low, high, nan_code, code_offset;
  explicit AffineVectors(const AffineBlock& block)
      : low(V::set1(block.low)),
        high(V::set1(block.high)),
        nan_code(V::set1(block.nan_code)),
        code_offset(V::set1(block.integer_codes ? block.code_offset : -0.0f)) {}  // adding -0 changes no float
};

template <class Quotient, RoundingOrder kOrder>
struct AffineQuantizer {
  Quotient quotient;
  V::F zp;
  AffineVectors constants;
  AffineQuantizer(const AffineVectors& constants_, V::F scale, V::F reciprocal, V::F zp_)
      : quotient(scale, reciprocal), zp(zp_), constants(constants_) {}
  V::F clip(V::F x) const { return V::min(constants.high, V::max(constants.low, x)); }
  V::F operator()(V::F x) const {
    const V::F exact = quotient(x), t = kOrder == kFloat16Quotient ? V::rounded_to_f16(exact) : exact;
    const V::F sum = kOrder == kFloat16Sum ? V::rounded_to_f16(V::add(t, zp)) : V::add(t, zp);
    const V::F code = kOrder == kRoundThenAdd ? clip(V::add(V::round_float(t), zp))
                      : adds_first(kOrder)    ? V::round_float(clip(sum))
                                              : clip(V::round_float(t));
    return V::add(V::replace_nan(code, constants.nan_code), constants.code_offset);
  }
};

template <class Quantizer, AffineTarget kTarget, RoundingOrder kOrder, bool kInverse>
void affine_vector(const Quantizer& quantizer, V::F scale, const float* src, void* dst, int64_t i, int64_t n) {
  constexpr int64_t L = V::kLanes;
  const V::F code = quantizer(n == L ? V::load(src + i) : V::load_part(src + i, n));
  if (kTarget == kToFloat) {
    const V::F difference = has_zero_point(kOrder) ? V::sub(code, quantizer.zp) : code;
    const V::F y = kInverse ? V::div(difference, scale) : V::mul(difference, scale);
    float* to = static_cast<float*>(dst) + i;
    n == L ? V::store<false>(to, y) : V::store_part(to, y, n);
  } else {
    constexpr CodeKind kKind = kTarget == kToU8 ? kU8 : kS8;
    const V::I zero = V::set1(int32_t{0});
    uint8_t* to = static_cast<uint8_t*>(dst) + i;
    n == L ? V::store1<kKind>(to, V::round(code), zero) : V::store_part<kKind>(to, V::round(code), zero, n);
  }
}

template <class Quantizer, AffineTarget kTarget, RoundingOrder kOrder, bool kInverse, Parameters kParameters>
void affine_with(const AffineBlock& block) {
  constexpr int64_t L = V::kLanes;
  constexpr int64_t size = kTarget == kToFloat ? sizeof(float) : 1;
  alignas(64) float reciprocals[kMaxParameters];
  const AffineVectors constants(block);
  const int64_t count = kParameters == kPerRow ? block.rows : block.cols;
  for (int64_t i = 0; i < count; ++i) reciprocals[i] = kInverse ? block.scales[i] : 1.0f / block.scales[i];
  for (int64_t row = 0; row < block.rows; ++row) {
    const float* src = block.src + row * block.stride;
    void* dst = static_cast<char*>(block.dst) + row * block.stride * size;
    if (kParameters == kPerRow) {
      const V::F scale = V::set1(block.scales[row]);
      const Quantizer quantizer(constants, scale, V::set1(reciprocals[row]), V::set1(block.zps[row]));
      int64_t i = 0;
      for (; i + L <= block.cols; i += L)
        affine_vector<Quantizer, kTarget, kOrder, kInverse>(quantizer, scale, src, dst, i, L);
      if (i < block.cols)
        affine_vector<Quantizer, kTarget, kOrder, kInverse>(quantizer, scale, src, dst, i, block.cols - i);
    } else {
      for (int64_t i = 0; i < block.cols; i += L) {
        const int64_t n = block.cols - i < L ? block.cols - i : L;
        const V::F scale = n == L ? V::load(block.scales + i) : V::load_part(block.scales + i, n);
        const V::F reciprocal = n == L ? V::load(reciprocals + i) : V::load_part(reciprocals + i, n);
        const V::F zp = n == L ? V::load(block.zps + i) : V::load_part(block.zps + i, n);
        affine_vector<Quantizer, kTarget, kOrder, kInverse>(Quantizer(constants, scale, reciprocal, zp), scale, src,
                                                            dst, i, n);
      }
    }
  }
}

template <Scaling kScaling, RoundingOrder kOrder, AffineTarget kTarget, Parameters kParameters>
void affine(const AffineBlock& block) {
  constexpr bool kInverse = kScaling == kMultiply;
  constexpr auto kDividing = affine_with<AffineQuantizer<Division<false>, kOrder>, kTarget, kOrder, false, kParameters>;
  if constexpr (kOrder == kFloat16Sum)  // rare
    return kScaling == kDivide ? kDividing(block)
                               : kPortableKernels.affine[kScaling][kOrder][kTarget][kParameters](block);
  const int64_t count = kParameters == kPerRow ? block.rows : block.cols;
  const bool is_small = are_small(block.zps, count);
  if (kOrder == kRoundThenAdd && block.integer_codes && !(is_small && are_whole(block.zps, count)))
    return kPortableKernels.affine[kScaling][kOrder][kTarget][kParameters](block);  // codes have to be truncated
  if (kScaling != kDivide)
    affine_with<AffineQuantizer<Product, kOrder>, kTarget, kOrder, kInverse, kParameters>(block);
  else if (!(kOrder == kAddThenRound && !block.integer_codes) &&  // -tiny + 0 rounds to -0; if Markstein gives -0, +0
           block.low >= -kLargestSafeClip && block.high <= kLargestSafeClip && are_safe(block.scales, count) &&
           is_small)
    affine_with<AffineQuantizer<AffineMarkstein, kOrder>, kTarget, kOrder, false, kParameters>(block);
  else
    affine_with<AffineQuantizer<Division<false>, kOrder>, kTarget, kOrder, false, kParameters>(block);
}
