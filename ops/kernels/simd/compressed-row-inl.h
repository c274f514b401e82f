// Products by row, of codes as they are stored: codes of two rows become pairs. A part of compressed-inl.h.

constexpr int64_t kStreamPairs = 4;  // pairs of rows of codes that are read at once
constexpr int64_t kFewSums = 4;      // that are not worth a vector

// More columns of one row are summed in memory, fewer in registers. Measured on Zen 5 (family 26, model 2).
constexpr int64_t kStreamedColumns = V::kLanes * V::kLanes;

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

// The columns from `first` on, one sum at a time.
template <int kKind>
inline void few_sums_by_row(const WordProduct& p, int64_t first) {
  for (int64_t r = 0; r < p.rows; ++r)
    for (int64_t c = first; c < p.cols; ++c) {
      int32_t sum = 0;
      for (int64_t d = 0; d < p.depth; ++d)
        sum += p.words[r * p.word_stride + d] * code_at<kKind>(p, d * p.code_stride + c);
      p.sums[r * p.sum_stride + c] = sum;
    }
}

// `count` columns from `first` on, fewer than kPairColumns: their codes are copied.
template <int kKind>
inline void rest_by_row(const WordProduct& p, int64_t first, int64_t count) {
  constexpr int kInBytes = kKind == kShiftedHalves ? kHalves : kKind;
  constexpr int64_t kRow = bytes_of<kKind>(kPairColumns);
  uint8_t codes[kMaxProducts * kRow];
  for (int64_t d = 0; d < p.depth; ++d) {
    memset(codes + d * kRow, 0, kRow);
    copy_codes<kKind>(p, d, first, count, codes + d * kRow);
  }
  for (int64_t r = 0; r < p.rows; r += kTileRows) {
    int32_t sums[kTileRows * kPairColumns];
    const int64_t rows = p.rows - r < kTileRows ? p.rows - r : kTileRows;
    tiles_by_row<kInBytes>(p, codes, kPairColumns, r, rows, sums, kPairColumns);
    for (int64_t i = 0; i < rows; ++i)
      memcpy(p.sums + (r + i) * p.sum_stride + first, sums + i * kPairColumns,
             static_cast<size_t>(count) * sizeof(int32_t));
  }
}

template <int kKind>
void product_by_row(const WordProduct& p) {
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
  if (p.rows * rest <= kFewSums)
    few_sums_by_row<kKind>(p, whole);
  else
    rest_by_row<kKind>(p, whole, rest);
}

void halves_product_by_row(const WordProduct& p) {
  p.code_stride % 2 != 0 && p.depth > 1 ? product_by_row<kShiftedHalves>(p) : product_by_row<kHalves>(p);
}
