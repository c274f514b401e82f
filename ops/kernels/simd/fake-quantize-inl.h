// fake_quantize: float through 8-bit codes to float.

// Markstein, clamped on both sides and with the sign of x: the correction turns -0 into +0. NaN stays NaN.
struct ClampedMarkstein {
  Markstein<> quotient;
  ClampedMarkstein(V::F scale, V::F reciprocal) : quotient(scale, reciprocal) {}
  V::F operator()(V::F x) const { return V::with_sign_of(quotient(V::max(V::negate(quotient.bound), x)), x); }
};

template <class Quotient>
struct FakeQuantizer {
  Quotient quotient;
  V::F scale, zp, low, high;
  FakeQuantizer(const FakeQuantizeBlock& block, V::F scale_, V::F reciprocal, V::F zp_)
      : quotient(scale_, reciprocal), scale(scale_), zp(zp_), low(V::set1(block.low)), high(V::set1(block.high)) {}
  V::F operator()(V::F x) const {
    const V::F code = V::min(high, V::max(low, V::add(V::round_float(quotient(x)), zp)));
    const V::F number = V::add(V::replace_nan(code, low), V::set1(0.0f));  // no code is -0
    return V::mul(V::sub(number, zp), scale);
  }
};

template <class Quotient>
void fake_quantize_vector(const FakeQuantizer<Quotient>& quantizer, const float* src, float* dst, int64_t n) {
  if (n == V::kLanes)
    V::store<false>(dst, quantizer(V::load(src)));
  else
    V::store_part(dst, quantizer(V::load_part(src, n)), n);
}

template <class Quotient, Parameters kParameters>
void fake_quantize_with(const FakeQuantizeBlock& block) {
  constexpr int64_t L = V::kLanes;
  alignas(64) float reciprocals[kMaxParameters];
  const int64_t count = kParameters == kPerRow ? block.rows : block.cols;
  for (int64_t i = 0; i < count; ++i) reciprocals[i] = 1.0f / block.scales[i];
  for (int64_t row = 0; row < block.rows; ++row) {
    const float* src = block.src + row * block.stride;
    float* dst = block.dst + row * block.stride;
    if (kParameters == kPerRow) {
      const FakeQuantizer<Quotient> quantizer(block, V::set1(block.scales[row]), V::set1(reciprocals[row]),
                                              V::set1(block.zps[row]));
      int64_t i = 0;
      for (; i + L <= block.cols; i += L) fake_quantize_vector(quantizer, src + i, dst + i, L);
      if (i < block.cols) fake_quantize_vector(quantizer, src + i, dst + i, block.cols - i);
    } else {
      for (int64_t i = 0; i < block.cols; i += L) {
        const int64_t n = block.cols - i < L ? block.cols - i : L;
        const auto read = [=](const float* from) { return n == L ? V::load(from + i) : V::load_part(from + i, n); };
        fake_quantize_vector(FakeQuantizer<Quotient>(block, read(block.scales), read(reciprocals), read(block.zps)),
                             src + i, dst + i, n);
      }
    }
  }
}

template <Parameters kParameters>
void fake_quantize(const FakeQuantizeBlock& block) {
  if (are_safe(block.scales, kParameters == kPerRow ? block.rows : block.cols))
    fake_quantize_with<ClampedMarkstein, kParameters>(block);
  else
    fake_quantize_with<Division<false>, kParameters>(block);
}
