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

template <class Quotient, bool kInverse, bool kAddFirst>
void bounded(const BoundedBlock& block) {
  constexpr int64_t L = V::kLanes;
  const V::F zero = V::set1(block.keeps_negative_zero ? -0.0f : 0.0f);
  for (int64_t row = 0; row < block.rows; ++row) {
    const float* src = block.src + row * block.stride;
    float* dst = block.dst + row * block.stride;
    const float scale_f32 = block.scales[row];
    const V::F scale = V::set1(scale_f32), zp = V::set1(block.zps[row]);
    const Quotient quotient(scale, V::set1(kInverse ? scale_f32 : 1.0f / scale_f32));
    // An integer zero point that is added after rounding and subtracted again has no effect.
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
