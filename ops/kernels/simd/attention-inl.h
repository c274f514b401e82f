// The kernel of softmax in attention.

inline V::F bias_of(const SoftmaxRow& row, int64_t i) {
  if (!row.bias_is_vector) return V::set1(dynq::load(row.bias));
  if (i + V::kLanes <= row.count) return V::load(row.bias + i);
  return i < row.count ? V::load_part(row.bias + i, row.count - i) : V::set1(0.0f);
}

// The scores of a vector from column i on, of which those from `count` on are -infinity.
inline V::F scores_at(const SoftmaxRow& row, int64_t i) {
  if (i + V::kLanes <= row.count) return V::load(row.scores + i);
  return i < row.count ? V::load_part(row.scores + i, row.count - i, V::set1(-kInfinity)) : V::set1(-kInfinity);
}

inline void cap_scores(const SoftmaxRow& row) {
  const ScoreCap cap(row.cap);
  const V::F inner = V::set1(cap.inner), outer = V::set1(cap.outer), offset = V::set1(cap.offset);
  for (int64_t i = 0; i < row.count; i += V::kLanes) {
    const V::F t = sigmoid_of<V>(V::mul(V::load(row.scores + i), inner));
    V::store<false>(row.scores + i, V::sub(V::mul(t, outer), offset));
    if (i + V::kLanes > row.count) V::store<false>(row.scores + i, scores_at(row, i));
  }
}

float softmax(const SoftmaxRow& row) {
  const auto f = [](float number) ORT_DYNQ_INLINE_LAMBDA { return V::set1(number); };
  V::F best[2] = {f(-kInfinity), f(-kInfinity)};
  if (row.cap != 0) cap_scores(row);
  const bool replaces = row.least_added > -kInfinity;
  const bool has_bias = row.bias_is_vector || replaces || dynq::load(row.bias) != 0;
  const V::F least_added = f(row.least_added);
  for (int64_t i = 0; i < row.padded; i += V::kLanes) {
    V::F score = V::load(row.scores + i);
    if (has_bias) {
      const V::F bias = bias_of(row, i);
      score = V::add(score, bias);
      if (replaces) score = V::choose(V::less(bias, least_added), bias, score);
      V::store<false>(row.scores + i, score);
      if (replaces && i + V::kLanes > row.count) {
        score = scores_at(row, i);
        V::store<false>(row.scores + i, score);
      }
    }
    V::F& lanes = best[i / V::kLanes % 2];
    lanes = V::max(score, lanes);
  }
  const V::F largest = f(V::highest(V::max(best[0], best[1])));
  V::I sums[2] = {V::set1(int32_t{0}), V::set1(int32_t{0})};
  V::F nans = f(0), tops[2] = {f(kLeastWeight), f(kLeastWeight)};
#pragma GCC unroll 2
  for (int64_t i = 0; i < row.padded; i += V::kLanes) {
    const V::F y = V::max(f(-64.0f), V::mul(V::sub(V::load(row.scores + i), largest), f(kLog2E)));
    const V::F n = V::round_float(y), r = V::sub(y, n);
    V::F p = f(kPower[0]);
    for (int j = 1; j < 5; ++j) p = V::add(V::mul(p, r), f(kPower[j]));
    const V::F code = V::round_float(V::times_power_of_2(p, n));
    const V::F weight = V::mul(code, V::load(row.factors + i));
    nans = V::or_nan(nans, weight);
    V::I& sum = sums[i / V::kLanes % 2];
    sum = V::add(sum, V::round(code));
    V::F& top = tops[i / V::kLanes % 2];
    top = V::max(weight, top);
    V::store<false>(row.scores + i, weight);
  }
  float lanes[V::kLanes];
  V::store<false>(lanes, nans);
  bool is_defined = true;
  for (const float lane : lanes) is_defined = is_defined && lane == lane;
  const float top = V::highest(V::max(tops[0], tops[1]));
  if (!is_defined || top == kInfinity) {
    memset(row.high, 0, static_cast<size_t>(row.padded));
    memset(row.low, 0, static_cast<size_t>(row.padded));
    return kNan;
  }
  const V::F inverse = f(kLargestCode / top);
  for (int64_t i = 0; i < row.padded; i += V::kLanes)
    V::store_bytes(row.low + i, row.high + i, V::round(V::mul(V::load(row.scores + i), inverse)));
  int32_t lane_sums[V::kLanes];
  int64_t sum = 0;
  for (const V::I& each : sums) {
    memcpy(lane_sums, &each, sizeof lane_sums);
    for (const int32_t lane : lane_sums) sum += lane;
  }
  return top / kLargestCode / (static_cast<float>(sum) * kUnitOfCodes);
}
