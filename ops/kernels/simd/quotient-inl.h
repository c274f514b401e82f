// Quotients x / scale of vectors. Shared by the quantize and the affine kernels.

// x / scale, correctly rounded, and clamped to at most kQuotientBound if it is bounded.
template <bool kIsBounded = true>
struct Division {
  static constexpr bool kNeedsReciprocal = false;
  V::F scale;
  Division(V::F scale_, V::F) : scale(scale_) {}
  V::F operator()(V::F x) const {
    const V::F quotient = V::div(x, scale);
    return kIsBounded ? V::min(V::set1(kQuotientBound), quotient) : quotient;
  }
};

// The same without a division instruction (Markstein). Let r be the correctly rounded 1/scale. Then q0 = x*r is off by
// a few units in the last place, one fused multiply-add gives the exact remainder x - q0*scale, and a second one rounds
// the corrected quotient correctly. Requires kSmallestSafeScale <= scale <= kLargestSafeScale. If products overflow to
// NaN, x is far below the lowest code, and NaN gives the lowest code, too; without a bound, the quotient is beyond
// int32, which gives the same as NaN. If the remainder underflows, the quotient is far below one half.
// tests/operators/test_exactness.py tests all 2^32 values of x.
template <bool kIsBounded = true>
struct Markstein {
  static constexpr bool kNeedsReciprocal = true;
  V::F scale, reciprocal, bound;
  Markstein(V::F scale_, V::F reciprocal_)
      : scale(scale_), reciprocal(reciprocal_), bound(V::mul(scale_, V::set1(kQuotientBound))) {}
  V::F operator()(V::F x) const {
    if (kIsBounded) x = V::min(bound, x);
    const V::F q0 = V::mul(x, reciprocal);
    const V::F remainder = V::fnmadd(q0, scale, x);
    return V::fmadd(remainder, reciprocal, q0);
  }
};

// Whether Markstein is exact for all these scales.
inline bool are_safe(const float* scales, int64_t count) {
  int32_t unsafe = 0;
  for (int64_t i = 0; i < count; ++i) unsafe |= !(scales[i] >= kSmallestSafeScale && scales[i] <= kLargestSafeScale);
  return unsafe == 0;
}
