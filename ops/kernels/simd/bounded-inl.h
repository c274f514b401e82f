// bounded: fake quantization per row, if the clip changes no code.

// With the sign of x: the corrections of quotients turn -0 into +0.
template <class Quotient>
struct Signed {
  Quotient quotient;
  Signed(V::F scale, V::F reciprocal) : quotient(scale, reciprocal) {}
  V::F operator()(V::F x) const { return V::with_sign_of(quotient(x), x); }
};

template <class Quotient, bool kDivides, bool kInverse, bool kAddsZeroPoint, class Floats>
void bounded_with(const BoundedBlock& block) {
  constexpr int64_t L = V::kLanes;
  const V::F zero = V::set1(block.keeps_negative_zero ? -0.0f : 0.0f);
  for (int64_t row = 0; row < block.rows; ++row) {
    const auto* src = static_cast<const typename Floats::Element*>(block.src) + row * block.stride;
    auto* dst = static_cast<typename Floats::Element*>(block.dst) + row * block.stride;
    const V::F scale = V::set1(block.scales[row]), factor = V::set1(block.factors[row]);
    const V::F zp = kAddsZeroPoint ? V::set1(block.zps[row]) : zero;
    const Quotient quotient(scale, V::set1(kDivides ? 1.0f / block.scales[row] : block.scales[row]));
    // An integer zero point that is added after rounding and subtracted again has no effect.
    const auto fake = [&](V::F x) {
      const V::F code = V::add(V::round_float(kAddsZeroPoint ? V::add(quotient(x), zp) : quotient(x)), zero);
      const V::F difference = kAddsZeroPoint ? V::sub(code, zp) : code;
      return kInverse ? V::div(difference, factor) : V::mul(difference, factor);
    };
    int64_t i = 0;
    for (; i + 4 * L <= block.cols; i += 4 * L)
      for (int64_t k = i; k < i + 4 * L; k += L) Floats::template store<false>(dst + k, fake(Floats::load(src + k)));
    for (; i + L <= block.cols; i += L) Floats::template store<false>(dst + i, fake(Floats::load(src + i)));
    if (const int64_t n = block.cols - i) Floats::store_part(dst + i, fake(Floats::load_part(src + i, n)), n);
  }
}

template <Scaling kScaling, BoundedOrder kOrder>
void bounded(const BoundedBlock& block) {
  constexpr bool kAdds = kOrder == kAddsFirst, kInverse = kScaling == kMultiply;
  if constexpr (kScaling == kDivide && kOrder == kRoundsQuotient)
    bounded_with<Rounded<Signed<Markstein<false>>>, true, false, false, Float32>(block);
  else if constexpr (kScaling == kDivide)
    bounded_with<Signed<Markstein<false>>, true, false, kAdds, Float32>(block);
  else if constexpr (kOrder == kRoundsQuotient)
    bounded_with<Rounded<Product>, false, kInverse, false, Float32>(block);
  else
    bounded_with<Product, false, kInverse, kAdds, Float32>(block);
}

template <Scaling kScaling, BoundedOrder kOrder>
void bounded_f16(const BoundedBlock& block) {
  constexpr bool kAdds = kOrder == kAddsFirst, kInverse = kScaling == kMultiply;
  if constexpr (kScaling == kDivide && kOrder == kRoundsQuotient)
    bounded_with<Signed<RoundedProduct>, true, false, false, NumericFloat16>(block);
  else if constexpr (kScaling == kDivide && kOrder == kNoEffectOfZeroPoint)
    bounded_with<Signed<Float16Quotient<false>>, true, false, false, NumericFloat16>(block);
  else if constexpr (kScaling == kDivide)  // Float16Quotient is for quotients that are rounded to integers
    bounded_with<Signed<Markstein<false>>, true, false, kAdds, NumericFloat16>(block);
  else if constexpr (kOrder == kRoundsQuotient)
    bounded_with<Rounded<Product>, false, kInverse, false, NumericFloat16>(block);
  else
    bounded_with<Product, false, kInverse, kAdds, NumericFloat16>(block);
}
