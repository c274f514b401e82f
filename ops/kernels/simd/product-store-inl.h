// From exact sums as floats to the output: scales, biases, and stores.

inline P::F scaled(P::F real, P::F row_scale, P::F column_scale, ScaleOrder order) {
  return order == kScalesFirst ? P::mul(real, P::mul(row_scale, column_scale))
         : order == kRowFirst  ? P::mul(P::mul(real, row_scale), column_scale)
                               : P::mul(P::mul(real, column_scale), row_scale);
}

// Scales and stores `rows` rows of one block of columns: float(exact) of one group, or the sum over several groups.
// Scales that vary with the group are already applied; 1 in their place changes no float. Not inlined: every kernel
// calls it.
ORT_DYNQ_ONE_COPY inline void store_block(const ProductBlock& block, int64_t first, int64_t rows, int64_t col,
                                          const float* reals) {
  const bool row_varies = block.codes.scale_groups > 1, in_groups = row_varies || block.columns.scale_groups > 1;
  for (int64_t i = 0; i < kBlockColumns && col + i < block.cols; i += P::kLanes) {
    const int64_t at = col + i, n = block.cols - at;
    const auto mask = P::first(n);
    const auto bias = P::load_part(block.columns.bias + at, mask);
    const auto column_scale = in_groups ? P::set1(1.0f) : P::load_part(block.columns.scales + at, mask);
    for (int64_t r = 0; r < rows; ++r) {
      const auto row_scale = P::set1(row_varies ? 1.0f : block.codes.scales[(first + r) * block.codes.scale_groups]);
      const auto real =
          P::add(scaled(P::load(reals + r * kBlockColumns + i), row_scale, column_scale, block.order), bias);
      float* dst = block.output.dst + (first + r) * block.output.stride + at;
      if (n >= P::kLanes)
        P::store(dst, real);
      else
        P::store_part(dst, real, mask);
    }
  }
}

// As store_block(), for one group and whole vectors, from registers. It pays for its size only if there are many rows.
template <ScaleOrder kOrder, int kRows, int kSums>
inline void store_registers(const ProductBlock& block, int64_t row, int64_t col, const P::F (&reals)[kRows][kSums]) {
#pragma GCC unroll 8
  for (int v = 0; v < kSums; ++v) {
    const int64_t at = col + v * P::kLanes;
    const auto bias = P::load(block.columns.bias + at), column_scale = P::load(block.columns.scales + at);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
      P::store(block.output.dst + (row + r) * block.output.stride + at,
               P::add(scaled(reals[r][v], P::set1(block.codes.scales[row + r]), column_scale, kOrder), bias));
  }
}

template <int kRows, int kSums>
inline void store_vectors(const ProductBlock& block, int64_t row, int64_t col, const P::F (&reals)[kRows][kSums]) {
  if (block.order == kScalesFirst) return store_registers<kScalesFirst>(block, row, col, reals);
  if (block.order == kRowFirst) return store_registers<kRowFirst>(block, row, col, reals);
  return store_registers<kColumnFirst>(block, row, col, reals);
}

// Scales and stores `rows` rows of a tile after its exact sums became floats: of kBlocks blocks of columns, with
// first columns `gap` apart.
template <bool kOneGroup, int kBlocks, int kRows>
inline void store_tile(const ProductBlock& block, int64_t row, int64_t rows, int64_t col, int64_t gap,
                       const P::F (&reals)[kRows][kBlocks * kVectors]) {
  constexpr int kSums = kBlocks * kVectors;
  if (kOneGroup && kRows >= kManyRows && block.cols - col >= kSums * P::kLanes)
    return store_vectors(block, row, col, reals);
  float stored[kBlocks][kRows][kBlockColumns];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < kSums; ++v) P::store(stored[v / kVectors][r] + v % kVectors * P::kLanes, reals[r][v]);
  for (int b = 0; b < kBlocks; ++b) store_block(block, row, rows, col + b * gap, stored[b][0]);
}

// Replaces a scale that does not vary with the group.
constexpr float kOnes[] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
static_assert(sizeof kOnes >= P::kLanes * sizeof(float), "one for each column of a vector");

// The first `count` of kLanes float16 numbers.
inline P::F load_halves(const uint16_t* p, int64_t count) {
  uint16_t part[P::kLanes] = {};
  if (count < P::kLanes) {
    for (int64_t i = 0; i < count; ++i) part[i] = dynq::load(p + i);
    p = part;
  }
  return P::load_f16(reinterpret_cast<const uint8_t*>(p));
}

template <int kRows, int kSums>
ORT_DYNQ_INLINE inline void to_floats(const P::I (&sums)[kRows][kSums], P::F (&reals)[kRows][kSums]) {
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < kSums; ++v) reals[r][v] = P::to_float(sums[r][v]);
}
