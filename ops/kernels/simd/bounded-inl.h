// bounded: fake quantization per row of elements whose codes the clip does not change. Uses affine-inl.h.

// AffineMarkstein without clamps.
struct BoundedMarkstein {
  V::F scale, reciprocal;
  BoundedMarkstein(V::F scale_, V::F reciprocal_) : scale(scale_), reciprocal(reciprocal_) {}
  V::F operator()(V::F x) const {
    const V::F q0 = V::mul(x, reciprocal);
    return V::with_sign_of(V::fmadd(V::fnmadd(q0, scale, x), reciprocal, q0), x);
  }
};

template <class Quotient, bool kInverse, BoundedOrder kOrder, class Floats>
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
      const V::F t = kOrder == kRoundsQuotient ? V::rounded_to_f16(quotient(x)) : quotient(x);
      const V::F code = V::add(V::round_float(kOrder == kAddsFirst ? V::add(t, zp) : t), zero);
      const V::F difference = kOrder == kAddsFirst ? V::sub(code, zp) : code;
      return kInverse ? V::div(difference, scale) : V::mul(difference, scale);
    };
    int64_t i = 0;
    for (; i + 4 * L <= block.cols; i += 4 * L)
      for (int64_t k = i; k < i + 4 * L; k += L) Floats::template store<false>(dst + k, fake(Floats::load(src + k)));
    for (; i + L <= block.cols; i += L) Floats::template store<false>(dst + i, fake(Floats::load(src + i)));
    if (const int64_t n = block.cols - i) Floats::store_part(dst + i, fake(Floats::load_part(src + i, n)), n);
  }
}

template <Scaling kScaling, BoundedOrder kOrder, class Floats = Float32>
void bounded(const BoundedBlock& block) {
  if (kScaling == kDivide)
    bounded_with<BoundedMarkstein, false, kOrder, Floats>(block);
  else
    bounded_with<AffineProduct, kScaling == kMultiply, kOrder, Floats>(block);
}

template <Scaling kScaling, BoundedOrder kOrder>
void bounded_f16(const BoundedBlock& block) {
  bounded<kScaling, kOrder, NumericFloat16>(block);
}
