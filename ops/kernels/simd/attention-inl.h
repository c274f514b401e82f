// The kernel of softmax in attention. Codes of a row with NaN are any codes: its sums are NaN.

inline V::F bias_of(const SoftmaxRow& row, int64_t i) {
  if (!row.bias_is_vector) return V::set1(dynq::load(row.bias));
  if (i + V::kLanes <= row.count) return V::load(row.bias + i);
  return i < row.count ? V::load_part(row.bias + i, row.count - i) : V::set1(0.0f);
}

float softmax(const SoftmaxRow& row) {
  const auto f = [](float number) ORT_DYNQ_INLINE_LAMBDA { return V::set1(number); };
  V::F best[2] = {f(-kInfinity), f(-kInfinity)};
  const bool has_bias = row.bias_is_vector || dynq::load(row.bias) != 0;
  for (int64_t i = 0; i < row.padded; i += V::kLanes) {
    V::F score = V::load(row.scores + i);
    if (has_bias) {
      score = V::add(score, V::mul(bias_of(row, i), f(kLog2E)));
      V::store<false>(row.scores + i, score);
    }
    V::F& lanes = best[i / V::kLanes % 2];
    lanes = V::max(score, lanes);
  }
  const V::F largest = f(V::highest(V::max(best[0], best[1])));
  V::I sums[2] = {V::set1(int32_t{0}), V::set1(int32_t{0})};
  V::F nans = f(0);
#pragma GCC unroll 2
  for (int64_t i = 0; i < row.padded; i += V::kLanes) {
    const V::F y = V::max(f(-64.0f), V::sub(V::load(row.scores + i), largest));
    const V::F n = V::round_float(y), r = V::sub(y, n);
    V::F p = f(kPower[0]);
    for (int j = 1; j < 5; ++j) p = V::add(V::mul(p, r), f(kPower[j]));
    const V::F exact = V::times_power_of_2(p, n);
    const V::I codes = V::round(exact);
    nans = V::or_nan(nans, exact);
    V::I& sum = sums[i / V::kLanes % 2];
    sum = V::add(sum, codes);
    V::store_bytes(row.low + i, row.high + i, codes);
  }
  float lanes[V::kLanes];
  int32_t lane_sums[V::kLanes];
  V::store<false>(lanes, nans);
  memcpy(lane_sums, &sums[0], sizeof lane_sums);
  int64_t sum = 0;
  for (const int32_t each : lane_sums) sum += each;
  memcpy(lane_sums, &sums[1], sizeof lane_sums);
  for (const int32_t each : lane_sums) sum += each;
  for (const float lane : lanes)
    if (lane != lane) return lane;
  return static_cast<float>(sum);
}
