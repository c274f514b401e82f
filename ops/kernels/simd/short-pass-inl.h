// Passes of two to four steps, often of short rows: sums of rows, and rows times a number. As lists of steps,
// each row takes longer to begin and to end than its elements take.

template <class T>
ORT_DYNQ_INLINE inline T* row_of(const StepOperand& operand, int64_t row) {
  return reinterpret_cast<T*>(const_cast<char*>(operand.at) + row * operand.row_bytes);
}

// Whether the elements of an operand are adjacent floats of a tensor, not a buffer for one tile.
inline bool is_row(const StepOperand& operand) {
  return operand.is_vector && operand.element_bytes == static_cast<int64_t>(sizeof(float));
}

constexpr int64_t kRowsOfSums = kSumVectors > 2 ? 2 : 4;  // as many as registers hold

// Adds up to a vector of elements from number `at` on, or their products with those of another row.
template <bool kMultiplies>
ORT_DYNQ_INLINE inline V::F add_last(V::F sum, const float* x, const float* by, int64_t at, int64_t count) {
  const auto load = [&](const float* from) ORT_DYNQ_INLINE_LAMBDA {
    return count < V::kLanes ? V::load_part(from + at, count) : V::load(from + at);
  };
  return V::add(sum, kMultiplies ? V::mul(load(x), load(by)) : load(x));
}

// Adds the lanes of the sums of each row.
template <int64_t kRows>
ORT_DYNQ_INLINE inline void add_lanes(V::F (&sums)[kRows][kSumVectors], float (&lanes)[kRows][V::kLanes]) {
  for (int64_t r = 0; r < kRows; ++r) {
    for (int64_t half = kSumVectors / 2; half > 0; half /= 2)
      for (int64_t i = 0; i < half; ++i) sums[r][i] = V::add(sums[r][i], sums[r][half + i]);
    V::store<false>(lanes[r], sums[r][0]);
  }
  for (int64_t half = V::kLanes / 2; half > 0; half /= 2)
    for (int64_t r = 0; r < kRows; ++r)
      for (int64_t i = 0; i < half; ++i) lanes[r][i] += lanes[r][half + i];
}

// The sums of kRows rows of pass.steps[0], times those of steps[1].
template <int64_t kRows, bool kMultiplies>
void sum_rows(const Pass& pass, int64_t row) {
  constexpr int64_t L = V::kLanes;
  V::F sums[kRows][kSumVectors];
  const float *x[kRows], *by[kRows];
  for (int64_t r = 0; r < kRows; ++r) {
    x[r] = row_of<const float>(pass.steps[0].a, row + r);
    by[r] = kMultiplies ? row_of<const float>(pass.steps[1].a, row + r) : nullptr;
    for (V::F& lanes : sums[r]) lanes = V::set1(0.0f);
  }
  // Where the next rows are: the CPU sees no pattern in rows that are read side by side.
  const int64_t ahead = kRows * pass.steps[0].a.row_bytes / static_cast<int64_t>(sizeof(float));
  int64_t col = 0;
  for (; col + kSums <= pass.cols; col += kSums) {
    for (int64_t r = 0; r < kRows; ++r) {
      ORT_DYNQ_PREFETCH(x[r] + col + ahead);
      ORT_DYNQ_PREFETCH(x[r] + col + ahead + kSums / 2);
    }
#pragma GCC unroll 8
    for (int64_t v = 0; v < kSumVectors; ++v)
#pragma GCC unroll 4
      for (int64_t r = 0; r < kRows; ++r) {
        const V::F lanes = V::load(x[r] + col + v * L);
        sums[r][v] = V::add(sums[r][v], kMultiplies ? V::mul(lanes, V::load(by[r] + col + v * L)) : lanes);
      }
  }
#pragma GCC unroll 8
  for (int64_t v = 0; v < kSumVectors; ++v) {  // numbers of vectors are constants, so that sums stay in registers
    const int64_t count = pass.cols - col - v * L;
    if (count <= 0) break;
    for (int64_t r = 0; r < kRows; ++r) sums[r][v] = add_last<kMultiplies>(sums[r][v], x[r], by[r], col + v * L, count);
  }
  float lanes[kRows][L];
  add_lanes(sums, lanes);
  for (int64_t r = 0; r < kRows; ++r) store(row_of<float>(pass.steps[pass.count - 1].a, row + r), lanes[r][0]);
}

template <bool kMultiplies>
void sum_all_rows(const Pass& pass) {
  int64_t row = 0;
  for (; row + kRowsOfSums <= pass.rows; row += kRowsOfSums) sum_rows<kRowsOfSums, kMultiplies>(pass, row);
  for (; row < pass.rows; ++row) sum_rows<1, kMultiplies>(pass, row);
}

// Rows of pass.steps[0] times a number, plus those of steps[2].
template <bool kAdds>
void scale_rows(const Pass& pass) {
  constexpr int64_t L = V::kLanes;
  for (int64_t row = 0; row < pass.rows; ++row) {
    const auto* x = row_of<const float>(pass.steps[0].a, row);
    const auto* more = kAdds ? row_of<const float>(pass.steps[2].a, row) : nullptr;
    auto* to = row_of<float>(pass.steps[pass.count - 1].a, row);
    const V::F factor = V::set1(load(row_of<const float>(pass.steps[1].a, row)));
    int64_t col = 0;
    for (; col + L <= pass.cols; col += L) {
      const V::F y = V::mul(V::load(x + col), factor);
      V::store<false>(to + col, kAdds ? V::add(y, V::load(more + col)) : y);
    }
    if (const int64_t count = pass.cols - col; count > 0) {
      const V::F y = V::mul(V::load_part(x + col, count), factor);
      V::store_part(to + col, kAdds ? V::add(y, V::load_part(more + col, count)) : y, count);
    }
  }
}

// Runs a pass of these kinds; returns whether it is one.
inline bool run_short_pass(const Pass& pass) {
  const Step* steps = pass.steps;
  if (pass.count < 2 || pass.count > 4 || steps[0].kind != StepKind::kLoad || !is_row(steps[0].a)) return false;
  const StepKind last = steps[pass.count - 1].kind;
  if (last == StepKind::kReduceSum) {
    const bool multiplies = pass.count == 3 && steps[1].kind == StepKind::kMul && is_row(steps[1].a);
    if (multiplies)
      sum_all_rows<true>(pass);
    else if (pass.count == 2)
      sum_all_rows<false>(pass);
    return multiplies || pass.count == 2;
  }
  if (pass.count < 3 || last != StepKind::kStore || !is_row(steps[pass.count - 1].a)) return false;
  if (steps[1].kind != StepKind::kMul || steps[1].a.is_vector) return false;
  const bool adds = pass.count == 4 && steps[2].kind == StepKind::kAdd && is_row(steps[2].a);
  if (adds)
    scale_rows<true>(pass);
  else if (pass.count == 3)
    scale_rows<false>(pass);
  return adds || pass.count == 3;
}
