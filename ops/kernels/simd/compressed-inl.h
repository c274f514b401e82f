// The kernels of attention over compressed keys and values. Sums of products are exact in int32, in any order.
//
// Pairs of products of int16 are added in each lane. By row, codes of two rows become pairs; by column, adjacent ones;
// panels have pairs. Few rows read codes as they are stored, many rows read panels.
//
// More than 450 lines: all products share the pairs of words, and all other kernels the words.

constexpr int64_t kPairColumns = 2 * V::kLanes;  // also of a panel
static_assert(kMostPanelColumns % kPairColumns == 0);
constexpr int kTileRows = 6;                 // of words, with two vectors of sums each
constexpr int64_t kStreamPairs = 4;          // pairs of rows of codes that are read at once
constexpr int64_t kFewSums = 4;              // that are not worth a vector
constexpr int kShiftedHalves = kHalves + 1;  // by row: the second row of each pair begins within a byte

// More columns of one row are summed in memory, fewer in registers. Measured on Zen 5 (family 26, model 2).
constexpr int64_t kStreamedColumns = V::kLanes * V::kLanes;

inline V::I pair_of_words(const int16_t* words, int64_t count) {  // the second word is 0 if count < 2
  int32_t pair = static_cast<int32_t>(static_cast<uint16_t>(words[0]));
  if (count >= 2) memcpy(&pair, words, sizeof pair);
  return V::set1(pair);
}

inline void store_sums(int32_t* to, V::I sums) { memcpy(to, &sums, sizeof sums); }

template <int kKind>
constexpr int64_t bytes_of(int64_t codes) {
  return kKind == kWords ? 2 * codes : kKind >= kHalves ? codes / 2 : codes;
}

template <int kKind>
inline V::I words_at(const uint8_t* codes, [[maybe_unused]] V::I flips) {
  if constexpr (kKind == kHalves)
    return V::words_of_halves(codes, flips);
  else if constexpr (kKind == kWords)
    return V::load(static_cast<const void*>(codes));
  else
    return V::words<static_cast<CodeKind>(kKind)>(codes);
}

// The pairs of 2 * kLanes columns, in the order that in_order() changes to that of the columns.
template <int kKind>
inline void pairs_at(const uint8_t* first, const uint8_t* second, [[maybe_unused]] V::I flips, V::I& low, V::I& high) {
  if constexpr (kKind >= kHalves)
    V::half_pairs<kKind == kShiftedHalves>(first, second, flips, low, high);
  else if constexpr (kKind == kWords)
    V::zip_words(V::load(static_cast<const void*>(first)), V::load(static_cast<const void*>(second)), low, high);
  else
    V::word_pairs<static_cast<CodeKind>(kKind)>(first, second, low, high);
}

template <int kKind>
inline void in_order(V::I& low, V::I& high) {
  if constexpr (kKind >= kHalves)
    V::zip_lanes(low, high);
  else if constexpr (kKind != kWords)
    V::order_pairs(low, high);
}

inline V::I flips_of(const WordProduct& p) { return V::set1(static_cast<int32_t>(p.flipped * 0x01010101u)); }

// Row d of codes.
template <int kKind>
inline const uint8_t* codes_of_row(const void* codes, int64_t stride, int64_t d) {
  return static_cast<const uint8_t*>(codes) + bytes_of<kKind>(d * stride);
}

// What takes the place of a second row after the last one, `first`: a row that may be read as a second one.
template <int kKind>
inline const uint8_t* no_second_row(const void* codes, int64_t stride, const uint8_t* first) {
  return kKind == kShiftedHalves ? codes_of_row<kKind>(codes, stride, 1) : first;
}

// kPairColumns columns of kCount rows.
template <int kKind, int kCount>
inline void tile_by_row(const WordProduct& p, const int16_t* words, const uint8_t* codes, int64_t stride, int32_t* to,
                        int64_t to_stride) {
  const V::I flips = flips_of(p);
  constexpr int kChains = kCount == 1 ? 4 : 1;  // of sums, since each waits for the one before
  V::I chains[kChains][kCount][2], low, high;
#pragma GCC unroll 4
  for (auto& sums : chains)
#pragma GCC unroll 6
    for (int r = 0; r < kCount; ++r) sums[r][0] = sums[r][1] = V::set1(int32_t{0});
  const auto add = [&](int64_t d, int64_t count, V::I(&sums)[kCount][2]) ORT_DYNQ_INLINE_LAMBDA {
    const uint8_t* first = codes_of_row<kKind>(codes, stride, d);
    const uint8_t* second =
        count >= 2 ? codes_of_row<kKind>(codes, stride, d + 1) : no_second_row<kKind>(codes, stride, first);
    pairs_at<kKind>(first, second, flips, low, high);
#pragma GCC unroll 6
    for (int r = 0; r < kCount; ++r) {
      const V::I pair = pair_of_words(words + r * p.word_stride + d, count);
      sums[r][0] = V::dot_words(sums[r][0], low, pair);
      sums[r][1] = V::dot_words(sums[r][1], high, pair);
    }
  };
  int64_t d = 0;
  constexpr int64_t kStep = int64_t{2} * kChains;
  for (; d + kStep <= p.depth; d += kStep)
#pragma GCC unroll 4
    for (int i = 0; i < kChains; ++i) add(d + int64_t{2} * i, 2, chains[i]);
  for (; kChains > 1 && d + 2 <= p.depth; d += 2) add(d, 2, chains[0]);
  if (d < p.depth) add(d, 1, chains[0]);
  V::I(&sums)[kCount][2] = chains[0];
#pragma GCC unroll 6
  for (int r = 0; r < kCount; ++r) {
#pragma GCC unroll 4
    for (int i = 1; i < kChains; ++i)
      for (int half = 0; half < 2; ++half) sums[r][half] = V::add(sums[r][half], chains[i][r][half]);
    in_order<kKind>(sums[r][0], sums[r][1]);
    store_sums(to + r * to_stride, sums[r][0]);
    store_sums(to + r * to_stride + V::kLanes, sums[r][1]);
  }
}

template <int kKind>
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
template <int kKind>
void stream_by_row(const WordProduct& p, int64_t cols) {
  const V::I flips = flips_of(p);
  for (int64_t d = 0; d < p.depth; d += 2 * kStreamPairs) {
    V::I pairs[kStreamPairs];
    const uint8_t *first[kStreamPairs], *second[kStreamPairs];
    for (int64_t i = 0; i < kStreamPairs; ++i) {
      const int64_t at = d + 2 * i, rest = p.depth - at;
      pairs[i] = rest > 0 ? pair_of_words(p.words + at, rest) : V::set1(int32_t{0});
      first[i] = codes_of_row<kKind>(p.codes, p.code_stride, rest > 0 ? at : d);
      second[i] = rest > 1 ? codes_of_row<kKind>(p.codes, p.code_stride, at + 1)
                           : no_second_row<kKind>(p.codes, p.code_stride, first[i]);
    }
    for (int64_t c = 0; c < cols; c += kPairColumns) {
      V::I sums[2] = {V::set1(int32_t{0}), V::set1(int32_t{0})}, low, high;
      if (d > 0) {
        sums[0] = V::load(static_cast<const void*>(p.sums + c));
        sums[1] = V::load(static_cast<const void*>(p.sums + c + V::kLanes));
      }
#pragma GCC unroll 4
      for (int64_t i = 0; i < kStreamPairs; ++i) {
        pairs_at<kKind>(first[i] + bytes_of<kKind>(c), second[i] + bytes_of<kKind>(c), flips, low, high);
        sums[0] = V::dot_words(sums[0], low, pairs[i]);
        sums[1] = V::dot_words(sums[1], high, pairs[i]);
      }
      if (d + 2 * kStreamPairs >= p.depth) in_order<kKind>(sums[0], sums[1]);
      store_sums(p.sums + c, sums[0]);
      store_sums(p.sums + c + V::kLanes, sums[1]);
    }
  }
}

template <int kKind>
inline int32_t code_at(const WordProduct& p, int64_t i) {
  if constexpr (kKind >= kHalves)
    return (static_cast<const uint8_t*>(p.codes)[i / 2] >> i % 2 * 4 ^ p.flipped) & 15;
  else if constexpr (kKind == kWords)
    return dynq::load(static_cast<const int16_t*>(p.codes) + i);
  else if constexpr (kKind == kU8)
    return static_cast<const uint8_t*>(p.codes)[i];
  else
    return static_cast<const int8_t*>(p.codes)[i];
}

// `count` codes of a row from a column on, which is even, as bytes in `to`.
template <int kKind>
inline void copy_codes(const WordProduct& p, int64_t d, int64_t column, int64_t count, uint8_t* to) {
  const uint8_t* const from = codes_of_row<kKind>(p.codes, p.code_stride, d) + bytes_of<kKind>(column);
  if (kKind == kShiftedHalves && d % 2 != 0) {
    for (int64_t i = 0; i < count; i += 2)
      to[i / 2] = static_cast<uint8_t>(from[i / 2] >> 4 | (i + 1 < count ? from[i / 2 + 1] << 4 : 0));
    return;
  }
  memcpy(to, from, static_cast<size_t>(bytes_of<kKind>(count + (kKind >= kHalves ? count % 2 : 0))));
}

template <int kKind>
void product_by_row(const WordProduct& p) {
  constexpr int kInBytes = kKind == kShiftedHalves ? kHalves : kKind;
  const int64_t whole = p.cols / kPairColumns * kPairColumns, rest = p.cols - whole;
  if (p.rows == 1 && whole > kStreamedColumns) {
    stream_by_row<kKind>(p, whole);
  } else {
    const auto* const all = static_cast<const uint8_t*>(p.codes);
    for (int64_t c = 0; c < whole; c += kPairColumns)
      for (int64_t r = 0; r < p.rows; r += kTileRows)
        tiles_by_row<kKind>(p, all + bytes_of<kKind>(c), p.code_stride, r,
                            p.rows - r < kTileRows ? p.rows - r : kTileRows, p.sums + r * p.sum_stride + c,
                            p.sum_stride);
  }
  if (rest == 0) return;
  if (p.rows * rest <= kFewSums) {
    for (int64_t r = 0; r < p.rows; ++r)
      for (int64_t c = whole; c < p.cols; ++c) {
        int32_t sum = 0;
        for (int64_t d = 0; d < p.depth; ++d)
          sum += p.words[r * p.word_stride + d] * code_at<kKind>(p, d * p.code_stride + c);
        p.sums[r * p.sum_stride + c] = sum;
      }
    return;
  }
  constexpr int64_t kRow = bytes_of<kKind>(kPairColumns);
  uint8_t codes[kMostProducts * kRow];
  for (int64_t d = 0; d < p.depth; ++d) {
    memset(codes + d * kRow, 0, kRow);
    copy_codes<kKind>(p, d, whole, rest, codes + d * kRow);
  }
  for (int64_t r = 0; r < p.rows; r += kTileRows) {
    int32_t sums[kTileRows * kPairColumns];
    const int64_t count = p.rows - r < kTileRows ? p.rows - r : kTileRows;
    tiles_by_row<kInBytes>(p, codes, kPairColumns, r, count, sums, kPairColumns);
    for (int64_t i = 0; i < count; ++i)
      memcpy(p.sums + (r + i) * p.sum_stride + whole, sums + i * kPairColumns,
             static_cast<size_t>(rest) * sizeof(int32_t));
  }
}

void halves_product_by_row(const WordProduct& p) {
  p.code_stride % 2 != 0 && p.depth > 1 ? product_by_row<kShiftedHalves>(p) : product_by_row<kHalves>(p);
}

// kCount rows of words and kLanes / kCount columns, as many as `cols`: each sum is a vector, whose lanes are added
// last.
template <int kKind, int kCount>
inline void tile_by_column(const WordProduct& p, int64_t row, int64_t column) {
  constexpr int64_t kColumns = V::kLanes / kCount;
  const int64_t whole = p.depth / kPairColumns * kPairColumns, rest = p.depth - whole;
  const int64_t cols = p.cols - column < kColumns ? p.cols - column : kColumns;
  const int16_t* words = p.words + row * p.word_stride;
  const V::I flips = flips_of(p);
  const uint8_t* codes[kColumns];
  V::I sums[V::kLanes];
  for (int64_t c = 0; c < kColumns; ++c)
    codes[c] = codes_of_row<kKind>(p.codes, p.code_stride, column + (c < cols ? c : 0));
#pragma GCC unroll 16
  for (int i = 0; i < V::kLanes; ++i) sums[i] = V::set1(int32_t{0});
  for (int64_t d = 0; d < whole; d += kPairColumns) {
    V::I left[kCount];
#pragma GCC unroll 2
    for (int r = 0; r < kCount; ++r) left[r] = V::load(static_cast<const void*>(words + r * p.word_stride + d));
#pragma GCC unroll 16
    for (int64_t c = 0; c < kColumns; ++c) {
      const V::I right = words_at<kKind>(codes[c] + bytes_of<kKind>(d), flips);
#pragma GCC unroll 2
      for (int r = 0; r < kCount; ++r) sums[r * kColumns + c] = V::dot_words(sums[r * kColumns + c], right, left[r]);
    }
  }
  if (rest > 0) {
#pragma GCC unroll 16
    for (int64_t c = 0; c < kColumns; ++c) {
      uint8_t last[bytes_of<kKind>(kPairColumns)] = {};
      memcpy(last, codes[c] + bytes_of<kKind>(whole), static_cast<size_t>(bytes_of<kKind>(rest)));
      const V::I right = words_at<kKind>(last, flips);
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

// The product of one group.
template <int kKind>
inline WordProduct group_of(const WordProduct& p, int64_t group) {
  WordProduct found = p;
  found.words += group * p.group_words;
  found.codes = static_cast<const uint8_t*>(p.codes) + group * bytes_of<kKind>(p.depth);
  found.sums += group * p.group_sums;
  found.groups = 1;
  return found;
}

template <int kKind>
void product_by_column(const WordProduct& p) {
  for (int64_t group = 1; group < p.groups; ++group) product_by_column<kKind>(group_of<kKind>(p, group));
  int64_t row = 0;
  if (p.rows >= 2)
    for (int64_t c = 0; c < p.cols; c += V::kLanes / 2)
      for (row = 0; row + 2 <= p.rows; row += 2) tile_by_column<kKind, 2>(p, row, c);
  if (p.rows % 2 == 0) return;
  for (int64_t c = 0; c < p.cols; c += V::kLanes) tile_by_column<kKind, 1>(p, p.rows - 1, c);
}

constexpr int64_t kQuarter = kPairColumns;      // words in a vector
constexpr int64_t kHalvesBlock = 4 * kQuarter;  // codes in a vector
static_assert(kMostProducts % kHalvesBlock == 0);
constexpr int64_t kLeastHalves = 64;  // that fill enough of kHalvesBlock

// As tile_by_column, of halves. Of each four words, `words` has the first ones, then the second ones, and so on, of
// each kHalvesBlock.
template <int kCount>
inline void halves_by_column(const WordProduct& p, const int16_t (*words)[kMostProducts], int64_t row, int64_t column) {
  constexpr int64_t kColumns = V::kLanes / kCount;
  const int64_t bytes = p.depth / 2, cols = p.cols - column < kColumns ? p.cols - column : kColumns;
  const V::I flips = flips_of(p);
  V::I sums[V::kLanes];
#pragma GCC unroll 16
  for (int i = 0; i < V::kLanes; ++i) sums[i] = V::set1(int32_t{0});
  const auto codes_at = [&](int64_t c, int64_t at) ORT_DYNQ_INLINE_LAMBDA {
    return static_cast<const uint8_t*>(p.codes) + (column + (c < cols ? c : 0)) * p.code_stride / 2 + at;
  };
  const auto add = [&](int64_t c, int64_t at, V::I codes) ORT_DYNQ_INLINE_LAMBDA {
    V::I quarters[4];
    V::half_words(V::flip(codes, flips), quarters);
#pragma GCC unroll 2
    for (int r = 0; r < kCount; ++r)
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i)
        sums[r * kColumns + c] = V::dot_words(sums[r * kColumns + c], quarters[i],
                                              V::load(static_cast<const void*>(words[r] + 2 * at + i * kQuarter)));
  };
  const int64_t whole = bytes / (kHalvesBlock / 2) * (kHalvesBlock / 2), rest = bytes - whole;
  for (int64_t at = 0; at < whole; at += kHalvesBlock / 2)
#pragma GCC unroll 16
    for (int64_t c = 0; c < kColumns; ++c) add(c, at, V::load(static_cast<const void*>(codes_at(c, at))));
  if (rest % 4 != 0) {
    for (int64_t c = 0; c < kColumns; ++c) {
      uint8_t last[kHalvesBlock / 2] = {};
      memcpy(last, codes_at(c, whole), static_cast<size_t>(rest));
      add(c, whole, V::load(static_cast<const void*>(last)));
    }
  } else if (rest > 0) {
#pragma GCC unroll 16
    for (int64_t c = 0; c < kColumns; ++c)
      add(c, whole, V::load_part(reinterpret_cast<const int32_t*>(codes_at(c, whole)), rest / 4));
  }
  int32_t lanes[V::kLanes];
  store_sums(lanes, V::sum_lanes(sums));
  for (int r = 0; r < kCount; ++r)
    memcpy(p.sums + (row + r) * p.sum_stride + column, lanes + r * kColumns,
           static_cast<size_t>(cols) * sizeof(int32_t));
}

void halves_product_by_column(const WordProduct& p) {
  if (p.depth < kLeastHalves) return product_by_column<kHalves>(p);
  for (int64_t group = 1; group < p.groups; ++group) halves_product_by_column(group_of<kHalves>(p, group));
  for (int64_t row = 0; row < p.rows; row += 2) {
    const int64_t count = p.rows - row < 2 ? 1 : 2;
    int16_t words[2][kMostProducts] = {};
    for (int64_t r = 0; r < count; ++r)
      for (int64_t d = 0; d < p.depth; ++d)
        words[r][d / kHalvesBlock * kHalvesBlock + d % 4 * kQuarter + d % kHalvesBlock / 4] =
            p.words[(row + r) * p.word_stride + d];
    if (count == 2)
      for (int64_t c = 0; c < p.cols; c += V::kLanes / 2) halves_by_column<2>(p, words, row, c);
    else
      for (int64_t c = 0; c < p.cols; c += V::kLanes) halves_by_column<1>(p, words, row, c);
  }
}

inline V::F numbers_at(const float* x, int64_t i, int64_t count) {
  return i + V::kLanes <= count ? V::load(x + i) : V::load_part(x + i, count - i);
}

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

// As many rows as a vector has lanes share the work on their steps.
template <bool kHasFactors>
void quantize_rows(const WordRows& p) {
  for (int64_t first = 0; first < p.rows; first += V::kLanes) {
    const int64_t count = p.rows - first < V::kLanes ? p.rows - first : V::kLanes;
    const auto row = [&](int64_t r) ORT_DYNQ_INLINE_LAMBDA {
      return RowOfNumbers<kHasFactors>{p.x + (first + r) * p.stride, p.factors, p.count,
                                       p.count / V::kLanes * V::kLanes};
    };
    V::F peaks[V::kLanes];
    for (int64_t r = 0; r < count; ++r) peaks[r] = row(r).peaks();
    V::F largest;
    if (count == 1) {
      largest = V::set1(V::has_nan(peaks[0], peaks[0]) ? kNan : V::highest(peaks[0]));
    } else {
      for (int64_t r = count; r < V::kLanes; ++r) peaks[r] = V::set1(0.0f);
      largest = V::combine_lanes(peaks, [](V::F a, V::F b) ORT_DYNQ_INLINE_LAMBDA { return V::larger_bits(a, b); });
    }
    const V::F step = V::max(V::div(largest, V::set1(kLargestWord)), V::set1(kSmallestStep));
    float magnitudes[V::kLanes], steps[V::kLanes], inverses[V::kLanes];
    V::store<false>(magnitudes, largest);
    V::store<false>(steps, step);
    V::store<false>(inverses, V::div(V::set1(1.0f), step));
    for (int64_t r = 0; r < count; ++r) {
      int16_t* const words = p.words + (first + r) * p.word_stride;
      const bool is_finite = magnitudes[r] < kInfinity;
      if (is_finite)
        row(r).store_words(words, inverses[r], first + V::kLanes + r < p.rows ? V::kLanes * p.stride : 0);
      else
        memset(words, 0, static_cast<size_t>(p.count) * sizeof(int16_t));
      dynq::store(p.steps + first + r, is_finite ? steps[r] : kNan);
    }
  }
}

void quantize_words(const WordRows& rows) {
  rows.factors == nullptr ? quantize_rows<false>(rows) : quantize_rows<true>(rows);
}

// kPairColumns columns of two rows of codes, minus zero points, as pairs.
template <int kKind>
inline void pack_pairs(const uint8_t* first, const uint8_t* second, V::I low_zeros, V::I high_zeros, int16_t* to) {
  V::I low, high;
  pairs_at<kKind>(first, second, V::set1(int32_t{0}), low, high);
  low = V::sub16(low, low_zeros);
  high = V::sub16(high, high_zeros);
  in_order<kKind>(low, high);
  memcpy(to, &low, sizeof low);
  memcpy(to + kPairColumns, &high, sizeof high);
}

template <int kKind>
void pack_panels(const PanelPack& p) {
  constexpr int64_t kBytes = bytes_of<kKind>(1), kRow = kPairColumns * kBytes;
  constexpr uint8_t kNothing[kRow] = {};
  for (int64_t first = 0; first < p.cols; first += kPairColumns) {
    const int64_t count = p.cols - first < kPairColumns ? p.cols - first : kPairColumns;
    int16_t* to = p.panels + first / kPairColumns * p.panel_stride;
    uint8_t rows[2][kRow] = {};
    // Columns behind the last one must be 0, so their codes are their zero points.
    uint8_t zeros[kRow] = {};
    V::I low_zeros = V::set1(int32_t{0}), high_zeros = low_zeros;
    const bool is_of_column = p.zero_points != nullptr && p.of_row == 0;
    if (is_of_column) {
      for (int64_t i = 0; i < count; ++i) zeros[i] = p.zero_points[(first + i) * p.of_column];
      pairs_at<kKind>(zeros, zeros, V::set1(int32_t{0}), low_zeros, high_zeros);
    }
    const auto row_at = [&](int64_t d, uint8_t* holder) -> const uint8_t* {
      if (d >= p.depth) return is_of_column ? zeros : kNothing;
      const uint8_t* const row = static_cast<const uint8_t*>(p.codes) + (d * p.code_stride + first) * kBytes;
      if (count == kPairColumns) return row;
      memcpy(holder, row, static_cast<size_t>(count * kBytes));
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

// The sums of kCount rows of words and a panel.
template <int kCount>
inline void tile_of_panel(const PanelProduct& p, const int16_t* words, const int16_t* panel, V::I (&sums)[kCount][2]) {
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
}

inline void copy_columns(const float* from, int64_t from_stride, int64_t rows, int64_t cols, float* to,
                         int64_t to_stride) {
  for (int64_t r = 0; r < rows; ++r)
    memcpy(to + r * to_stride, from + r * from_stride, static_cast<size_t>(cols) * sizeof(float));
}

// The scores of kCount rows of words and a panel of each group, which stay in registers until the last one.
template <bool kIsSplit, int kCount>
inline void tile_of_groups(const PanelScores& block, int64_t row, int64_t first) {
  constexpr int kWordRows = kIsSplit ? 2 : 1, kRows = kCount / kWordRows;
  const PanelProduct& p = block.product;
  const int64_t rest = p.cols - first;
  float* to = block.scores + row / kWordRows * block.score_stride + first;
  int64_t stride = block.score_stride;
  float part[kRows * kPairColumns];  // in place of scores of fewer columns
  if (rest < kPairColumns) {
    memset(part, 0, sizeof part);
    if (block.adds) copy_columns(to, stride, kRows, rest, part, kPairColumns);
    to = part;
    stride = kPairColumns;
  }
  V::F scores[kRows][2];
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half)
      scores[r][half] = block.adds ? V::load(to + r * stride + half * V::kLanes) : V::set1(0.0f);
  for (int64_t group = 0; group < block.groups; ++group) {
    V::I sums[kCount][2];
    tile_of_panel(p, p.words + group * block.group_words + row * p.word_stride,
                  p.panels + group * block.group_panels + first / kPairColumns * p.panel_stride, sums);
    const float* const steps = block.steps + group * block.group_steps + row / kWordRows;
    V::F scales[2] = {V::set1(1.0f), V::set1(1.0f)};
    if (block.scales != nullptr) {
      const float* const of_panel = block.scales + group * block.group_scales + first;
      scales[0] = numbers_at(of_panel, 0, rest);
      if (rest > V::kLanes) scales[1] = numbers_at(of_panel, V::kLanes, rest);
    }
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        V::F sum;
        if constexpr (kIsSplit)
          sum = V::joined(sums[2 * r][half], sums[2 * r + 1][half]);
        else
          sum = V::to_float(sums[r][half]);
        const V::F score = V::mul(V::mul(sum, V::set1(steps[r])), scales[half]);
        scores[r][half] = group > 0 || block.adds ? V::add(scores[r][half], score) : score;
      }
  }
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) V::store<false>(to + r * stride + half * V::kLanes, scores[r][half]);
  if (rest < kPairColumns)
    copy_columns(part, kPairColumns, kRows, rest, block.scores + row / kWordRows * block.score_stride + first,
                 block.score_stride);
}

// As many rows as are left, at most kCount.
template <bool kIsSplit, int kCount>
inline void rows_of_groups(const PanelScores& block, int64_t row, int64_t first) {
  if constexpr (kCount > 0) {
    if (block.product.rows - row >= kCount)
      tile_of_groups<kIsSplit, kCount>(block, row, first);
    else
      rows_of_groups<kIsSplit, kCount - (kIsSplit ? 2 : 1)>(block, row, first);
  }
}

template <bool kIsSplit>
void panel_scores(const PanelScores& block) {
  static_assert(kTileRows % 2 == 0);
  for (int64_t first = 0; first < block.product.cols; first += kPairColumns)
    for (int64_t r = 0; r < block.product.rows; r += kTileRows) rows_of_groups<kIsSplit, kTileRows>(block, r, first);
}

void panel_scores(const PanelScores& block) { block.is_split ? panel_scores<true>(block) : panel_scores<false>(block); }

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
    const V::F y = V::max(f(kLeastPower), V::mul(V::sub(score, largest), f(kLog2E)));
    const V::F n = V::round_float(y), r = V::sub(y, n);
    V::F p = f(kPowerOf2[0]);
    for (int j = 1; j < kPowerTerms; ++j) p = V::add(V::mul(p, r), f(kPowerOf2[j]));
    const V::F power = V::mul(V::times_power_of_2(p, n), V::less(f(kLeastPower), y));
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

constexpr CompressedKernels compressed_kernels() {
  return {{product_by_row<kU8>, product_by_row<kS8>, product_by_row<kWords>, halves_product_by_row},
          {product_by_column<kU8>, product_by_column<kS8>, product_by_column<kWords>, halves_product_by_column},
          quantize_words,
          {scale_scores<kU8>, scale_scores<kS8>},
          powers_of_2,
          kPairColumns,
          2,
          kTileRows,
          {pack_panels<kU8>, pack_panels<kS8>, pack_panels<kWords>},
          panel_scores};
}
