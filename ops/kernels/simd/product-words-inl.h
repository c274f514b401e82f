// Matrix products of several rows by 4-bit weights, for instruction sets whose products of bytes are sums of two in
// int16: a part of product-inl.h, which includes this file. The weights are taken minus 8, so that the sums of kChain
// quads fit int16: they are added before they become int32. Other zero points come off the sums: they are too large by
// the sum of the codes times (zero point - 8). Tiles compute the integer sums of several groups first, and then their
// floats: neither waits for the other, and both have all registers.

constexpr int64_t kChain = 8;  // quads
static_assert(kChain * 2 * 255 * 8 <= INT16_MAX, "weights from -8 to 7");

constexpr int64_t kWordRows = 4;  // the sums in int16 and the weights of two quads fit the registers
constexpr int64_t kGroupsAtOnce = 16;

inline bool has_zps_of_8(const ProductBlock& block) {
  return block.weights.zps == nullptr && (block.weights.zp & 15) == 8;
}

template <int kRows>
using GroupSums = int32_t[kRows][kBlockColumns];

// Blocks of these functions have up to 16 columns.

// Sets the sums of `count` groups from `first` on. `Type` is P: only a template may call functions that P does not
// have.
template <int kRows, class Type = P>
ORT_DYNQ_ONE_COPY void sum_in_words(const ProductBlock& block, int64_t row, int64_t first, int64_t count,
                                    GroupSums<kRows>* to) {
  const int64_t stride = block.codes.stride, quads = block.depth / kQuad / block.groups;
  const uint8_t* codes = block.codes.data + row * stride + first * quads * kQuad;
  const int8_t* weights = block.weights.packed + first * quads / 2 * kBlockBytes;
  const auto zps = P::zps4(P::set1(8));
  for (int64_t group = 0; group < count; ++group) {
    for (int64_t done = 0; done < quads; done += kChain) {
      typename P::I words[kRows][kVectors] = {};
      const int64_t end = quads - done < kChain ? quads - done : kChain;
      for (int64_t quad = 0; quad < end; quad += 2) {
        typename P::I low[kVectors], high[kVectors];
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) P::halves(weights + v * P::kLanes * kQuad, zps, low[v], high[v]);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
          const auto c0 = P::quad(codes + r * stride);
#pragma GCC unroll 8
          for (int v = 0; v < kVectors; ++v) words[r][v] = Type::dot_words(words[r][v], c0, low[v]);
          const auto c1 = P::quad(codes + r * stride + kQuad);
#pragma GCC unroll 8
          for (int v = 0; v < kVectors; ++v) words[r][v] = Type::dot_words(words[r][v], c1, high[v]);
        }
        codes += 2 * kQuad;
        weights += kBlockBytes;
      }
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) {
          void* const at = to[group][r] + v * P::kLanes;
          const auto sum = Type::sum_words(words[r][v]);
          P::store(at, done == 0 ? sum : P::add(P::load(static_cast<const void*>(at)), sum));
        }
    }
  }
}

// Rows of a matrix whose columns are a power of two share cache sets. So scales and sums of 16 columns are copied to
// adjacent lines, if there are several tiles of rows and few groups.
constexpr int64_t kCopiedGroups = 512, kLeastCopiedRows = 2 * kWordRows;

template <class T>
inline void copy_columns(const T* from, int64_t stride, int64_t groups, int64_t cols, T (*to)[kBlockColumns]) {
  for (int64_t group = 0; group < groups; ++group, from += stride)
    if (cols == kBlockColumns)
      memcpy(to[group], from, sizeof to[group]);
    else
      memcpy(to[group], from, static_cast<size_t>(cols) * sizeof(T));
}

// Corrections of the sums of a group, by zero points of rows and of weights, as products of pairs of int16:
//
//   exact = sum + zp of the row * -(sum of the column) + sum of the row's codes * (8 - zp of the weights)
//
// They are exact if the sums of columns fit, and those of codes: zero points are 8, or the group has up to
// kLongestPairGroup k.
constexpr int64_t kLongestPairGroup = 128;
static_assert(kLongestPairGroup * 255 <= INT16_MAX, "sums of codes");

// Of the groups that a tile takes at once: zero points of rows and sums of their codes; and scales, if they vary.
struct RowGroups {
  int32_t pairs[kWordRows][kGroupsAtOnce];
  float scales[kWordRows][kGroupsAtOnce];
};

ORT_DYNQ_ONE_COPY inline void set_row_groups(const ProductBlock& block, int64_t first_row, int64_t rows, int64_t first,
                                             int64_t count, RowGroups& to) {
  const bool varies = block.codes.scale_groups > 1, has_sums = !has_zps_of_8(block);
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t of_row = (first_row + r) * block.codes.scale_groups + (varies ? first : 0);
    const int32_t* zps = block.codes.zps + of_row;
    const int32_t* sums = has_sums ? block.codes.sums + (first_row + r) * block.groups + first : nullptr;
    if (varies) memcpy(to.scales[r], block.codes.scales + of_row, static_cast<size_t>(count) * sizeof(float));
    int64_t i = 0;
    for (; i + P::kLanes <= count; i += P::kLanes) {
      auto pairs = varies ? P::load(static_cast<const void*>(zps + i)) : P::set1(zps[0]);
      if (has_sums) pairs = P::add(pairs, P::mul(P::load(static_cast<const void*>(sums + i)), P::set1(65536)));
      P::store(static_cast<void*>(to.pairs[r] + i), pairs);
    }
    for (; i < count; ++i) to.pairs[r][i] = zps[varies ? i : 0] + (has_sums ? sums[i] * 65536 : 0);
  }
}

using ColumnPairs = int32_t[kBlockColumns];

// Of up to 16 columns. Returns whether their sums fit.
template <class Type = P>
bool set_column_pairs(const ProductBlock& block, ColumnPairs* to) {
  bool fit = true;
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
    const int64_t at = v * P::kLanes, left = block.cols - at;
    const auto mask = P::first(left);
    auto beyond = P::set1(0), zps = P::set1(block.weights.zp);
    for (int64_t group = 0; group < block.groups; ++group) {
      const auto sums = P::load_part(block.columns.sums + group * block.columns.sums_stride + at, mask);
      if (block.weights.zps != nullptr)
        zps = P::load_zps(block.weights.zps + group * block.weights.zps_stride + at, left);
      beyond = Type::add_beyond_words(beyond, sums);
      P::store(static_cast<void*>(to[group] + at),
               Type::pair_words(P::sub(P::set1(0), sums), P::sub(P::set1(8), P::low_nibbles(zps))));
    }
    int32_t lanes[P::kLanes];
    P::store(static_cast<void*>(lanes), beyond);
    for (const int32_t lane : lanes) fit = fit && lane == 0;
  }
  return fit;
}

// How sums are corrected: by the one zero point of all rows, or in floats if the block is bounded and rows have one
// scale, both if zero points of weights are 8; otherwise by pairs.
enum WordForm { kByOneZp, kByFloats, kByPairs };

// Adds the floats of these groups to `reals`.
template <int kRows, WordForm kForm, bool kRowVaries>
ORT_DYNQ_ONE_COPY void add_group_sums(const ProductBlock& block, int64_t row, int64_t first, int64_t count,
                                      const ColumnPairs* pairs, const GroupSums<kRows>* sums,
                                      float (&reals)[kRows][kBlockColumns]) {
  const bool column_varies = block.columns.scale_groups > 1, in_groups = kRowVaries || column_varies;
  RowGroups rows;
  float real_zps[kRows];
  for (int r = 0; r < kRows && kForm == kByFloats; ++r) real_zps[r] = static_cast<float>(block.codes.zps[row + r]);
  if (kForm == kByPairs || kRowVaries) set_row_groups(block, row, kRows, first, count, rows);
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
    const int64_t at = v * P::kLanes;
    const auto mask = P::first(block.cols - at);
    typename P::F totals[kRows];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) totals[r] = P::load(static_cast<const float*>(reals[r] + v * P::kLanes));
    for (int64_t i = 0; i < count; ++i) {
      const int64_t group = first + i;
      const auto column_scale =
          in_groups ? P::load_part(
                          block.columns.scales + (column_varies ? group : 0) * block.columns.scales_stride + at, mask)
                    : P::set1(1.0f);
      typename P::F terms[kRows];
      const auto sum_of = [&](int r) { return P::load(static_cast<const void*>(sums[i][r] + v * P::kLanes)); };
      if constexpr (kForm == kByPairs) {
        const auto column_pairs = P::load(static_cast<const void*>(pairs[group] + at));
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r)
          terms[r] = P::to_float(P::dot(sum_of(r), P::set1(rows.pairs[r][i]), column_pairs));
      } else {
        const auto column_sum = P::load_part(block.columns.sums + group * block.columns.sums_stride + at, mask);
        const auto correction = P::mul(P::set1(block.codes.zps[0]), column_sum);
        const auto real_sum = P::to_float(column_sum);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r)
          terms[r] = kForm == kByFloats ? P::fnmadd(P::set1(real_zps[r]), real_sum, P::to_float(sum_of(r)))
                                        : P::to_float(P::sub(sum_of(r), correction));
      }
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) terms[r] = P::mul(terms[r], column_scale);
      if constexpr (kRowVaries)
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) terms[r] = P::mul(terms[r], P::set1(rows.scales[r][i]));
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) totals[r] = P::add(totals[r], terms[r]);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) P::store(reals[r] + v * P::kLanes, totals[r]);
  }
}

template <int kRows>
void words_tile(const ProductBlock& block, int64_t row, WordForm form, const ColumnPairs* pairs) {
  alignas(kLine) GroupSums<kRows> sums[kGroupsAtOnce];
  float reals[kRows][kBlockColumns];
  for (auto& of_row : reals)
    for (float& real : of_row) real = -0.0f;
  constexpr decltype(&add_group_sums<kRows, kByOneZp, false>) kAdd[][2] = {
      {add_group_sums<kRows, kByOneZp, false>, add_group_sums<kRows, kByOneZp, true>},
      {add_group_sums<kRows, kByFloats, false>, nullptr},
      {add_group_sums<kRows, kByPairs, false>, add_group_sums<kRows, kByPairs, true>}};
  const auto add = kAdd[form][block.codes.scale_groups > 1];
  for (int64_t group = 0; group < block.groups; group += kGroupsAtOnce) {
    const int64_t left = block.groups - group, count = left < kGroupsAtOnce ? left : kGroupsAtOnce;
    sum_in_words<kRows>(block, row, group, count, sums);
    add(block, row, group, count, pairs, sums, reals);
  }
  store_block(block, row, kRows, 0, reals[0]);
}

constexpr int64_t kLeastRowsOfPairs = 8;  // fewer do not pay for pairs of each column

inline WordForm word_form(const ProductBlock& block) {
  if (!has_zps_of_8(block)) return kByPairs;
  if (block.codes.has_one_zp) return kByOneZp;
  return block.is_bounded && block.codes.scale_groups == 1 ? kByFloats : kByPairs;
}

inline bool fits_words(const ProductBlock& block) {
  if (block.depth == 0 || block.codes.has_ones) return false;
  if (word_form(block) != kByPairs) return true;
  const bool sums_fit =
      has_zps_of_8(block) || (block.codes.sums != nullptr && block.depth <= block.groups * kLongestPairGroup);
  return block.rows >= kLeastRowsOfPairs && block.groups <= kCopiedGroups && sums_fit;
}

// `gemm_direct` computes columns whose sums fit no pairs.
template <class Type = P>
void gemm_words(const ProductBlock& block, ProductKernel gemm_direct) {
  const WordForm form = word_form(block);
  const bool in_pairs = form == kByPairs;
  alignas(kLine) float scales[kCopiedGroups][kBlockColumns];
  alignas(kLine) int32_t sums[kCopiedGroups][kBlockColumns];  // or pairs
  for (int64_t col = 0; col < block.cols; col += kBlockColumns) {
    ProductBlock columns = block;
    columns.cols = block.cols - col < kBlockColumns ? block.cols - col : kBlockColumns;
    columns.weights.packed += col / kBlockColumns * block.weights.stride;
    if (block.weights.zps != nullptr) columns.weights.zps += col;
    columns.columns.scales += col;
    columns.columns.sums += col;
    columns.columns.bias += col;
    columns.output.dst += col;
    if (in_pairs && !set_column_pairs(columns, sums)) {
      gemm_direct(columns);
      continue;
    }
    if (block.rows >= kLeastCopiedRows && block.groups <= kCopiedGroups) {
      copy_columns(columns.columns.scales, block.columns.scales_stride, block.columns.scale_groups, columns.cols,
                   scales);
      columns.columns.scales = scales[0];
      columns.columns.scales_stride = kBlockColumns;
      if (!in_pairs) {
        copy_columns(columns.columns.sums, block.columns.sums_stride, block.groups, columns.cols, sums);
        columns.columns.sums = sums[0];
        columns.columns.sums_stride = kBlockColumns;
      }
    }
    for (int64_t row = 0; row < block.rows;) {
      const int64_t left = block.rows - row;
      const int64_t rows = left >= 2 * kWordRows ? kWordRows : left > kWordRows ? (left + 1) / 2 : left;
      constexpr decltype(&words_tile<2>) kTiles[] = {words_tile<2>, words_tile<3>, words_tile<4>};
      kTiles[rows - 2](columns, row, form, sums);  // there are more than two rows
      row += rows;
    }
  }
}
