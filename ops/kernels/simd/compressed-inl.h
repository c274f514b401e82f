// The kernels of attention over compressed keys and values. Sums of products are exact in int32, in any order.
//
// Pairs of products of int16 are added in each lane. By row, codes of two rows become pairs; by column, adjacent ones;
// panels have pairs. Few rows read codes as they are stored, many rows read panels.

constexpr int64_t kPairColumns = 2 * V::kLanes;  // also of a panel
static_assert(kMostPanelColumns % kPairColumns == 0);
constexpr int kTileRows = 6;         // of words, with two vectors of sums each
constexpr int64_t kStreamPairs = 4;  // pairs of rows of codes that are read at once

inline V::I pair_of_words(const int16_t* words, int64_t count) {  // the second word is 0 if count < 2
  int32_t pair = static_cast<int32_t>(static_cast<uint16_t>(words[0]));
  if (count >= 2) memcpy(&pair, words, sizeof pair);
  return V::set1(pair);
}

inline void store_sums(int32_t* to, V::I sums) { memcpy(to, &sums, sizeof sums); }

// kPairColumns columns of kCount rows.
template <CodeKind kKind, int kCount>
inline void tile_by_row(const WordProduct& p, const int16_t* words, const uint8_t* codes, int64_t stride, int32_t* to,
                        int64_t to_stride) {
  V::I sums[kCount][2], low, high;
#pragma GCC unroll 6
  for (int r = 0; r < kCount; ++r) sums[r][0] = sums[r][1] = V::set1(int32_t{0});
  const auto add = [&](int64_t d, int64_t count) ORT_DYNQ_INLINE_LAMBDA {
    const uint8_t* first = codes + d * stride;
    V::word_pairs<kKind>(first, count >= 2 ? first + stride : first, low, high);
#pragma GCC unroll 6
    for (int r = 0; r < kCount; ++r) {
      const V::I pair = pair_of_words(words + r * p.word_stride + d, count);
      sums[r][0] = V::dot_words(sums[r][0], low, pair);
      sums[r][1] = V::dot_words(sums[r][1], high, pair);
    }
  };
  int64_t d = 0;
  for (; d + 2 <= p.depth; d += 2) add(d, 2);
  if (d < p.depth) add(d, 1);
#pragma GCC unroll 6
  for (int r = 0; r < kCount; ++r) {
    store_sums(to + r * to_stride, sums[r][0]);
    store_sums(to + r * to_stride + V::kLanes, sums[r][1]);
  }
}

template <CodeKind kKind>
void tiles_by_row(const WordProduct& p, const uint8_t* codes, int64_t stride, int64_t row, int64_t count, int32_t* to,
                  int64_t to_stride) {
  const int16_t* words = p.words + row * p.word_stride;
  switch (count) {
    case 1:
      return tile_by_row<kKind, 1>(p, words, codes, stride, to, to_stride);
    case 2:
      return tile_by_row<kKind, 2>(p, words, codes, stride, to, to_stride);
    case 3:
      return tile_by_row<kKind, 3>(p, words, codes, stride, to, to_stride);
    case 4:
      return tile_by_row<kKind, 4>(p, words, codes, stride, to, to_stride);
    case 5:
      return tile_by_row<kKind, 5>(p, words, codes, stride, to, to_stride);
    default:
      return tile_by_row<kKind, kTileRows>(p, words, codes, stride, to, to_stride);
  }
}

// One row of words and `cols` columns, a multiple of kPairColumns. Whole rows of codes are read, as memory likes it;
// the sums stay in the first-level cache.
template <CodeKind kKind>
void stream_by_row(const WordProduct& p, int64_t cols) {
  for (int64_t d = 0; d < p.depth; d += 2 * kStreamPairs) {
    V::I pairs[kStreamPairs];
    const uint8_t *first[kStreamPairs], *second[kStreamPairs];
    for (int64_t i = 0; i < kStreamPairs; ++i) {
      const int64_t at = d + 2 * i, rest = p.depth - at;
      pairs[i] = rest > 0 ? pair_of_words(p.words + at, rest) : V::set1(int32_t{0});
      first[i] = p.codes + (rest > 0 ? at : d) * p.code_stride;
      second[i] = rest > 1 ? first[i] + p.code_stride : first[i];
    }
    for (int64_t c = 0; c < cols; c += kPairColumns) {
      V::I sums[2] = {V::set1(int32_t{0}), V::set1(int32_t{0})}, low, high;
      if (d > 0) {
        sums[0] = V::load(static_cast<const void*>(p.sums + c));
        sums[1] = V::load(static_cast<const void*>(p.sums + c + V::kLanes));
      }
#pragma GCC unroll 4
      for (int64_t i = 0; i < kStreamPairs; ++i) {
        V::word_pairs<kKind>(first[i] + c, second[i] + c, low, high);
        sums[0] = V::dot_words(sums[0], low, pairs[i]);
        sums[1] = V::dot_words(sums[1], high, pairs[i]);
      }
      store_sums(p.sums + c, sums[0]);
      store_sums(p.sums + c + V::kLanes, sums[1]);
    }
  }
}

template <CodeKind kKind>
void product_by_row(const WordProduct& p) {
  const int64_t whole = p.cols / kPairColumns * kPairColumns, rest = p.cols - whole;
  if (p.rows == 1 && p.depth > 0) {
    stream_by_row<kKind>(p, whole);
  } else {
    for (int64_t c = 0; c < whole; c += kPairColumns)
      for (int64_t r = 0; r < p.rows; r += kTileRows)
        tiles_by_row<kKind>(p, p.codes + c, p.code_stride, r, p.rows - r < kTileRows ? p.rows - r : kTileRows,
                            p.sums + r * p.sum_stride + c, p.sum_stride);
  }
  if (rest == 0) return;
  uint8_t codes[kMostProducts * kPairColumns];
  for (int64_t d = 0; d < p.depth; ++d) {
    memset(codes + d * kPairColumns, 0, kPairColumns);
    memcpy(codes + d * kPairColumns, p.codes + d * p.code_stride + whole, static_cast<size_t>(rest));
  }
  for (int64_t r = 0; r < p.rows; r += kTileRows) {
    int32_t sums[kTileRows * kPairColumns];
    const int64_t count = p.rows - r < kTileRows ? p.rows - r : kTileRows;
    tiles_by_row<kKind>(p, codes, kPairColumns, r, count, sums, kPairColumns);
    for (int64_t i = 0; i < count; ++i)
      memcpy(p.sums + (r + i) * p.sum_stride + whole, sums + i * kPairColumns,
             static_cast<size_t>(rest) * sizeof(int32_t));
  }
}

// kCount rows of words and kLanes / kCount columns, as many as `cols`: each sum is a vector, whose lanes are added
// last.
template <CodeKind kKind, int kCount>
inline void tile_by_column(const WordProduct& p, int64_t row, int64_t column) {
  constexpr int64_t kColumns = V::kLanes / kCount;
  const int64_t whole = p.depth / kPairColumns * kPairColumns, rest = p.depth - whole;
  const int64_t cols = p.cols - column < kColumns ? p.cols - column : kColumns;
  const int16_t* words = p.words + row * p.word_stride;
  const uint8_t* codes[kColumns];
  V::I sums[V::kLanes];
  for (int64_t c = 0; c < kColumns; ++c) codes[c] = p.codes + (column + (c < cols ? c : 0)) * p.code_stride;
#pragma GCC unroll 16
  for (int i = 0; i < V::kLanes; ++i) sums[i] = V::set1(int32_t{0});
  for (int64_t d = 0; d < whole; d += kPairColumns) {
    V::I left[kCount];
#pragma GCC unroll 2
    for (int r = 0; r < kCount; ++r) left[r] = V::load(static_cast<const void*>(words + r * p.word_stride + d));
#pragma GCC unroll 16
    for (int64_t c = 0; c < kColumns; ++c) {
      const V::I right = V::words<kKind>(codes[c] + d);
#pragma GCC unroll 2
      for (int r = 0; r < kCount; ++r) sums[r * kColumns + c] = V::dot_words(sums[r * kColumns + c], right, left[r]);
    }
  }
  if (rest > 0) {
#pragma GCC unroll 16
    for (int64_t c = 0; c < kColumns; ++c) {
      uint8_t last[kPairColumns] = {};
      memcpy(last, codes[c] + whole, static_cast<size_t>(rest));
      const V::I right = V::words<kKind>(last);
#pragma GCC unroll 2
      for (int r = 0; r < kCount; ++r) {
        const V::I left = V::load(static_cast<const void*>(words + r * p.word_stride + whole));
        sums[r * kColumns + c] = V::dot_words(sums[r * kColumns + c], right, left);
      }
    }
  }
  int32_t lanes[V::kLanes];
  store_sums(lanes, V::sum_lanes(sums));
  for (int r = 0; r < kCount; ++r)
    memcpy(p.sums + (row + r) * p.sum_stride + column, lanes + r * kColumns,
           static_cast<size_t>(cols) * sizeof(int32_t));
}

template <CodeKind kKind>
void product_by_column(const WordProduct& p) {
  int64_t row = 0;
  if (p.rows >= 2)
    for (int64_t c = 0; c < p.cols; c += V::kLanes / 2)
      for (row = 0; row + 2 <= p.rows; row += 2) tile_by_column<kKind, 2>(p, row, c);
  if (p.rows % 2 == 0) return;
  for (int64_t c = 0; c < p.cols; c += V::kLanes) tile_by_column<kKind, 1>(p, p.rows - 1, c);
}

inline V::F numbers_at(const float* x, int64_t i, int64_t count) {
  return i + V::kLanes <= count ? V::load(x + i) : V::load_part(x + i, count - i);
}

float quantize_words(const float* x, const float* factors, int64_t count, int16_t* words) {
  const auto number = [&](int64_t i) ORT_DYNQ_INLINE_LAMBDA {
    const V::F a = numbers_at(x, i, count);
    return factors == nullptr ? a : V::mul(a, numbers_at(factors, i, count));
  };
  const V::F zero = V::set1(0.0f);
  V::F peaks = zero, nans = zero;
  for (int64_t i = 0; i < count; i += V::kLanes) {
    const V::F a = number(i);
    peaks = V::max(V::abs(a), peaks);
    nans = V::or_nan(nans, V::mul(a, zero));  // also of infinite ones
  }
  if (V::has_nan(nans, nans)) {
    memset(words, 0, static_cast<size_t>(count) * sizeof(int16_t));
    return kNan;
  }
  const float quotient = V::highest(peaks) / kLargestWord, step = quotient < kSmallestStep ? kSmallestStep : quotient;
  const V::F steps = V::set1(step);
  for (int64_t i = 0; i < count; i += V::kLanes) {
    const V::I codes = V::round(V::div(number(i), steps));
    if (i + V::kLanes <= count) {
      V::store_words(words + i, codes);
    } else {
      int16_t last[V::kLanes];
      V::store_words(last, codes);
      memcpy(words + i, last, static_cast<size_t>(count - i) * sizeof(int16_t));
    }
  }
  return step;
}

// kPairColumns columns of two rows of codes, minus zero points, as pairs.
template <CodeKind kKind>
inline void pack_pairs(const uint8_t* first, const uint8_t* second, V::I low_zeros, V::I high_zeros, int16_t* to) {
  V::I low, high;
  V::word_pairs<kKind>(first, second, low, high);
  low = V::sub16(low, low_zeros);
  high = V::sub16(high, high_zeros);
  memcpy(to, &low, sizeof low);
  memcpy(to + kPairColumns, &high, sizeof high);
}

template <CodeKind kKind>
void pack_panels(const PanelPack& p) {
  constexpr uint8_t kNothing[kPairColumns] = {};
  for (int64_t first = 0; first < p.cols; first += kPairColumns) {
    const int64_t count = p.cols - first < kPairColumns ? p.cols - first : kPairColumns;
    int16_t* to = p.panels + first / kPairColumns * p.panel_stride;
    uint8_t rows[2][kPairColumns] = {};
    // Columns behind the last one must be 0, so their codes are their zero points.
    uint8_t zeros[kPairColumns] = {};
    V::I low_zeros = V::set1(int32_t{0}), high_zeros = low_zeros;
    const bool is_of_column = p.zero_points != nullptr && p.of_row == 0;
    if (is_of_column) {
      for (int64_t i = 0; i < count; ++i) zeros[i] = p.zero_points[(first + i) * p.of_column];
      V::word_pairs<kKind>(zeros, zeros, low_zeros, high_zeros);
    }
    const auto row_at = [&](int64_t d, uint8_t* holder) -> const uint8_t* {
      if (d >= p.depth) return is_of_column ? zeros : kNothing;
      const uint8_t* const row = p.codes + d * p.code_stride + first;
      if (count == kPairColumns) return row;
      memcpy(holder, row, static_cast<size_t>(count));
      return holder;
    };
    const auto zero_at = [&](int64_t d) -> uint8_t { return d < p.depth ? p.zero_points[d * p.of_row] : uint8_t{0}; };
    for (int64_t d = 0; d < p.depth; d += 2, to += 2 * kPairColumns) {
      if (p.zero_points != nullptr && !is_of_column) {
        const uint8_t pair[2] = {zero_at(d), zero_at(d + 1)};
        for (int i = 0; i < 2; ++i)
          if (count < kPairColumns) memset(rows[i] + count, pair[i], static_cast<size_t>(kPairColumns - count));
        const auto word = [](uint8_t code) {
          return kKind == kU8 ? static_cast<int32_t>(code) : static_cast<int32_t>(static_cast<int8_t>(code));
        };
        low_zeros = high_zeros = V::set1(static_cast<int32_t>(static_cast<uint32_t>(word(pair[0]) & 0xffff) |
                                                              static_cast<uint32_t>(word(pair[1])) << 16));
      }
      pack_pairs<kKind>(row_at(d, rows[0]), row_at(d + 1, rows[1]), low_zeros, high_zeros, to);
    }
  }
}

// kCount rows of words and a panel. finish(r, half, sums) takes the sums of each row and half of the columns.
template <int kCount, class Finish>
inline void tile_of_panel(const PanelProduct& p, int64_t row, const int16_t* panel, const Finish& finish) {
  const int16_t* const words = p.words + row * p.word_stride;
  V::I sums[kCount][2];
#pragma GCC unroll 6
  for (int r = 0; r < kCount; ++r) sums[r][0] = sums[r][1] = V::set1(int32_t{0});
  for (int64_t d = 0; d < p.depth; d += 2) {
    const V::I low = V::load(static_cast<const void*>(panel)),
               high = V::load(static_cast<const void*>(panel + kPairColumns));
    panel += 2 * kPairColumns;
#pragma GCC unroll 6
    for (int r = 0; r < kCount; ++r) {
      const V::I pair = pair_of_words(words + r * p.word_stride + d, 2);
      sums[r][0] = V::dot_words(sums[r][0], low, pair);
      sums[r][1] = V::dot_words(sums[r][1], high, pair);
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < kCount; ++r) {
    finish(row + r, int64_t{0}, sums[r][0]);
    finish(row + r, V::kLanes, sums[r][1]);
  }
}

// Calls finish(row, column, sums) for vectors of columns.
template <class Finish>
inline void products_of_panels(const PanelProduct& p, const Finish& finish) {
  for (int64_t first = 0; first < p.cols; first += kPairColumns) {
    const int16_t* const panel = p.panels + first / kPairColumns * p.panel_stride;
    const auto of_panel = [&](int64_t row, int64_t column, V::I sums)
                              ORT_DYNQ_INLINE_LAMBDA { finish(row, first + column, sums); };
    int64_t r = 0;
    for (; r + kTileRows <= p.rows; r += kTileRows) tile_of_panel<kTileRows>(p, r, panel, of_panel);
    switch (p.rows - r) {
      case 1:
        tile_of_panel<1>(p, r, panel, of_panel);
        break;
      case 2:
        tile_of_panel<2>(p, r, panel, of_panel);
        break;
      case 3:
        tile_of_panel<3>(p, r, panel, of_panel);
        break;
      case 4:
        tile_of_panel<4>(p, r, panel, of_panel);
        break;
      case 5:
        tile_of_panel<5>(p, r, panel, of_panel);
        break;
      default:
        break;
    }
  }
}

void panel_scores(const PanelScores& block) {
  const int64_t cols = block.product.cols;
  products_of_panels(block.product, [&](int64_t row, int64_t column, V::I sums) ORT_DYNQ_INLINE_LAMBDA {
    if (column >= cols) return;
    float* const to = block.scores + row * block.score_stride + column;
    const int64_t rest = cols - column;
    V::F score = V::mul(V::mul(V::to_float(sums), V::set1(block.steps[row])), numbers_at(block.scales, column, cols));
    if (block.adds) score = V::add(rest >= V::kLanes ? V::load(to) : V::load_part(to, rest), score);
    if (rest >= V::kLanes)
      V::store<false>(to, score);
    else
      V::store_part(to, score, rest);
  });
}

void panel_totals(const PanelTotals& block) {
  const int64_t cols = block.product.cols;
  const double weight = block.weight;
  products_of_panels(block.product, [&](int64_t row, int64_t column, V::I sums) ORT_DYNQ_INLINE_LAMBDA {
    int32_t lanes[V::kLanes];
    store_sums(lanes, sums);
    double* const to = block.totals + row * block.total_stride + column;
    const int64_t rest = cols - column;
    if (rest >= V::kLanes) {
      for (int64_t i = 0; i < V::kLanes; ++i) to[i] += static_cast<double>(lanes[i]) * weight;
    } else {
      for (int64_t i = 0; i < rest; ++i) to[i] += static_cast<double>(lanes[i]) * weight;
    }
  });
}

template <CodeKind kKind>
void scale_scores(const ScoreBlock& block) {
  const V::F step = V::set1(block.step);
  const V::I word_sum = V::set1(block.word_sum);
  for (int64_t i = 0; i < block.count; i += V::kLanes) {
    const int64_t rest = block.count - i;
    const bool is_whole = rest >= V::kLanes;
    V::I sums = is_whole ? V::load(static_cast<const void*>(block.sums + i)) : V::load_part(block.sums + i, rest);
    if (block.zero_points != nullptr) {
      const uint8_t* zero_points = block.zero_points + i;
      const V::I zps = is_whole ? V::load_codes<kKind>(zero_points) : V::load_codes_part<kKind>(zero_points, rest);
      sums = V::sub(sums, V::mul(zps, word_sum));
    }
    V::F score = V::mul(V::mul(V::to_float(sums), step), numbers_at(block.scales, i, block.count));
    if (block.adds) score = V::add(numbers_at(block.scores, i, block.count), score);
    if (is_whole)
      V::store<false>(block.scores + i, score);
    else
      V::store_part(block.scores + i, score, rest);
  }
}

float powers_of_2(const PowerRow& row) {
  const auto f = [](float number) ORT_DYNQ_INLINE_LAMBDA { return V::set1(number); };
  const auto score_at = [&](int64_t i) ORT_DYNQ_INLINE_LAMBDA {
    return i + V::kLanes <= row.count ? V::load(row.scores + i)
                                      : V::load_part(row.scores + i, row.count - i, f(-kInfinity));
  };
  const auto store_at = [&](int64_t i, V::F a) ORT_DYNQ_INLINE_LAMBDA {
    if (i + V::kLanes <= row.count)
      V::store<false>(row.scores + i, a);
    else
      V::store_part(row.scores + i, a, row.count - i);
  };
  const bool has_bias = row.bias != nullptr && (row.bias_is_vector || dynq::load(row.bias) != 0);
  V::F best = f(-kInfinity);
  for (int64_t i = 0; i < row.count; i += V::kLanes) {
    V::F score = V::mul(score_at(i), f(row.factor));
    if (has_bias) {
      const V::F bias = row.bias_is_vector ? numbers_at(row.bias, i, row.count) : f(dynq::load(row.bias));
      score = V::add(score, V::mul(bias, f(kLog2E)));
    }
    store_at(i, score);
    best = V::max(score_at(i), best);  // read again: of the last vector, only the first lanes are scores
  }
  const V::F largest = f(V::highest(best));
  V::F nans = f(0);
  int64_t sum = 0;
  for (int64_t start = 0; start < row.count; start += 128 * V::kLanes) {  // 128 * 2^23 fits int32
    const int64_t end = start + 128 * V::kLanes < row.count ? start + 128 * V::kLanes : row.count;
    V::I sums = V::set1(int32_t{0});
    for (int64_t i = start; i < end; i += V::kLanes) {
      const V::F y = V::max(f(kLeastPower), V::sub(score_at(i), largest));
      const V::F n = V::round_float(y), r = V::sub(y, n);
      V::F p = f(kPowerOf2[0]);
      for (int j = 1; j < kPowerTerms; ++j) p = V::add(V::mul(p, r), f(kPowerOf2[j]));
      const V::F power = V::mul(V::times_power_of_2(p, n), V::less(f(kLeastPower), y));
      nans = V::or_nan(nans, power);
      sums = V::add(sums, V::round(V::mul(power, f(kPowerUnit))));
      store_at(i, power);
    }
    int32_t lanes[V::kLanes];
    store_sums(lanes, sums);
    for (const int32_t lane : lanes) sum += lane;
  }
  if (V::has_nan(nans, nans)) return kNan;
  return 1.0f / (static_cast<float>(sum) * (1 / kPowerUnit));
}

constexpr CompressedKernels compressed_kernels() {
  return {{product_by_row<kU8>, product_by_row<kS8>},
          {product_by_column<kU8>, product_by_column<kS8>},
          quantize_words,
          {scale_scores<kU8>, scale_scores<kS8>},
          powers_of_2,
          kPairColumns,
          {pack_panels<kU8>, pack_panels<kS8>},
          panel_scores,
          panel_totals};
}
