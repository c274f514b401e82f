// Products of many rows with panels of pairs, and the scores that they become: a part of compressed-inl.h.

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

// The zero points of rows d and d + 1 as a pair of words. Codes from `count` on become these zero points.
template <int kKind, size_t kRow>
ORT_DYNQ_INLINE inline V::I zeros_of_rows(const PanelPack& p, int64_t d, int64_t count, uint8_t (&rows)[2][kRow]) {
  const auto zero_at = [&](int64_t row) -> uint8_t {
    return row < p.depth ? p.zero_points[row * p.of_row] : uint8_t{0};
  };
  const uint8_t pair[2] = {zero_at(d), zero_at(d + 1)};
  for (int i = 0; i < 2; ++i)
    if (count < kPairColumns) memset(rows[i] + count, pair[i], static_cast<size_t>(kPairColumns - count));
  const auto word = [](uint8_t code) {
    return kKind == kU8 ? static_cast<int32_t>(code) : static_cast<int32_t>(static_cast<int8_t>(code));
  };
  return V::set1(
      static_cast<int32_t>(static_cast<uint32_t>(word(pair[0]) & 0xffff) | static_cast<uint32_t>(word(pair[1])) << 16));
}

// `count` columns from the column `first` on.
template <int kKind>
ORT_DYNQ_INLINE inline void pack_panel(const PanelPack& p, int64_t first, int64_t count, int16_t* to) {
  constexpr int64_t kBytes = bytes_of<kKind>(1), kRow = kPairColumns * kBytes;
  constexpr uint8_t kNothing[kRow] = {};
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
  for (int64_t d = 0; d < p.depth; d += 2, to += 2 * kPairColumns) {
    if (p.zero_points != nullptr && !is_of_column) low_zeros = high_zeros = zeros_of_rows<kKind>(p, d, count, rows);
    pack_pairs<kKind>(row_at(d, rows[0]), row_at(d + 1, rows[1]), low_zeros, high_zeros, to);
  }
}

template <int kKind>
void pack_panels(const PanelPack& p) {
  for (int64_t first = 0; first < p.cols; first += kPairColumns)
    pack_panel<kKind>(p, first, p.cols - first < kPairColumns ? p.cols - first : kPairColumns,
                      p.panels + first / kPairColumns * p.panel_stride);
}

// The first column of a vector pair in a panel.
inline const int16_t* panel_at(const PanelProduct& p, int64_t column) {
  const int64_t columns = p.is_stored ? kMaxPanelColumns : kPairColumns;
  return p.panels + column / columns * p.panel_stride + column % columns * 2;
}

// The sums of kCount rows of words and kPairColumns columns of a panel.
template <int kCount>
inline void tile_of_panel(const PanelProduct& p, const int16_t* words, const int16_t* panel, V::I (&sums)[kCount][2]) {
#pragma GCC unroll 6
  for (int r = 0; r < kCount; ++r) sums[r][0] = sums[r][1] = V::set1(int32_t{0});
  const int64_t of_pair = 2 * (p.is_stored ? kMaxPanelColumns : kPairColumns);
  for (int64_t d = 0; d < p.depth; d += 2) {
    const V::I low = V::load(static_cast<const void*>(panel)),
               high = V::load(static_cast<const void*>(panel + kPairColumns));
    panel += of_pair;
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

// The scales of a group for the columns of a panel, of which `rest` are left.
ORT_DYNQ_INLINE inline void scales_of_panel(const PanelScores& block, int64_t group, int64_t first, int64_t rest,
                                            V::F (&scales)[2]) {
  scales[0] = scales[1] = V::set1(1.0f);
  if (block.scales == nullptr) return;
  const float* const of_panel = block.scales + group * block.group_scales + first;
  scales[0] = numbers_at(of_panel, 0, rest);
  if (rest > V::kLanes) scales[1] = numbers_at(of_panel, V::kLanes, rest);
}

// What a score is made of: the sum of one row of words; those of two rows (is_split); or of one row and, in int32 or
// wider, a number of the column: of `bases` or of `highs`.
enum SumParts { kOneSum, kTwoSums, kSumAndBase, kSumAndHigh };

template <SumParts kParts, int kCount>
ORT_DYNQ_INLINE inline V::F whole_sum(const V::I (&sums)[kCount][2], [[maybe_unused]] const V::I (&added)[2], int r,
                                      int half) {
  if constexpr (kParts == kTwoSums) return V::joined(sums[2 * r][half], sums[2 * r + 1][half]);
  if constexpr (kParts == kSumAndBase) return V::to_float(V::add(sums[r][half], added[half]));
  if constexpr (kParts == kSumAndHigh)
    return V::joined(added[half], V::sub(sums[r][half], V::set1(int32_t{kHighByte})));
  if constexpr (kParts == kOneSum) return V::to_float(sums[r][half]);
}

template <SumParts kParts>
ORT_DYNQ_INLINE inline void added_of_panel(const PanelScores& block, int64_t first, int64_t rest, V::I (&added)[2]) {
  added[0] = added[1] = V::set1(int32_t{0});
  const int32_t* const numbers = kParts == kSumAndBase ? block.bases : block.highs;
  for (int half = 0; half < 2 && rest > 0; ++half, first += V::kLanes, rest -= V::kLanes)
    added[half] =
        rest >= V::kLanes ? V::load(static_cast<const void*>(numbers + first)) : V::load_part(numbers + first, rest);
}

// Sums become scores, which are added to `scores` or, unless `adds`, take their place.
template <SumParts kParts, int kCount, int kRows>
ORT_DYNQ_INLINE inline void add_scores(const V::I (&sums)[kCount][2], const V::I (&added)[2], const float* steps,
                                       const V::F (&scales)[2], bool scales_first, bool adds,
                                       V::F (&scores)[kRows][2]) {
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const V::F sum = whole_sum<kParts>(sums, added, r, half);
      const V::F step = V::set1(steps[r]);
      const V::F score =
          scales_first ? V::mul(V::mul(sum, scales[half]), step) : V::mul(V::mul(sum, step), scales[half]);
      scores[r][half] = adds ? V::add(scores[r][half], score) : score;
    }
}

// The scores of kCount rows of words and a panel of each group, which stay in registers until the last one.
template <SumParts kParts, int kCount>
inline void tile_of_groups(const PanelScores& block, int64_t row, int64_t first) {
  constexpr int kWordRows = kParts == kTwoSums ? 2 : 1, kRows = kCount / kWordRows;
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
                  panel_at(p, first) + group * block.group_panels, sums);
    V::F scales[2];
    scales_of_panel(block, group, first, rest, scales);
    V::I added[2];
    if constexpr (kParts >= kSumAndBase) added_of_panel<kParts>(block, first, rest, added);
    add_scores<kParts>(sums, added, block.steps + group * block.group_steps + row / kWordRows, scales,
                       block.scales_first, group > 0 || block.adds, scores);
  }
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) V::store<false>(to + r * stride + half * V::kLanes, scores[r][half]);
  if (rest < kPairColumns)
    copy_columns(part, kPairColumns, kRows, rest, block.scores + row / kWordRows * block.score_stride + first,
                 block.score_stride);
}

// As tile_of_groups() for one group and a whole panel, where no score is added to another: they go straight to memory.
template <SumParts kParts, int kCount>
inline void tile_of_one_group(const PanelScores& block, int64_t row, int64_t first) {
  const PanelProduct& p = block.product;
  V::I sums[kCount][2], added[2];
  tile_of_panel(p, p.words + row * p.word_stride, panel_at(p, first), sums);
  V::F scales[2];
  scales_of_panel(block, 0, first, kPairColumns, scales);
  if constexpr (kParts >= kSumAndBase) added_of_panel<kParts>(block, first, kPairColumns, added);
  const float* const steps = block.steps + row;
  float* to = block.scores + row * block.score_stride + first;
#pragma GCC unroll 6
  for (int r = 0; r < kCount; ++r, to += block.score_stride)
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half)
      V::store<false>(to + half * V::kLanes,
                      V::mul(V::mul(whole_sum<kParts>(sums, added, r, half), V::set1(steps[r])), scales[half]));
}

// As many rows as are left, at most kCount.
template <SumParts kParts, int kCount>
inline void rows_of_groups(const PanelScores& block, int64_t row, int64_t first) {
  if constexpr (kCount > 0) {
    if (block.product.rows - row >= kCount) {
      if constexpr (kParts != kTwoSums)
        if (block.groups == 1 && !block.adds && !block.scales_first && block.product.cols - first >= kPairColumns)
          return tile_of_one_group<kParts, kCount>(block, row, first);
      tile_of_groups<kParts, kCount>(block, row, first);
    } else {
      rows_of_groups<kParts, kCount - (kParts == kTwoSums ? 2 : 1)>(block, row, first);
    }
  }
}

template <SumParts kParts>
void panel_scores(const PanelScores& block) {
  static_assert(kTileRows % 2 == 0);
  for (int64_t first = 0; first < block.product.cols; first += kPairColumns)
    for (int64_t r = 0; r < block.product.rows; r += kTileRows) rows_of_groups<kParts, kTileRows>(block, r, first);
}

void panel_scores(const PanelScores& block) {
  if (block.is_split) return panel_scores<kTwoSums>(block);
  if (block.bases != nullptr) return panel_scores<kSumAndBase>(block);
  block.highs != nullptr ? panel_scores<kSumAndHigh>(block) : panel_scores<kOneSum>(block);
}
