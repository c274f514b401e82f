// products: codes of rows times packed weights to floats, written once for any type `P` of products. A file of an
// instruction set defines P and includes this file in its anonymous namespace.
//
// A P::I has P::kLanes int32, one for each of as many adjacent columns; a P::F as many floats. Four adjacent k, a quad,
// are multiplied in P::kSteps steps: P::dot(sums, P::codes<step>(quad), P::weights<step>(quad)). P::dot4 takes two
// quads at once. P::kBlocks and P::kGroupBlocks are the blocks of 16 columns that are multiplied at once: kMostRows
// rows of their sums fit the registers.

constexpr int kMostRows = 6;
constexpr int kVectors = static_cast<int>(kBlockColumns) / P::kLanes;  // of a block
constexpr int64_t kBlockBytes = kBlockColumns * kQuad;                 // a quad of 8-bit weights, two of 4-bit weights

// Columns at the end of a tensor: n may be less than a vector has, and negative.
template <class T>
inline auto load_columns(const T* from, int64_t n) {
  return n >= P::kLanes ? P::load(from) : P::load_part(from, n > 0 ? n : 0);
}
inline void store_columns(float* to, P::F value, int64_t n) {
  if (n >= P::kLanes)
    P::store(to, value);
  else if (n > 0)
    P::store_part(to, value, n);
}

inline P::F scaled(P::F real, P::F row_scale, P::F column_scale, ScaleOrder order) {
  return order == kScalesFirst ? P::mul(real, P::mul(row_scale, column_scale))
         : order == kRowFirst  ? P::mul(P::mul(real, row_scale), column_scale)
                               : P::mul(P::mul(real, column_scale), row_scale);
}

// The first quads of kBlocks adjacent blocks. Where fewer are left, the last one is taken again: its sums are not used.
template <int kBlocks>
struct Weights {
  const int8_t* of[kBlocks];

  Weights(const ProductBlock& block, int64_t col) {
    const int64_t first = col / kBlockColumns, last = (block.cols - 1) / kBlockColumns;
#pragma GCC unroll 8
    for (int b = 0; b < kBlocks; ++b)
      of[b] = block.weights + (first + b < last ? first + b : last) * block.weights_stride;
  }
};

template <int kStep, int kRows, int kBlocks, class Sums>
inline void dot_step(const uint8_t* codes, int64_t stride, const Weights<kBlocks>& weights, int64_t at, Sums& sums) {
  typename P::I w[kBlocks * kVectors];
#pragma GCC unroll 8
  for (int v = 0; v < kBlocks * kVectors; ++v)
    w[v] = P::template weights<kStep>(weights.of[v / kVectors] + at + v % kVectors * P::kLanes * kQuad);
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    const auto c = P::template codes<kStep>(codes + r * stride);
#pragma GCC unroll 8
    for (int v = 0; v < kBlocks * kVectors; ++v) sums[r][v] = P::dot(sums[r][v], c, w[v]);
  }
}

// Adds the products of quads `from` to `to`.
template <int kRows, int kBlocks, class Sums>
inline void dot_products(const uint8_t* codes, int64_t stride, const Weights<kBlocks>& weights, int64_t from,
                         int64_t to, Sums& sums) {
  for (int64_t quad = from; quad < to; ++quad) {
    dot_step<0, kRows, kBlocks>(codes + quad * kQuad, stride, weights, quad * kBlockBytes, sums);
    if constexpr (P::kSteps == 2)
      dot_step<1, kRows, kBlocks>(codes + quad * kQuad, stride, weights, quad * kBlockBytes, sums);
  }
}

// As above, for 4-bit weights, whose zero points are `zps`. `from` and `to` are even.
template <int kRows, int kBlocks, class Sums>
inline void dot_products4(const uint8_t* codes, int64_t stride, const Weights<kBlocks>& weights, int64_t from,
                          int64_t to, const P::I (&zps)[kBlocks * kVectors], Sums& sums) {
  for (int64_t quad = from; quad < to; quad += 2) {
    typename P::I low[kBlocks * kVectors], high[kBlocks * kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kBlocks * kVectors; ++v) {
      const int64_t at = quad / 2 * kBlockBytes + v % kVectors * P::kLanes * kQuad;
      P::halves(weights.of[v / kVectors] + at, zps[v], low[v], high[v]);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const uint8_t* from_row = codes + r * stride + quad * kQuad;
      const auto c0 = P::quad(from_row), c1 = P::quad(from_row + kQuad);
#pragma GCC unroll 8
      for (int v = 0; v < kBlocks * kVectors; ++v) sums[r][v] = P::dot4(sums[r][v], c0, c1, low[v], high[v]);
    }
  }
}

// A block of `rows` rows: the sums of one group, P::kBlocks blocks of columns, become floats.
__attribute__((noinline)) inline void finish(const ProductBlock& block, int64_t first, int rows, int64_t col,
                                             const int32_t* sums) {
  constexpr int64_t kWidth = P::kBlocks * kBlockColumns;
  for (int64_t i = 0; i < kWidth && col + i < block.cols; i += P::kLanes) {
    const int64_t at = col + i, n = block.cols - at;
    const auto column_sum = load_columns(block.column_sums + at, n);
    const auto column_scale = load_columns(block.column_scales + at, n);
    const auto bias = load_columns(block.bias + at, n);
    const auto zps = block.weight_zps == nullptr ? P::set1(block.weight_zp) : P::load_zps(block.weight_zps + at, n);
    for (int64_t row = 0; row < rows; ++row) {
      auto exact = P::sub(P::load(sums + row * kWidth + i), P::mul(P::set1(block.zps[first + row]), column_sum));
      if (block.row_sums != nullptr) exact = P::sub(exact, P::mul(P::set1(block.row_sums[first + row]), zps));
      const auto real = scaled(P::to_float(exact), P::set1(block.scales[first + row]), column_scale, block.order);
      store_columns(block.dst + (first + row) * block.dst_stride + at, P::add(real, bias), n);
    }
  }
}

template <int kRows>
void one_group_rows(const ProductBlock& block, int64_t row, int64_t col) {
  constexpr int kSums = P::kBlocks * kVectors;
  typename P::I sums[kRows][kSums];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < kSums; ++v) sums[r][v] = P::set1(0);
  const Weights<P::kBlocks> weights(block, col);
  dot_products<kRows, P::kBlocks>(block.codes + row * block.codes_stride, block.codes_stride, weights, 0,
                                  block.depth / kQuad, sums);
  int32_t stored[kRows * kSums * P::kLanes];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < kSums; ++v) P::store(stored + (r * kSums + v) * P::kLanes, sums[r][v]);
  finish(block, row, kRows, col, stored);
}

template <int kBits, int kRows>
void group_rows(const ProductBlock& block, int64_t row, int64_t col) {
  constexpr int kBlocks = P::kGroupBlocks, kSums = kBlocks * kVectors;
  const Weights<kBlocks> weights(block, col);
  const uint8_t* codes = block.codes + row * block.codes_stride;
  const float* scales = block.scales + row * block.row_groups;
  const int32_t* zps = block.zps + row * block.row_groups;
  const bool row_varies = block.row_groups > 1, column_varies = block.column_groups > 1;
  const int64_t quads = block.depth / kQuad / block.groups, left = block.cols - col;
  typename P::F reals[kRows][kSums];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < kSums; ++v) reals[r][v] = P::set1(-0.0f);
  for (int64_t group = 0; group < block.groups; ++group) {
    const int64_t at = group * block.columns + col, row_group = row_varies ? group : 0;
    typename P::I sums[kRows][kSums], weight_zps[kSums];
#pragma GCC unroll 8
    for (int v = 0; v < kSums; ++v) {
      const int64_t n = left - v * P::kLanes;
      weight_zps[v] = block.weight_zps == nullptr ? P::set1(block.weight_zp)
                                                  : P::load_zps(block.weight_zps + at + v * P::kLanes, n);
      const auto column_sum = load_columns(block.column_sums + at + v * P::kLanes, n);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) sums[r][v] = P::mul(P::set1(-zps[r * block.row_groups + row_group]), column_sum);
    }
    if constexpr (kBits == 8) {
      if (block.row_sums != nullptr)
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
          const auto row_sum = P::set1(block.row_sums[(row + r) * block.groups + group]);
#pragma GCC unroll 8
          for (int v = 0; v < kSums; ++v) sums[r][v] = P::sub(sums[r][v], P::mul(row_sum, weight_zps[v]));
        }
      dot_products<kRows, kBlocks>(codes, block.codes_stride, weights, group * quads, (group + 1) * quads, sums);
    } else {
#pragma GCC unroll 8
      for (int v = 0; v < kSums; ++v) weight_zps[v] = P::zps4(weight_zps[v]);
      dot_products4<kRows, kBlocks>(codes, block.codes_stride, weights, group * quads, (group + 1) * quads, weight_zps,
                                    sums);
    }
    // A scale that does not vary multiplies at the end; 1 in its place leaves a float as it is.
#pragma GCC unroll 8
    for (int v = 0; v < kSums; ++v) {
      const auto column_scale =
          column_varies ? load_columns(block.column_scales + at + v * P::kLanes, left - v * P::kLanes) : P::set1(1.0f);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        auto real = P::mul(P::to_float(sums[r][v]), column_scale);
        if (row_varies) real = P::mul(real, P::set1(scales[r * block.row_groups + group]));
        reals[r][v] = P::add(reals[r][v], real);
      }
    }
  }
#pragma GCC unroll 8
  for (int v = 0; v < kSums; ++v) {
    const int64_t at = col + v * P::kLanes, n = left - v * P::kLanes;
    if (n <= 0) return;
    const auto column_scale = column_varies ? P::set1(1.0f) : load_columns(block.column_scales + at, n);
    const auto bias = load_columns(block.bias + at, n);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const auto row_scale = P::set1(row_varies ? 1.0f : scales[r * block.row_groups]);
      store_columns(block.dst + (row + r) * block.dst_stride + at,
                    P::add(scaled(reals[r][v], row_scale, column_scale, block.order), bias), n);
    }
  }
}

using RowsKernel = void (*)(const ProductBlock&, int64_t row, int64_t col);

// `kernels` are those of 1 to kMostRows rows. Columns first: their weights stay in the caches for all rows.
inline void for_rows(const ProductBlock& block, int64_t width, const RowsKernel (&kernels)[kMostRows]) {
  for (int64_t col = 0; col < block.cols; col += width)
    for (int64_t row = 0; row < block.rows;) {
      const int64_t left = block.rows - row;
      const int64_t count = left >= 2 * kMostRows ? kMostRows : left > kMostRows ? (left + 1) / 2 : left;
      kernels[count - 1](block, row, col);
      row += count;
    }
}

inline void one_group(const ProductBlock& block) {
  for_rows(block, P::kBlocks * kBlockColumns,
           {one_group_rows<1>, one_group_rows<2>, one_group_rows<3>, one_group_rows<4>, one_group_rows<5>,
            one_group_rows<6>});
}

template <int kBits>
void groups(const ProductBlock& block) {
  for_rows(block, P::kGroupBlocks * kBlockColumns,
           {group_rows<kBits, 1>, group_rows<kBits, 2>, group_rows<kBits, 3>, group_rows<kBits, 4>,
            group_rows<kBits, 5>, group_rows<kBits, 6>});
}

constexpr ProductKernels kProducts = {one_group, groups<8>, groups<4>, nullptr};
