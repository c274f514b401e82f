// From floats to words, from sums to scores, and from scores to powers of 2: a part of compressed-inl.h.

// The numbers of a row that become words, times their factors.
template <bool kHasFactors>
struct RowOfNumbers {
  const float *x, *factors;
  int64_t count, whole;  // a multiple of V::kLanes

  V::F at(int64_t i) const {
    if constexpr (kHasFactors) return V::mul(V::load(x + i), V::load(factors + i));
    return V::load(x + i);
  }
  V::F rest() const {
    const int64_t n = count - whole;
    if constexpr (kHasFactors) return V::mul(V::load_part(x + whole, n), V::load_part(factors + whole, n));
    return V::load_part(x + whole, n);
  }

  // The largest magnitudes in lanes, where NaN is larger than infinity.
  V::F peaks() const {
    V::F peaks = whole < count ? V::abs(rest()) : V::set1(0.0f);
#pragma GCC unroll 4
    for (int64_t i = 0; i < whole; i += V::kLanes) peaks = V::larger_bits(V::abs(at(i)), peaks);
    return peaks;
  }

  // Prefetches the numbers that are `ahead`.
  void store_words(int16_t* words, float inverse_step, int64_t ahead) const {
    const V::F inverse = V::set1(inverse_step);
#pragma GCC unroll 2
    for (int64_t i = 0; i < whole; i += V::kLanes) {
      ORT_DYNQ_PREFETCH(x + ahead + i);
      V::store_words(words + i, V::round(V::mul(at(i), inverse)));
    }
    if (whole == count) return;
    int16_t last[V::kLanes];
    V::store_words(last, V::round(V::mul(rest(), inverse)));
    memcpy(words + whole, last, static_cast<size_t>(count - whole) * sizeof(int16_t));
  }
};

template <bool kHasFactors>
inline RowOfNumbers<kHasFactors> row_of_numbers(const WordRows& p, int64_t row) {
  return {p.x + row * p.stride, p.factors, p.count, p.count / V::kLanes * V::kLanes};
}

// The steps of some rows, at most as many as a vector has lanes, which share the work.
template <bool kHasFactors>
inline void find_steps(const WordRows& p, int64_t first, int64_t count) {
  V::F peaks[V::kLanes];
  for (int64_t r = 0; r < count; ++r) peaks[r] = row_of_numbers<kHasFactors>(p, first + r).peaks();
  V::F largest;
  if (count == 1) {
    largest = V::set1(V::has_nan(peaks[0], peaks[0]) ? kNan : V::highest(peaks[0]));
  } else {
    for (int64_t r = count; r < V::kLanes; ++r) peaks[r] = V::set1(0.0f);
    largest = V::combine_lanes(peaks, [](V::F a, V::F b) ORT_DYNQ_INLINE_LAMBDA { return V::larger_bits(a, b); });
  }
  const V::F step = V::max(V::div(largest, V::set1(p.largest_word)), V::set1(kSmallestStep));
  float magnitudes[V::kLanes], steps[V::kLanes];
  V::store<false>(magnitudes, largest);
  V::store<false>(steps, step);
  for (int64_t r = 0; r < count; ++r) dynq::store(p.steps + first + r, magnitudes[r] < kInfinity ? steps[r] : kNan);
}

template <bool kHasFactors>
void quantize_rows(const WordRows& p) {
  for (int64_t first = 0; first < p.rows; first += V::kLanes) {
    const int64_t count = p.rows - first < V::kLanes ? p.rows - first : V::kLanes;
    if (!p.has_steps) find_steps<kHasFactors>(p, first, count);
    float inverses[V::kLanes];
    V::store<false>(inverses, V::div(V::set1(1.0f), numbers_at(p.steps, first, p.rows)));
    for (int64_t r = 0; r < count; ++r) {
      int16_t* const words = p.words + (first + r) * p.word_stride;
      if (inverses[r] == inverses[r])
        row_of_numbers<kHasFactors>(p, first + r)
            .store_words(words, inverses[r], first + V::kLanes + r < p.rows ? V::kLanes * p.stride : 0);
      else
        memset(words, 0, static_cast<size_t>(p.count) * sizeof(int16_t));
    }
  }
}

void quantize_words(const WordRows& rows) {
  rows.factors == nullptr ? quantize_rows<false>(rows) : quantize_rows<true>(rows);
}

template <CodeKind kKind>
void scale_scores(const ScoreBlock& block) {
  const V::F step = V::set1(block.step);
  const V::I offset = V::set1(block.offset), word_sum = V::set1(block.word_sum);
  for (int64_t i = 0; i < block.count; i += V::kLanes) {
    const int64_t rest = block.count - i;
    const bool is_whole = rest >= V::kLanes;
    const auto sums_at = [&](const int32_t* sums) ORT_DYNQ_INLINE_LAMBDA {
      return is_whole ? V::load(static_cast<const void*>(sums + i)) : V::load_part(sums + i, rest);
    };
    const V::I sums = sums_at(block.sums);
    V::F score;
    if (block.low_sums != nullptr) {
      score = V::joined(sums, sums_at(block.low_sums));
    } else if (block.zero_points == nullptr) {
      score = V::to_float(V::sub(sums, offset));
    } else {
      const uint8_t* zero_points = block.zero_points + i;
      const V::I zps = is_whole ? V::load_codes<kKind>(zero_points) : V::load_codes_part<kKind>(zero_points, rest);
      score = V::to_float(V::sub(V::sub(sums, offset), V::mul(zps, word_sum)));
    }
    score = V::mul(score, step);
    if (block.scales != nullptr) score = V::mul(score, numbers_at(block.scales, i, block.count));
    if (block.adds) score = V::add(numbers_at(block.scores, i, block.count), score);
    if (is_whole)
      V::store<false>(block.scores + i, score);
    else
      V::store_part(block.scores + i, score, rest);
  }
}

float powers_of_2(const PowerRow& row) {
  const auto f = [](float number) ORT_DYNQ_INLINE_LAMBDA { return V::set1(number); };
  float* const scores = row.scores;
  const int64_t count = row.count, whole = count / V::kLanes * V::kLanes, rest = count - whole;
  const float* const bias =
      row.bias != nullptr && (row.bias_is_vector || dynq::load(row.bias) != 0) ? row.bias : nullptr;
  const V::F factor = f(row.factor), one_bias = f(bias == nullptr || row.bias_is_vector ? 0.0f : dynq::load(bias));
  const bool bias_is_vector = row.bias_is_vector;
  const auto scaled = [&](V::F score, int64_t i) ORT_DYNQ_INLINE_LAMBDA {
    score = V::mul(score, factor);
    if (bias == nullptr) return score;
    return V::add(score, bias_is_vector ? numbers_at(bias, i, count) : one_bias);
  };
  const auto last_scores = [&] { return V::load_part(scores + whole, rest, f(-kInfinity)); };
  V::F best = f(-kInfinity);
  for (int64_t i = 0; i < whole; i += V::kLanes) {
    const V::F score = scaled(V::load(scores + i), i);
    V::store<false>(scores + i, score);
    best = V::max(score, best);
  }
  if (rest > 0) {
    V::store_part(scores + whole, scaled(last_scores(), whole), rest);
    best = V::max(last_scores(), best);  // read again: only the first lanes are scores
  }
  const V::F largest = f(V::highest(best));
  V::F nans = f(0);
  V::I sums;
  const auto power_of = [&](V::F score) ORT_DYNQ_INLINE_LAMBDA {
    const V::F y = V::max(f(kMinPower), V::mul(V::sub(score, largest), f(kLog2E)));
    const V::F n = V::round_float(y), r = V::sub(y, n);
    V::F p = f(kPowerOf2[0]);
    for (int j = 1; j < kPowerTerms; ++j) p = V::add(V::mul(p, r), f(kPowerOf2[j]));
    const V::F power = V::mul(V::times_power_of_2(p, n), V::less(f(kMinPower), y));
    nans = V::fmadd(power, f(0), nans);
    sums = V::add(sums, V::round(V::mul(power, f(kPowerUnit))));
    return power;
  };
  int64_t sum = 0;
  constexpr int64_t kPart = 128 * V::kLanes;  // 128 * 2^23 fits int32
  for (int64_t start = 0; start < count; start += kPart) {
    const int64_t end = start + kPart < whole ? start + kPart : whole;
    sums = V::set1(int32_t{0});
#pragma GCC unroll 2
    for (int64_t i = start; i < end; i += V::kLanes) V::store<false>(scores + i, power_of(V::load(scores + i)));
    if (rest > 0 && count - start < kPart) V::store_part(scores + whole, power_of(last_scores()), rest);
    int32_t lanes[V::kLanes];
    store_sums(lanes, sums);
    for (const int32_t lane : lanes) sum += lane;
  }
  if (V::has_nan(nans, nans)) return kNan;
  return 1.0f / (static_cast<float>(sum) * (1 / kPowerUnit));
}
