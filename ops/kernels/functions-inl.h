// Functions of programs: plain float32 operations in a stated order, so that every CPU and the function body
// (ort_dynq/operators/program_body.py) give the same bits. Their error is at most 1e-7, or 2 units in the last place.
//
// V has the operations on one vector, or on one float.

// 2^y for y from -126 to 126: 2^n * 2^r, where n is an integer. 2^r is a polynomial, |r| <= 1 / 2.
template <class V>
ORT_DYNQ_INLINE inline typename V::F power_of_2(typename V::F y) {
  const typename V::F n = V::round_float(y), r = V::sub(y, n);
  typename V::F p = V::set1(kPowerOf2[0]);
  for (int i = 1; i < 7; ++i) p = V::add(V::mul(p, r), V::set1(kPowerOf2[i]));
  return V::times_power_of_2(p, n);
}

// 1 / (1 + e^-x).
template <class V>
ORT_DYNQ_INLINE inline typename V::F sigmoid_of(typename V::F x) {
  const auto f = [](float number) ORT_DYNQ_INLINE_LAMBDA { return V::set1(number); };
  const typename V::F y = V::mul(x, f(-1.44269502162933349609375f));
  return V::div(f(1.0f), V::add(f(1.0f), power_of_2<V>(V::max(f(-126.0f), V::min(f(126.0f), y)))));
}

// x * Phi(x) = max(x, 0) - t * Phi(-t), where t = |x|; Phi is the normal distribution. Phi(-t) = e^(-t^2 / 2) * v *
// P(v), where v = 1 / (1 + t / 4) and P is a polynomial. From t = 13 on, it vanishes.
template <class V>
ORT_DYNQ_INLINE inline typename V::F gelu_of(typename V::F x) {
  const auto f = [](float number) ORT_DYNQ_INLINE_LAMBDA { return V::set1(number); };
  const typename V::F t = V::min(f(13.0f), V::abs(x));
  const typename V::F v = V::div(f(1.0f), V::add(V::mul(t, f(0.25f)), f(1.0f)));
  typename V::F p = f(kGelu[0]);
  for (int i = 1; i < 7; ++i) p = V::add(V::mul(p, v), f(kGelu[i]));
  const typename V::F g =
      V::mul(V::mul(V::mul(p, v), t), power_of_2<V>(V::mul(V::mul(t, t), f(-0.721347510814666748046875f))));
  return V::sub(V::choose(V::less(f(0.0f), x), x, f(0.0f)), g);
}
