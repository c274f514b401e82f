// Tiles of a matrix product: some rows and some blocks of 16 columns, for any form of scales, sums and zero points.

// Scales of a group are a row apart from those of the next one: hardware does not prefetch them. They are in no cache
// when a model is larger than the caches, so tiles prefetch theirs some groups ahead.
constexpr int64_t kGroupsAhead = 8;

// Many rows are compute-bound: meanwhile, the weights of the next strip of columns (kStrip in quantized_matmul.cc)
// arrive.
constexpr int64_t kBlocksAhead = 4;

// Of the columns of a tile, what a group needs; pointers are to the first column.
struct GroupColumns {
  const int32_t* sums;     // null if the block has a row of ones
  const int8_t* zps;       // null: all zero points are equal
  const uint16_t* halves;  // in place of scales, or null
  const float* scales;
  bool vary, in_groups;  // scales vary with the group: these, or those of rows, too

  template <bool kOneGroup>
  static GroupColumns first(const ProductBlock& block, int64_t col) {
    const ProductColumns& all = block.columns;
    const bool vary = all.scale_groups > 1, in_groups = vary || block.codes.scale_groups > 1;
    const bool has_ones = !kOneGroup && block.codes.has_ones;
    const uint16_t* halves = kOneGroup || all.halves == nullptr ? nullptr : all.halves + col;
    const float* scales = halves != nullptr ? nullptr : in_groups ? all.scales + col : kOnes;
    return {has_ones ? nullptr : all.sums + col,
            block.weights.zps == nullptr ? nullptr : block.weights.zps + col,
            halves,
            scales,
            vary,
            in_groups};
  }

  ORT_DYNQ_INLINE void move_to_next_group(const ProductBlock& block) {
    if (sums != nullptr) sums += block.columns.sums_stride;
    if (zps != nullptr) zps += block.weights.zps_stride;
    if (vary && halves != nullptr) halves += block.columns.scales_stride;
    if (vary && halves == nullptr) scales += block.columns.scales_stride;
  }
};

// The place of a tile of kRows rows and kBlocks blocks of columns, with first columns `gap` apart.
template <bool kOneGroup, int kBlocks, int kRows>
struct TilePlace {
  static constexpr int kSums = kBlocks * kVectors;
  int64_t row, col, gap;

  // The first column of a vector, from col.
  ORT_DYNQ_INLINE int64_t column(int v) const { return v / kVectors * gap + v % kVectors * P::kLanes; }
};

// Hardware does not prefetch the next group's part of an array of columns. One or two rows are memory-bound, so every
// fourth block prefetches the parts of blocks +4 to +7: adjacent lines arrive faster together.
template <bool kOneGroup, int kBlocks, int kRows>
ORT_DYNQ_INLINE inline void prefetch_columns(const ProductBlock& block, const TilePlace<kOneGroup, kBlocks, kRows>& at,
                                             const GroupColumns& columns, int64_t group) {
  const bool is_fourth = !kOneGroup && kRows <= kFewRows && at.col / kBlockColumns % 4 == 0;
  const int64_t first_ahead = (at.col == 0 ? 1 : 4) * kBlockColumns, end_ahead = is_fourth ? 8 * kBlockColumns : 0;
  for (int64_t ahead = first_ahead; ahead < end_ahead && at.col + ahead < at.gap; ahead += kBlockColumns)
    for (int64_t b = 0; b < kBlocks; ++b) {
      if (columns.sums != nullptr) prefetch_at(columns.sums, b * at.gap + ahead);
      if (columns.vary && columns.halves == nullptr) prefetch_at(columns.scales, b * at.gap + ahead);
      if (columns.vary && columns.halves != nullptr) prefetch_at(columns.halves, b * at.gap + ahead);
    }
  const int64_t groups = kOneGroup ? 1 : block.groups;
  for (int64_t b = 0; b < kBlocks && at.row == 0 && columns.vary && group + kGroupsAhead < groups; ++b) {
    const int64_t ahead = b * at.gap + kGroupsAhead * block.columns.scales_stride;
    if (columns.halves == nullptr)
      prefetch_at(columns.scales, ahead);
    else
      prefetch_at(columns.halves, ahead);
  }
}

template <int kBits, int kBlocks>
ORT_DYNQ_INLINE inline void prefetch_next_strip(const ProductBlock& block, const Weights<kBlocks>& weights,
                                                int64_t group, int64_t quads) {
  const int64_t bytes = quads * kBlockBytes * kBits / 8, ahead = group * bytes + kBlocksAhead * block.weights.stride;
  for (int64_t b = 0; b < kBlocks; ++b) prefetch_at(weights.of[b], ahead, bytes);
}

// What the sums of a group begin with: zero points of rows times the sums of columns. 0 if these are corrected in
// floats (is_bounded), or by the products of the row of ones.
template <bool kOneGroup, int kBlocks, int kRows, class Masks, class Sums>
ORT_DYNQ_INLINE inline void begin_sums(const ProductBlock& block, const TilePlace<kOneGroup, kBlocks, kRows>& at,
                                       const GroupColumns& columns, const int32_t* row_zps, bool is_bounded,
                                       const Masks& masks, Sums& sums) {
  const bool is_zero = is_bounded || (!kOneGroup && block.codes.has_ones);
#pragma GCC unroll 8
  for (int v = 0; v < kBlocks * kVectors; ++v) {
    const auto column_sum = is_zero ? P::set1(0) : P::load_part(columns.sums + at.column(v), masks[v]);
    if (!kOneGroup && kRows > kFewRows && block.codes.has_one_zp) {
      const auto correction = P::mul(P::set1(-row_zps[0]), column_sum);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) sums[r][v] = correction;
      continue;
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
      sums[r][v] = is_zero ? P::set1(0) : P::mul(P::set1(-row_zps[r * block.codes.scale_groups]), column_sum);
  }
}

// Zero points of 8-bit weights times the sums of rows.
template <int kRows, int kSums>
ORT_DYNQ_INLINE inline void subtract_weight_zps(const ProductBlock& block, int64_t row, int64_t group,
                                                const P::I (&zps)[kSums], P::I (&sums)[kRows][kSums]) {
  if (block.codes.sums == nullptr) return;
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    const auto row_sum = P::set1(block.codes.sums[(row + r) * block.groups + group]);
#pragma GCC unroll 8
    for (int v = 0; v < kSums; ++v) sums[r][v] = P::sub(sums[r][v], P::mul(row_sum, zps[v]));
  }
}

// The last row of sums is that of the columns.
template <int kRows, int kSums>
ORT_DYNQ_INLINE inline void subtract_ones(const ProductBlock& block, const int32_t* row_zps,
                                          P::I (&sums)[kRows][kSums]) {
#pragma GCC unroll 8
  for (int r = 0; r + 1 < kRows; ++r) {
    const auto row_zp = P::set1(row_zps[r * block.codes.scale_groups]);
#pragma GCC unroll 8
    for (int v = 0; v < kSums; ++v) sums[r][v] = P::sub(sums[r][v], P::mul(row_zp, sums[kRows - 1][v]));
  }
}

// The exact sum of two terms.
ORT_DYNQ_INLINE inline P::I joined(P::I first, P::I second) {
  return P::add(P::mul(P::set1(static_cast<int32_t>(kTermRatio)), first), second);
}

template <int kRows, int kSums>
ORT_DYNQ_INLINE inline void join_rows(P::I (&sums)[kRows][kSums]) {
#pragma GCC unroll 8
  for (int r = 0; r + 1 < kRows; r += 2)
#pragma GCC unroll 8
    for (int v = 0; v < kSums; ++v) sums[r][v] = joined(sums[r][v], sums[r + 1][v]);
}

template <class Mask>
ORT_DYNQ_INLINE inline P::F scales_of_columns(const GroupColumns& columns, int64_t column, int64_t count, Mask mask) {
  if (columns.halves != nullptr) return load_halves(columns.halves + column, count);
  return P::load_part(columns.scales + (columns.in_groups ? column : 0), mask);
}

// Adds the floats of a group. `real_zps` are the zero points of rows if is_bounded, which joined terms are not.
template <bool kJoins, int kBlocks, int kRows, class Masks, class Sums, class Reals>
ORT_DYNQ_INLINE inline void add_group_of(const ProductBlock& block, const TilePlace<false, kBlocks, kRows>& at,
                                         const GroupColumns& columns, int64_t group, bool is_bounded,
                                         const float (&real_zps)[kRows], const Masks& masks, const Sums& sums,
                                         Reals& reals) {
  constexpr int kSums = kBlocks * kVectors, kStep = kJoins ? 2 : 1, kEnd = kJoins ? kRows / 2 * 2 : kRows;
  typename P::F terms[kRows][kSums];
#pragma GCC unroll 8
  for (int v = 0; v < kSums; ++v) {
    const int64_t column = at.column(v);
    const auto column_scale = scales_of_columns(columns, column, block.cols - at.col - column, masks[v]);
    const auto column_sum = is_bounded ? P::to_float(P::load_part(columns.sums + column, masks[v])) : P::set1(0.0f);
#pragma GCC unroll 8
    for (int r = 0; r < kEnd; r += kStep) {
      auto exact = P::to_float(kJoins ? joined(sums[r][v], sums[r + kStep - 1][v]) : sums[r][v]);
      if (is_bounded) exact = P::fnmadd(P::set1(real_zps[r]), column_sum, exact);
      terms[r][v] = P::mul(exact, column_scale);
    }
  }
  if (block.codes.scale_groups > 1)
#pragma GCC unroll 8
    for (int r = 0; r < kEnd; r += kStep) {
      const auto scale = P::set1(block.codes.scales[(at.row + r) * block.groups + group]);
#pragma GCC unroll 8
      for (int v = 0; v < kSums; ++v) terms[r][v] = P::mul(terms[r][v], scale);
    }
#pragma GCC unroll 8
  for (int r = 0; r < kEnd; r += kStep)
#pragma GCC unroll 8
    for (int v = 0; v < kSums; ++v) reals[r][v] = P::add(reals[r][v], terms[r][v]);
}

// gemv() takes three rows, one of them of ones, unless P::kSteps is 2. With 8 bits words take nearly all joined terms
// then, so that these have no code of their own.
template <int kBits, int kBlocks, int kRows, class Masks, class Sums, class Reals>
ORT_DYNQ_INLINE inline void add_group(const ProductBlock& block, const TilePlace<false, kBlocks, kRows>& at,
                                      const GroupColumns& columns, int64_t group, bool is_bounded,
                                      const float (&real_zps)[kRows], const Masks& masks, Sums& sums, Reals& reals) {
  constexpr bool kMayJoin = kRows > 1 && (kRows != 3 || P::kSteps > 1), kHasForm = kBits == 4 || P::kSteps == 1;
  const bool joins = kMayJoin && ORT_DYNQ_UNLIKELY(block.joins_terms);
  if (kHasForm && joins) return add_group_of<true>(block, at, columns, group, false, real_zps, masks, sums, reals);
  if (joins) join_rows(sums);
  add_group_of<false>(block, at, columns, group, is_bounded, real_zps, masks, sums, reals);
}

// Whether zero points of rows are corrected in floats.
template <bool kOneGroup, int kRows>
ORT_DYNQ_INLINE inline bool corrects_in_floats(const ProductBlock& block) {
  return !kOneGroup && kRows > kFewRows && block.is_bounded && !block.codes.has_one_zp && !block.joins_terms;
}

template <int kRows>
ORT_DYNQ_INLINE inline void read_real_zps(const int32_t* zps, int64_t stride, float (&to)[kRows]) {
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) to[r] = static_cast<float>(zps[r * stride]);
}

template <int kBits, class Place, class Zps>
ORT_DYNQ_INLINE inline void load_group_zps(const ProductBlock& block, const Place& at, const int8_t* from, Zps& zps) {
#pragma GCC unroll 8
  for (int v = 0; v < Place::kSums; ++v) {
    zps[v] = P::load_zps(from + at.column(v), block.cols - at.col - at.column(v));
    if (kBits == 4) zps[v] = P::zps4(zps[v]);
  }
}

// What the columns of a tile and the floats of its rows begin with.
template <int kBits, class Place, int kSums, int kRows>
ORT_DYNQ_INLINE inline void begin_tile(const ProductBlock& block, const Place& at, typename P::Mask (&masks)[kSums],
                                       typename P::I (&zps)[kSums], typename P::F (&reals)[kRows][kSums]) {
#pragma GCC unroll 8
  for (int v = 0; v < kSums; ++v) {
    masks[v] = P::first(block.cols - at.col - at.column(v));
    zps[v] = kBits == 4 ? P::zps4(P::set1(block.weights.zp)) : P::set1(block.weights.zp);
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < kSums; ++v) reals[r][v] = P::set1(-0.0f);
}

template <int kBits, bool kOneGroup, int kBlocks, int kRows>
void gemm_tile(const ProductBlock& block, int64_t row, int64_t col, int64_t gap) {
  constexpr int kSums = kBlocks * kVectors;
  const TilePlace<kOneGroup, kBlocks, kRows> at = {row, col, gap};
  const Weights<kBlocks> weights(block, col, gap);
  GroupColumns columns = GroupColumns::first<kOneGroup>(block, col);
  const uint8_t* codes = block.codes.data + row * block.codes.stride;
  const int64_t groups = kOneGroup ? 1 : block.groups, quads = block.depth / kQuad / groups;
  const bool row_varies = block.codes.scale_groups > 1, has_ones = !kOneGroup && block.codes.has_ones;
  const bool is_bounded = corrects_in_floats<kOneGroup, kRows>(block);
  typename P::Mask masks[kSums];
  typename P::I zps[kSums];
  typename P::F reals[kRows][kSums];
  begin_tile<kBits>(block, at, masks, zps, reals);
  float real_zps[kRows] = {};
  if (is_bounded && !row_varies) read_real_zps<kRows>(block.codes.zps + row, 1, real_zps);
  for (int64_t group = 0; group < groups; ++group) {
    prefetch_columns(block, at, columns, group);
    if (!kOneGroup && kRows > kFewRows && row == 0) prefetch_next_strip<kBits>(block, weights, group, quads);
    const int32_t* row_zps = block.codes.zps + row * block.codes.scale_groups + (row_varies ? group : 0);
    typename P::I sums[kRows][kSums];
    begin_sums(block, at, columns, row_zps, is_bounded, masks, sums);
    if (is_bounded && row_varies) read_real_zps<kRows>(row_zps, block.codes.scale_groups, real_zps);
    if (columns.zps != nullptr) load_group_zps<kBits>(block, at, columns.zps, zps);
    const int64_t from = group * quads, to = from + quads;
    subtract_code_sums<kBits>(codes + from * kQuad, block.codes.stride, quads, zps, sums);
    if constexpr (kBits == 4) {
      dot_products_4bit<kRows, kBlocks>(codes, block.codes.stride, weights, from, to, zps, sums);
    } else {
      subtract_weight_zps(block, row, group, zps, sums);
      dot_products<kOneGroup, kRows, kBlocks>(codes, block.codes.stride, weights, from, to, sums);
    }
    if constexpr (kOneGroup) {
      to_floats(sums, reals);
    } else {
      if (has_ones) subtract_ones(block, row_zps, sums);
      add_group<kBits>(block, at, columns, group, is_bounded, real_zps, masks, sums, reals);
    }
    columns.move_to_next_group(block);
  }
  store_tile<kOneGroup, kBlocks>(block, row, kRows - has_ones, col, gap, reals);
}
