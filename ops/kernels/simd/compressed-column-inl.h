// Products by column, of codes as they are stored: adjacent codes are pairs. A part of compressed-inl.h.

// kCount rows of words and kLanes / kCount columns, as many as `cols`: each sum is a vector, and its lanes are added
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
static_assert(kMaxProducts % kHalvesBlock == 0);
constexpr int64_t kMinHalves = 64;  // that fill enough of kHalvesBlock

// As tile_by_column, of halves. Of each four words, `words` has the first ones, then the second ones, and so on, of
// each kHalvesBlock.
template <int kCount>
inline void halves_by_column(const WordProduct& p, const int16_t (*words)[kMaxProducts], int64_t row, int64_t column) {
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
  if (p.depth < kMinHalves) return product_by_column<kHalves>(p);
  for (int64_t group = 1; group < p.groups; ++group) halves_product_by_column(group_of<kHalves>(p, group));
  for (int64_t row = 0; row < p.rows; row += 2) {
    const int64_t count = p.rows - row < 2 ? 1 : 2;
    int16_t words[2][kMaxProducts] = {};
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
