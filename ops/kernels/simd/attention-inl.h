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

// Numbers below 2^22 in magnitude are rounded to integers, half to even, if these are added. The bits of a sum have the
// integer as their last ones.
constexpr float kRounding = 12582912.0f;        // 1.5 * 2^23
constexpr float kRoundingOfCodes = 8388608.0f;  // 2^23, for numbers that are not negative
constexpr uint32_t kBitsOfRounding = 0x4b000000;

template <int kNumber>
struct Lane {
  static constexpr int kLane = kNumber;
};

// Calls each(i, Lane<0>()) and each(i, Lane<1>()) in turn for the vectors of a row: they have accumulators of their
// own, because one would wait for the vector before.
template <class Each>
ORT_DYNQ_INLINE inline void for_vectors(int64_t count, const Each& each) {
  int64_t i = 0;
  for (; i + 2 * V::kLanes <= count; i += 2 * V::kLanes) {
    each(i, Lane<0>());
    each(i + V::kLanes, Lane<1>());
  }
  if (i < count) each(i, Lane<0>());
}

// The largest score, after the bias is added, or NaN if a score is NaN or the largest one is infinite.
template <bool kHasBias, bool kReplaces>
inline float add_bias(const SoftmaxRow& row) {
  const V::F least_added = V::set1(row.least_added);
  V::F best[2] = {V::set1(-kInfinity), V::set1(-kInfinity)}, nans[2] = {V::set1(0.0f), V::set1(0.0f)};
  for_vectors(row.padded, [&](int64_t i, auto number) ORT_DYNQ_INLINE_LAMBDA {
    constexpr int kLane = decltype(number)::kLane;
    V::F score = V::load(row.scores + i);
    if constexpr (kHasBias) {
      const V::F bias = bias_of(row, i);
      score = V::add(score, bias);
      if (kReplaces) score = V::choose(V::less(bias, least_added), bias, score);
      V::store<false>(row.scores + i, score);
      if (kReplaces && i + V::kLanes > row.count) {
        score = scores_at(row, i);
        V::store<false>(row.scores + i, score);
      }
    }
    best[kLane] = V::max(score, best[kLane]);
    nans[kLane] = V::or_nan(nans[kLane], score);
  });
  const float largest = V::highest(V::max(best[0], best[1]));
  return V::has_nan(nans[0], nans[1]) || !(largest > -kInfinity && largest < kInfinity) ? kNan : largest;
}

inline float add_bias(const SoftmaxRow& row) {
  if (row.least_added > -kInfinity) return add_bias<true, true>(row);
  return row.bias_is_vector || dynq::load(row.bias) != 0 ? add_bias<true, false>(row) : add_bias<false, false>(row);
}

struct SoftmaxSums {
  float top;     // the largest weight
  uint32_t sum;  // of the codes
};

// Scores become weights.
inline SoftmaxSums raise(const SoftmaxRow& row, float best) {
  const auto f = [](float number) ORT_DYNQ_INLINE_LAMBDA { return V::set1(number); };
  const V::F largest = f(best);
  V::I sums[2] = {V::set1(int32_t{0}), V::set1(int32_t{0})};
  V::F tops[2] = {f(kMinWeight), f(kMinWeight)};
  for_vectors(row.padded, [&](int64_t i, auto number) ORT_DYNQ_INLINE_LAMBDA {
    constexpr int kLane = decltype(number)::kLane;
    const V::F y = V::max(V::mul(V::sub(V::load(row.scores + i), largest), f(kLog2E)), f(-64.0f));
    const V::F n = V::add(y, f(kRounding)), r = V::sub(y, V::sub(n, f(kRounding)));
    V::F p = f(kPower[0]);
#pragma GCC unroll 4
    for (int j = 1; j < 5; ++j) p = V::add(V::mul(p, r), f(kPower[j]));
    const V::F code = V::add(V::shift_exponent(p, n), f(kRoundingOfCodes));
    const V::F weight = V::mul(V::sub(code, f(kRoundingOfCodes)), V::load(row.factors + i));
    sums[kLane] = V::add(sums[kLane], V::bits(code));
    tops[kLane] = V::max(weight, tops[kLane]);
    V::store<false>(row.scores + i, weight);
  });
  uint32_t lane_sums[V::kLanes], sum = 0;  // at most 65536 codes: their sum fits
  const V::I all = V::add(sums[0], sums[1]);
  memcpy(lane_sums, &all, sizeof lane_sums);
  const auto vectors = static_cast<uint32_t>(row.padded / V::kLanes);
  for (const uint32_t lane : lane_sums) sum += lane - vectors * kBitsOfRounding;
  return {V::highest(V::max(tops[0], tops[1])), sum};
}

// Weights become codes.
inline void store_codes(const SoftmaxRow& row, float top) {
  const V::F inverse = V::set1(kLargestCode / top);
  const auto code_at = [&](int64_t i) ORT_DYNQ_INLINE_LAMBDA {
    return V::bits(V::add(V::mul(V::load(row.scores + i), inverse), V::set1(kRoundingOfCodes)));
  };
  constexpr int64_t kFour = 4 * V::kLanes;
  int64_t i = 0;
  for (; i + kFour <= row.padded; i += kFour) {
    const V::I codes[] = {code_at(i), code_at(i + V::kLanes), code_at(i + 2 * V::kLanes), code_at(i + 3 * V::kLanes)};
    V::store_bytes(row.low + i, row.high + i, codes);
  }
  for (; i < row.padded; i += V::kLanes) V::store_bytes(row.low + i, row.high + i, code_at(i));
}

inline void store_words(const SoftmaxRow& row, float top) {
  const V::F inverse = V::set1(kLargestCode / top);
  const V::I offset = V::set1(static_cast<int32_t>(kBitsOfRounding) + kWordOffset);
#pragma GCC unroll 2
  for (int64_t i = 0; i < row.padded; i += V::kLanes)
    V::store_words(
        row.words + i,
        V::sub(V::bits(V::add(V::mul(V::load(row.scores + i), inverse), V::set1(kRoundingOfCodes))), offset));
}

inline void store_zeros(const SoftmaxRow& row) {
  const auto count = static_cast<size_t>(row.padded);
  if (row.words != nullptr) {
    for (size_t i = 0; i < count; ++i) row.words[i] = -kWordOffset;
    return;
  }
  memset(row.high, 0, count);
  memset(row.low, 0, count);
}

void softmax(const SoftmaxRow* rows, int64_t count, float* factors) {
  SoftmaxSums sums[kSoftmaxRows];
  for (int64_t i = 0; i < count; ++i) {
    if (rows[i].cap != 0) cap_scores(rows[i]);
    factors[i] = add_bias(rows[i]);
  }
  for (int64_t i = 0; i < count; ++i)
    if (factors[i] == factors[i]) sums[i] = raise(rows[i], factors[i]);
  for (int64_t i = 0; i < count; ++i) {
    if (factors[i] == factors[i]) {
      rows[i].words != nullptr ? store_words(rows[i], sums[i].top) : store_codes(rows[i], sums[i].top);
      factors[i] = sums[i].top / kLargestCode / (static_cast<float>(sums[i].sum) * kUnitOfCodes);
    } else {
      store_zeros(rows[i]);
    }
  }
}
