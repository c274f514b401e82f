// Functions of programs: plain float32 operations in a stated order, so that every CPU and the function body
// (ort_dynq/operators/program_body.py) give the same bits. Their error is at most 1e-7, or 2 units in the last place.
//
// V has the operations on one vector, or on one float.

// e^y for y from -87 to 0. y = n * log(2) + r; e^r is a polynomial, |r| <= log(2) / 2. log(2) has two parts, and n
// times the first one is exact.
template <class V>
ORT_DYNQ_INLINE inline typename V::F exp_of_negative(typename V::F y) {
  const auto f = [](float number) ORT_DYNQ_INLINE_LAMBDA { return V::set1(number); };
  const typename V::F n = V::round_float(V::mul(y, f(1.44269502162933349609375f)));
  const typename V::F r = V::sub(V::sub(y, V::mul(n, f(0.693359375f))), V::mul(n, f(-2.12194442749023437500e-4f)));
  typename V::F p = f(kExp[0]);
  for (int i = 1; i < 5; ++i) p = V::add(V::mul(p, r), f(kExp[i]));
  return V::times_power_of_2(V::add(V::add(V::mul(V::mul(p, r), r), r), f(1.0f)), n);
}

// 1 / (1 + e^-x), as e^x / (1 + e^x) for x < 0.
template <class V>
ORT_DYNQ_INLINE inline typename V::F sigmoid_of(typename V::F x) {
  const typename V::F one = V::set1(1.0f);
  const typename V::F e = exp_of_negative<V>(V::negate(V::min(V::set1(87.0f), V::abs(x))));
  return V::div(V::choose(V::less(x, V::set1(0.0f)), e, one), V::add(one, e));
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
  const typename V::F g = V::mul(V::mul(V::mul(p, v), t), exp_of_negative<V>(V::mul(V::mul(t, t), f(-0.5f))));
  return V::sub(V::choose(V::less(f(0.0f), x), x, f(0.0f)), g);
}
