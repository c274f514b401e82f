// The sums of the columns of weights, which products of many rows need: product-inl.h includes this file after
// product-sums-inl.h.

// Adds the sums of the 4-bit weights of 16 columns in pairs of quads from `pair` to `end`.
inline void add_nibbles(const Weights<1>& weights, int64_t pair, int64_t end, P::I (&sums)[kVectors]) {
  NibbleSums of_weights[kVectors];
  while (pair < end) {
    const int64_t end_of_bytes = end - pair < kPairs ? end : pair + kPairs;
    for (; pair < end_of_bytes; ++pair)
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        typename P::I low, high;
        P::halves(weights.of[0] + pair * kBlockBytes + v * P::kLanes * kQuad, P::set1(0), low, high);
        of_weights[v].add(low, high);
      }
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) of_weights[v].flush();
  }
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) sums[v] = P::add(sums[v], of_weights[v].sums);
}

// Of 16 columns and a group.
template <int kBits>
inline void sum_columns_of_group(const ProductBlock& block, const Weights<1>& weights, int64_t group, int64_t col,
                                 bool has_padding, P::I (&sums)[1][kVectors]) {
  const int64_t quads = block.depth / kQuad / block.groups;
  typename P::I zps[kVectors];
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
    const int64_t at = col + v * P::kLanes;
    zps[v] = block.weights.zps == nullptr
                 ? P::set1(block.weights.zp)
                 : P::load_zps(block.weights.zps + group * block.weights.zps_stride + at, block.cols - at);
    if (kBits == 4) zps[v] = P::low_nibbles(zps[v]);
    sums[0][v] = has_padding ? P::set1(0) : P::mul(P::set1(-block.codes.sums[group]), zps[v]);
  }
  if (has_padding) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) zps[v] = P::zps4(zps[v]);
    subtract_code_sums<4>(block.codes.data, 0, quads, zps, sums);
    dot_products_4bit<1, 1>(block.codes.data, 0, weights, 0, quads, zps, sums);
  } else if constexpr (kBits == 4) {
    add_nibbles(weights, group * quads / 2, (group + 1) * quads / 2, sums[0]);
  } else {
    subtract_code_sums<kBits>(block.codes.data + group * quads * kQuad, 0, quads, zps, sums);
    dot_products<false, 1, 1>(block.codes.data, 0, weights, group * quads, (group + 1) * quads, sums);
  }
}

// Up to 16 sums.
inline void store_column_sums(const P::I (&sums)[kVectors], int64_t count, int32_t* to) {
  int32_t stored[kBlockColumns];
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v)
    P::store(static_cast<void*>((count < kBlockColumns ? stored : to) + v * P::kLanes), sums[v]);
  for (int64_t i = 0; i < count && count < kBlockColumns; ++i) to[i] = stored[i];
}

template <int kBits>
void sum_columns(const ProductBlock& block, int32_t* of_columns) {
  // Nothing checks that the weights of the padding are 0, and the codes there are. Only a single group has padding.
  const bool has_padding = kBits == 4 && block.codes.sums[0] < block.depth / kQuad / block.groups * kQuad;
  for (int64_t col = 0; col < block.cols; col += kBlockColumns) {
    const Weights<1> weights(block, col, 0);
    for (int64_t group = 0; group < block.groups; ++group) {
      typename P::I sums[1][kVectors];
      sum_columns_of_group<kBits>(block, weights, group, col, has_padding, sums);
      store_column_sums(sums[0], block.cols - col, of_columns + group * block.cols + col);
    }
  }
}
