// Ranges of a run of elements, of each row, of each column.

// Four independent chains of vectors hide the latency of the comparisons.
template <Extremes kKind, class Floats = Float32>
Range range(const void* elements, int64_t count) {
  const auto* x = static_cast<const typename Floats::Element*>(elements);
  constexpr int64_t L = V::kLanes;
  V::F low[4], high[4];
  for (int k = 0; k < 4; ++k) {
    low[k] = V::set1(kInfinity);
    high[k] = V::set1(kKind == kAbsMax ? 0.0f : -kInfinity);
  }
  V::F not_finite[4] = {V::set1(0.0f), V::set1(0.0f), V::set1(0.0f), V::set1(0.0f)};
  const auto take = [&](int k, V::F v) {
    not_finite[k] = V::fmadd(v, V::set1(0.0f), not_finite[k]);  // 0 while every element is finite
    if (kKind == kAbsMax) v = V::abs(v);
    if (kKind == kMinMax) low[k] = V::min(v, low[k]);
    high[k] = V::max(v, high[k]);
  };
  int64_t i = 0;
  for (; i + 4 * L <= count; i += 4 * L)
    for (int k = 0; k < 4; ++k) take(k, Floats::load(x + i + k * L));
  for (; i + L <= count; i += L) take(0, Floats::load(x + i));
  if (i < count && count >= L) {
    take(1, Floats::load(x + count - L));
    i = count;
  }
  // Lanes without an element hold values that every element replaces.
  float smallest = V::lowest(V::min(V::min(low[0], low[1]), V::min(low[2], low[3])));
  float largest = V::highest(V::max(V::max(high[0], high[1]), V::max(high[2], high[3])));
  const V::F sum = V::add(V::add(not_finite[0], not_finite[1]), V::add(not_finite[2], not_finite[3]));
  float any_not_finite = V::has_nan(sum, sum) ? kNan : 0.0f;
  for (; i < count; ++i) {
    const float element = Floats::element(x + i), v = kKind == kAbsMax && element < 0 ? -element : element;
    if (v < smallest) smallest = v;
    if (v > largest) largest = v;
    any_not_finite += v * 0.0f;
  }
  const float first = Floats::element(x);
  const bool is_nan = first != first;
  if (is_nan) return {first, first, any_not_finite};
  return {kKind == kAbsMax ? 0.0f : smallest, largest, any_not_finite};
}

// Compares the bits of float16 numbers as integers, mapped so that they have the order of the numbers. Compilers
// vectorize the loop for the instruction set. Infinity and NaN lie beyond the finite numbers.
template <Extremes kKind>
Range range_f16(const void* elements, int64_t count) {
  constexpr int16_t kOrderedInfinity = 0x7c00;
  const auto ordered = [](uint16_t bits) {
    const auto flipped = static_cast<uint16_t>(static_cast<int16_t>(bits) >> 15 & 0x7fff);  // if it is negative
    return static_cast<int16_t>(kKind == kAbsMax ? bits & 0x7fff : bits ^ flipped);
  };
  const auto* x = static_cast<const uint16_t*>(elements);
  int16_t low = INT16_MAX, high = INT16_MIN;
  for (int64_t i = 0; i < count; ++i) {
    const int16_t v = ordered(dynq::load(x + i));
    if (kKind == kMinMax) low = v < low ? v : low;
    high = v > high ? v : high;
  }
  if (high >= kOrderedInfinity || (kKind == kMinMax && low < -kOrderedInfinity))
    return range<kKind, Float16>(elements, count);
  // ordered() is its own inverse.
  const auto number = [&](int16_t order) {
    return widen_f16(static_cast<uint16_t>(ordered(static_cast<uint16_t>(order))));
  };
  return {kKind == kAbsMax ? 0.0f : number(low), number(high), 0.0f};
}

template <Extremes kKind>
void widen(V::F v, V::F& low, V::F& high) {
  if (kKind == kAbsMax)
    v = V::abs(v);
  else
    low = V::min(v, low);
  high = V::max(v, high);
}

// The smallest and the largest elements of a row, lane by lane; NaN in `not_finite` if an element is not finite.
struct RowExtremes {
  V::F low, high, not_finite;
};

template <Extremes kKind>
void widen(V::F v, RowExtremes& extremes) {
  extremes.not_finite = V::fmadd(v, V::set1(0.0f), extremes.not_finite);  // 0 while every element is finite
  widen<kKind>(v, extremes.low, extremes.high);
}

template <Extremes kKind>
RowExtremes united(const RowExtremes& a, const RowExtremes& b) {
  return {kKind == kAbsMax ? a.low : V::min(a.low, b.low), V::max(a.high, b.high), V::add(a.not_finite, b.not_finite)};
}

// Widens the extremes by the elements of a row. The last vector overlaps the one before, so that it ends with the row.
template <Extremes kKind>
ORT_DYNQ_INLINE inline RowExtremes widened_by_row(const float* from, int64_t cols, const RowExtremes& before) {
  constexpr int64_t L = V::kLanes;
  RowExtremes even = before, odd = before;
  int64_t i = 0;
  if (cols >= 4 * L) {
    RowExtremes third = before, fourth = before;
    for (; i + 4 * L <= cols; i += 4 * L) {
      widen<kKind>(V::load(from + i), even);
      widen<kKind>(V::load(from + i + L), odd);
      widen<kKind>(V::load(from + i + 2 * L), third);
      widen<kKind>(V::load(from + i + 3 * L), fourth);
    }
    even = united<kKind>(even, third);
    odd = united<kKind>(odd, fourth);
  }
  if (i + 2 * L <= cols) {
    widen<kKind>(V::load(from + i), even);
    widen<kKind>(V::load(from + i + L), odd);
    i += 2 * L;
  }
  if (i + L <= cols) {
    widen<kKind>(V::load(from + i), even);
    i += L;
  }
  if (i < cols) widen<kKind>(cols >= L ? V::load(from + cols - L) : V::load_part(from, cols, V::set1(load(from))), odd);
  return united<kKind>(even, odd);
}

template <Extremes kKind>
bool row_ranges(const float* x, int64_t rows, int64_t cols, int64_t stride, float* low, float* high) {
  constexpr int64_t L = V::kLanes;
  V::F not_finite = V::set1(0.0f);
  const auto of_row = [&](int64_t row) {
    const V::F h = V::set1(high[row]), l = kKind == kAbsMax ? h : V::set1(low[row]);
    return widened_by_row<kKind>(x + row * stride, cols, {l, h, V::set1(0.0f)});
  };
  int64_t row = 0;
  for (; row + L <= rows; row += L) {
    V::F ls[L], hs[L];
    for (int64_t k = 0; k < L; ++k) {
      const RowExtremes extremes = of_row(row + k);
      not_finite = V::add(not_finite, extremes.not_finite);
      ls[k] = extremes.low;
      hs[k] = extremes.high;
    }
    if (kKind == kMinMax) V::store<false>(low + row, V::combine_lanes(ls, [](V::F a, V::F b) { return V::min(a, b); }));
    V::store<false>(high + row, V::combine_lanes(hs, [](V::F a, V::F b) { return V::max(a, b); }));
  }
  for (; row < rows; ++row) {
    const RowExtremes extremes = of_row(row);
    not_finite = V::add(not_finite, extremes.not_finite);
    if (kKind == kMinMax) low[row] = V::lowest(extremes.low);
    high[row] = V::highest(extremes.high);
  }
  return !V::has_nan(not_finite, not_finite);
}

template <Extremes kKind, int kRows>
void column_range_tile(const float* x, int64_t cols, int64_t stride, float* low, float* high) {
  constexpr int64_t L = V::kLanes;
  int64_t i = 0;
  for (; i + L <= cols; i += L) {
    V::F h = V::load(high + i), l = kKind == kAbsMax ? h : V::load(low + i);
    for (int row = 0; row < kRows; ++row) widen<kKind>(V::load(x + row * stride + i), l, h);
    if (kKind == kMinMax) V::store<false>(low + i, l);
    V::store<false>(high + i, h);
  }
  if (const int64_t n = cols - i) {
    V::F h = V::load_part(high + i, n), l = kKind == kAbsMax ? h : V::load_part(low + i, n);
    for (int row = 0; row < kRows; ++row) widen<kKind>(V::load_part(x + row * stride + i, n), l, h);
    if (kKind == kMinMax) V::store_part(low + i, l, n);
    V::store_part(high + i, h, n);
  }
}

// Eight rows at once, so that low and high are loaded and stored once for all of them.
template <Extremes kKind>
void column_ranges(const float* x, int64_t rows, int64_t cols, int64_t stride, float* low, float* high) {
  int64_t row = 0;
  for (; row + 8 <= rows; row += 8) column_range_tile<kKind, 8>(x + row * stride, cols, stride, low, high);
  for (; row < rows; ++row) column_range_tile<kKind, 1>(x + row * stride, cols, stride, low, high);
}
