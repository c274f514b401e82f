// Tiles of two whole blocks of weights in groups, if a vector has the sums of a block.

// Adds the products of kGroupUnit codes of each row. The second block of weights is `between` bytes from the first one.
template <int kBits, int kRows, int kBlocks>
ORT_DYNQ_INLINE inline void add_unit(const uint8_t* codes, int64_t stride, const int8_t* weights, int64_t between,
                                     const P::I (&zps)[kBlocks], P::I (&sums)[kRows][kBlocks]) {
#pragma GCC unroll 8
  for (int i = 0; i < kGroupUnit / kQuad; i += 2) {
    typename P::I quads[2][kBlocks];
#pragma GCC unroll 8
    for (int b = 0; b < kBlocks; ++b) {
      const int8_t* from = weights + b * between + i * kBlockBytes * kBits / 8;
      if constexpr (kBits == 4) {
        P::halves(from, zps[b], quads[0][b], quads[1][b]);
      } else {
        quads[0][b] = P::load(static_cast<const void*>(from));
        quads[1][b] = P::load(static_cast<const void*>(from + kBlockBytes));
      }
    }
#pragma GCC unroll 8
    for (int j = 0; j < 2; ++j)
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const auto c = P::quad(codes + r * stride + (i + j) * kQuad);
#pragma GCC unroll 8
        for (int b = 0; b < kBlocks; ++b) sums[r][b] = P::dot(sums[r][b], c, quads[j][b]);
      }
  }
}

// What the sums of kRows rows and two blocks begin with: the zero point of all rows times the sums of columns, or 0.
template <int kRows, int kBlocks>
ORT_DYNQ_INLINE inline void begin_whole_sums(bool has_one_zp, int32_t zp, const int32_t* column_sums, int64_t gap,
                                             P::I (&sums)[kRows][kBlocks]) {
#pragma GCC unroll 8
  for (int b = 0; b < kBlocks; ++b) {
    const auto column_sum = P::load(static_cast<const void*>(column_sums + b * gap));
    const auto correction = has_one_zp ? P::mul(P::set1(-zp), column_sum) : P::set1(0);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) sums[r][b] = correction;
  }
}

// The first blocks of the columns, and the first rows, of a group.
struct WholeGroup {
  const float *column_scales, *row_scales;
  const int32_t *column_sums, *row_zps;
};

// Adds the floats of a group. Rows have a parameter for each of `groups` groups. Joined terms have one zero point.
template <bool kJoins, int kRows, int kBlocks>
ORT_DYNQ_INLINE inline void add_whole_group_of(const WholeGroup& at, bool has_one_zp, int64_t groups, int64_t gap,
                                               const P::I (&sums)[kRows][kBlocks], P::F (&reals)[kRows][kBlocks]) {
  constexpr int kStep = kJoins ? 2 : 1;
#pragma GCC unroll 8
  for (int b = 0; b < kBlocks; ++b) {
    const auto scale = P::load(at.column_scales + b * gap);
    const auto column_sum = P::to_float(P::load(static_cast<const void*>(at.column_sums + b * gap)));
#pragma GCC unroll 8
    for (int r = 0; r < kRows; r += kStep) {
      auto exact = P::to_float(kJoins ? joined(sums[r][b], sums[r + kStep - 1][b]) : sums[r][b]);
      if (!has_one_zp) exact = P::fnmadd(P::to_float(P::set1(at.row_zps[r * groups])), column_sum, exact);
      reals[r][b] = P::add(reals[r][b], P::mul(P::mul(exact, scale), P::set1(at.row_scales[r * groups])));
    }
  }
}

template <int kRows, int kBlocks>
ORT_DYNQ_INLINE inline void add_whole_group(const WholeGroup& at, bool has_one_zp, bool joins, int64_t groups,
                                            int64_t gap, const P::I (&sums)[kRows][kBlocks],
                                            P::F (&reals)[kRows][kBlocks]) {
  constexpr bool kMayJoin = kRows % 2 == 0;
  if (kMayJoin && joins)
    add_whole_group_of<kMayJoin>(at, has_one_zp, groups, gap, sums, reals);
  else
    add_whole_group_of<false>(at, has_one_zp, groups, gap, sums, reals);
}

// As gemm_tile() for two whole blocks of weights in groups, if a vector has the sums of a block: for rows and columns
// with scales of floats that vary with the group. All that a group needs is in registers or at one of few addresses:
// groups of 32 k take two thirds of the time.
template <int kBits, int kRows>
inline void gemm_whole(const ProductBlock& block, int64_t row, int64_t col, int64_t gap) {
  constexpr int kBlocks = 2;
  const int64_t stride = block.codes.stride, groups = block.groups, units = block.depth / kGroupUnit / groups;
  const int64_t between = gap / kBlockColumns * block.weights.stride;  // from the first block to the other one
  const int8_t* w = block.weights.packed + col / kBlockColumns * block.weights.stride;
  const uint8_t* codes = block.codes.data + row * stride;
  WholeGroup at = {block.columns.scales + col, block.codes.scales + row * groups, block.columns.sums + col,
                   block.codes.zps + row * groups};
  const int8_t* weight_zps = block.weights.zps == nullptr ? nullptr : block.weights.zps + col;
  const bool has_one_zp = block.codes.has_one_zp;
  typename P::I zps[kBlocks];
  typename P::F reals[kRows][kBlocks];
#pragma GCC unroll 8
  for (int b = 0; b < kBlocks; ++b) {
    zps[b] = P::zps4(P::set1(block.weights.zp));
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) reals[r][b] = P::set1(-0.0f);
  }
  for (int64_t group = 0; group < groups; ++group) {
    for (int64_t line = 0; line < (row == 0 ? units * kBits / 2 : 0); ++line)
#pragma GCC unroll 8
      for (int b = 0; b < kBlocks; ++b)
        prefetch_at(w + b * between, kBlocksAhead * block.weights.stride + line * kLine);
    typename P::I sums[kRows][kBlocks];
    begin_whole_sums(has_one_zp, at.row_zps[0], at.column_sums, gap, sums);
#pragma GCC unroll 8
    for (int b = 0; b < kBlocks; ++b)
      if (kBits == 4 && weight_zps != nullptr) zps[b] = P::zps4(P::load_zps(weight_zps + b * gap, P::kLanes));
    for (int64_t unit = 0; unit < units; ++unit, codes += kGroupUnit, w += kGroupUnit * kBlockColumns * kBits / 8)
      add_unit<kBits>(codes, stride, w, between, zps, sums);
    add_whole_group(at, has_one_zp, block.joins_terms, groups, gap, sums, reals);
    at.column_scales += block.columns.scales_stride;
    at.column_sums += block.columns.sums_stride;
    if (weight_zps != nullptr) weight_zps += block.weights.zps_stride;
    ++at.row_scales;
    ++at.row_zps;
  }
  store_tile<false, kBlocks>(block, row, kRows, col, gap, reals);
}

template <int kBits, int kRows>
void gemm_groups(const ProductBlock& block, int64_t row, int64_t col, int64_t gap) {
  if constexpr (kIsBlock) {
    const bool is_whole = block.cols - col >= gap + kBlockColumns && block.groups > 1;
    const bool has_scales =
        block.codes.scale_groups > 1 && block.columns.scale_groups > 1 && block.columns.halves == nullptr;
    const bool has_sums = !block.codes.has_ones && (kBits < 8 || block.codes.sums == nullptr);
    if (is_whole && has_scales && has_sums && (block.codes.has_one_zp || (block.is_bounded && !block.joins_terms)))
      return gemm_whole<kBits, kRows>(block, row, col, gap);
  }
  gemm_tile<kBits, false, P::kGroupBlocks, kRows>(block, row, col, gap);
}
