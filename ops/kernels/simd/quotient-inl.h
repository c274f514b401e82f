// Quotients x / scale, for the quantize, fake_quantize and bounded kernels.

// x / scale, correctly rounded. If kIsBounded, it is clamped to at most kQuotientBound; otherwise overflow gives
// infinity and NaN stays NaN.
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

// The same for a float16 x, with one operation fewer (Brisebarre, Muller, Raina: Accelerating correctly rounded
// floating-point division when the divisor is known in advance, 2004): reciprocal + rest is 1/scale but for a relative
// error of 2^-47. 16 of the 2^33 pairs of significands give a neighbor of the correctly rounded quotient. Both have 20
// significant bits or more. Ties between codes have 18 at most, so both neighbors are rounded to the same code.
// tests/operators/test_exactness.py tests the float16 number next to each tie for all significands of scales.
template <bool kIsBounded = true>
struct Float16Quotient {
  static constexpr bool kNeedsReciprocal = true;
  V::F reciprocal, rest, bound;
  Float16Quotient(V::F scale, V::F reciprocal_)
      : reciprocal(reciprocal_), rest(rest_of(scale, reciprocal_)), bound(V::mul(scale, V::set1(kQuotientBound))) {}
  static V::F rest_of(V::F scale, V::F reciprocal) {
    const V::F error = V::fnmadd(reciprocal, scale, V::set1(1.0f));
    const V::F first = V::mul(error, reciprocal);
    return V::fmadd(first, error, first);
  }
  V::F operator()(V::F x) const {
    if (kIsBounded) x = V::min(bound, x);
    return V::fmadd(x, reciprocal, V::mul(x, rest));
  }
};

// Rounds quotients to float16.
template <class Quotient>
struct Rounded {
  static constexpr bool kNeedsReciprocal = true;
  Quotient quotient;
  Rounded(V::F scale, V::F reciprocal) : quotient(scale, reciprocal) {}
  V::F operator()(V::F x) const { return V::rounded_to_f16(quotient(x)); }
};

// As Division with kIsBounded, but x * scale.
struct BoundedProduct {
  static constexpr bool kNeedsReciprocal = false;
  V::F scale;
  BoundedProduct(V::F scale_, V::F) : scale(scale_) {}
  V::F operator()(V::F x) const { return V::min(V::set1(kQuotientBound), V::mul(x, scale)); }
};

struct Product {
  V::F factor;
  Product(V::F, V::F factor_) : factor(factor_) {}
  V::F operator()(V::F x) const { return V::mul(x, factor); }
};

// x / scale rounded to float16, or a number that rounds to the same integer. x and the scale have 11 significant bits
// or less, and the quotient is at most kLargestRoundedQuotient.
//
// The product p with the reciprocal has a relative error below 2^-23. The quotient is further than that from a tie of
// float16, which has 12 significant bits, the last one set. So p and the quotient round to the same 11 bits. p + 8192 *
// p is rounded to a multiple of the last of these bits, and 8192 * p is such a multiple. If the sum reaches the next
// power of two, the result may be the float16 number just below it. The result may also be too small for float16, or 0
// instead of -0.
struct RoundedProduct {
  static constexpr bool kNeedsReciprocal = true;
  V::F reciprocal;
  RoundedProduct(V::F, V::F reciprocal_) : reciprocal(reciprocal_) {}
  V::F operator()(V::F x) const {
    const V::F p = V::mul(x, reciprocal), factor = V::set1(8192.0f);
    return V::fnmadd(p, factor, V::fmadd(p, factor, p));
  }
};

// Whether Markstein is exact for all these scales.
inline bool are_safe(const float* scales, int64_t count) {
  int32_t unsafe = 0;
  for (int64_t i = 0; i < count; ++i) unsafe |= !(scales[i] >= kSmallestSafeScale && scales[i] <= kLargestSafeScale);
  return unsafe == 0;
}
