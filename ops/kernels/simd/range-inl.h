// The smallest and the largest element, or the largest magnitude: of a run of elements, of each row, of each column.

// Four independent chains of vectors hide the latency of the comparisons.
template <bool kAbsMax, class Floats = Float32>
Range range(const void* elements, int64_t count) {
  const auto* x = static_cast<const typename Floats::Element*>(elements);
  constexpr int64_t L = V::kLanes;
  V::F low[4], high[4];
  for (int k = 0; k < 4; ++k) {
    low[k] = V::set1(kInfinity);
    high[k] = V::set1(kAbsMax ? 0.0f : -kInfinity);
  }
  V::F not_finite[4] = {V::set1(0.0f), V::set1(0.0f), V::set1(0.0f), V::set1(0.0f)};
  const auto take = [&](int k, V::F v) {
    not_finite[k] = V::fmadd(v, V::set1(0.0f), not_finite[k]);  // 0 while every element is finite
    if (kAbsMax) v = V::abs(v);
    if (!kAbsMax) low[k] = V::min(v, low[k]);
    high[k] = V::max(v, high[k]);
  };
  int64_t i = 0;
  for (; i + 4 * L <= count; i += 4 * L)
    for (int k = 0; k < 4; ++k) take(k, Floats::load(x + i + k * L));
  for (; i + L <= count; i += L) take(0, Floats::load(x + i));
  // Lanes that have seen no element hold values that every element replaces.
  alignas(64) float lowest[L], highest[L], not_finites[L];
  V::store<false>(not_finites, V::add(V::add(not_finite[0], not_finite[1]), V::add(not_finite[2], not_finite[3])));
  V::store<false>(lowest, V::min(V::min(low[0], low[1]), V::min(low[2], low[3])));
  V::store<false>(highest, V::max(V::max(high[0], high[1]), V::max(high[2], high[3])));
  float smallest = kInfinity, largest = kAbsMax ? 0.0f : -kInfinity, any_not_finite = 0.0f;
  for (int64_t k = 0; k < L; ++k) {
    if (lowest[k] < smallest) smallest = lowest[k];
    if (highest[k] > largest) largest = highest[k];
    any_not_finite += not_finites[k];
  }
  for (; i < count; ++i) {
    const float element = Floats::element(x + i), v = kAbsMax && element < 0 ? -element : element;
    if (v < smallest) smallest = v;
    if (v > largest) largest = v;
    any_not_finite += v * 0.0f;
  }
  const float first = Floats::element(x);
  const bool is_nan = first != first;
  if (is_nan) return {first, first, any_not_finite};
  return {kAbsMax ? 0.0f : smallest, largest, any_not_finite};
}

template <bool kAbsMax>
void widen(V::F v, V::F& low, V::F& high) {
  if (kAbsMax)
    v = V::abs(v);
  else
    low = V::min(v, low);
  high = V::max(v, high);
}

// If a row has at least one vector of elements, its last vector ends at the row's end and overlaps the one before.
template <bool kAbsMax>
void row_range(const float* x, int64_t rows, int64_t cols, int64_t stride, float* low, float* high) {
  constexpr int64_t L = V::kLanes;
  for (int64_t row = 0; row < rows; ++row) {
    const float* from = x + row * stride;
    V::F h = V::set1(high[row]), l = kAbsMax ? h : V::set1(low[row]);
    int64_t i = 0;
    if (cols >= 4 * L) {
      V::F ls[4] = {l, l, l, l}, hs[4] = {h, h, h, h};
      for (; i + 4 * L <= cols; i += 4 * L)
        for (int k = 0; k < 4; ++k) widen<kAbsMax>(V::load(from + i + k * L), ls[k], hs[k]);
      l = V::min(V::min(ls[0], ls[1]), V::min(ls[2], ls[3]));
      h = V::max(V::max(hs[0], hs[1]), V::max(hs[2], hs[3]));
    }
    for (; i + L <= cols; i += L) widen<kAbsMax>(V::load(from + i), l, h);
    if (i < cols)
      widen<kAbsMax>(cols >= L ? V::load(from + cols - L) : V::load_part(from, cols, V::set1(load(from))), l, h);
    if (!kAbsMax) low[row] = V::lowest(l);
    high[row] = V::highest(h);
  }
}

template <bool kAbsMax, int kCount>
void column_range_of_some_rows(const float* x, int64_t cols, int64_t stride, float* low, float* high) {
  constexpr int64_t L = V::kLanes;
  int64_t i = 0;
  for (; i + L <= cols; i += L) {
    V::F h = V::load(high + i), l = kAbsMax ? h : V::load(low + i);
    for (int row = 0; row < kCount; ++row) widen<kAbsMax>(V::load(x + row * stride + i), l, h);
    if (!kAbsMax) V::store<false>(low + i, l);
    V::store<false>(high + i, h);
  }
  if (const int64_t n = cols - i) {
    V::F h = V::load_part(high + i, n), l = kAbsMax ? h : V::load_part(low + i, n);
    for (int row = 0; row < kCount; ++row) widen<kAbsMax>(V::load_part(x + row * stride + i, n), l, h);
    if (!kAbsMax) V::store_part(low + i, l, n);
    V::store_part(high + i, h, n);
  }
}

// Eight rows at once, so that low and high are loaded and stored once for all of them.
template <bool kAbsMax>
void column_range(const float* x, int64_t rows, int64_t cols, int64_t stride, float* low, float* high) {
  int64_t row = 0;
  for (; row + 8 <= rows; row += 8) column_range_of_some_rows<kAbsMax, 8>(x + row * stride, cols, stride, low, high);
  for (; row < rows; ++row) column_range_of_some_rows<kAbsMax, 1>(x + row * stride, cols, stride, low, high);
}
