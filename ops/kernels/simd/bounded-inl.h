// bounded: fake quantization per row, if the clip changes no code.

// With the sign of x: the corrections of quotients turn -0 into +0.
template <class Quotient>
struct Signed {
  Quotient quotient;
  Signed(V::F scale, V::F reciprocal) : quotient(scale, reciprocal) {}
  V::F operator()(V::F x) const { return V::with_sign_of(quotient(x), x); }
};

template <class Quotient, bool kInverse, bool kAddsZeroPoint, class Floats>
void bounded_with(const BoundedBlock& block) {
  constexpr int64_t L = V::kLanes;
  const V::F zero = V::set1(block.keeps_negative_zero ? -0.0f : 0.0f);
  for (int64_t row = 0; row < block.rows; ++row) {
    const auto* src = static_cast<const typename Floats::Element*>(block.src) + row * block.stride;
    auto* dst = static_cast<typename Floats::Element*>(block.dst) + row * block.stride;
    const float scale_f32 = block.scales[row];
    const V::F scale = V::set1(scale_f32), zp = V::set1(block.zps[row]);
    const Quotient quotient(scale, V::set1(kInverse ? scale_f32 : 1.0f / scale_f32));
    // An integer zero point that is added after rounding and subtracted again has no effect.
    const auto fake = [&](V::F x) {
      const V::F code = V::add(V::round_float(kAddsZeroPoint ? V::add(quotient(x), zp) : quotient(x)), zero);
      const V::F difference = kAddsZeroPoint ? V::sub(code, zp) : code;
      return kInverse ? V::div(difference, scale) : V::mul(difference, scale);
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
    bounded_with<Rounded<Signed<Markstein<false>>>, false, false, Float32>(block);
  else if constexpr (kScaling == kDivide)
    bounded_with<Signed<Markstein<false>>, false, kAdds, Float32>(block);
  else if constexpr (kOrder == kRoundsQuotient)
    bounded_with<Rounded<Product>, kInverse, false, Float32>(block);
  else
    bounded_with<Product, kInverse, kAdds, Float32>(block);
}

template <Scaling kScaling, BoundedOrder kOrder>
void bounded_f16(const BoundedBlock& block) {
  constexpr bool kAdds = kOrder == kAddsFirst, kInverse = kScaling == kMultiply;
  if constexpr (kScaling == kDivide && kOrder == kRoundsQuotient)
    bounded_with<Signed<RoundedProduct>, false, false, NumericFloat16>(block);
  else if constexpr (kScaling == kDivide && kOrder == kNoEffectOfZeroPoint)
    bounded_with<Signed<Float16Quotient<false>>, false, false, NumericFloat16>(block);
  else if constexpr (kScaling == kDivide)  // Float16Quotient is for quotients that are rounded to integers
    bounded_with<Signed<Markstein<false>>, false, kAdds, NumericFloat16>(block);
  else if constexpr (kOrder == kRoundsQuotient)
    bounded_with<Rounded<Product>, kInverse, false, NumericFloat16>(block);
  else
    bounded_with<Product, kInverse, kAdds, NumericFloat16>(block);
}
