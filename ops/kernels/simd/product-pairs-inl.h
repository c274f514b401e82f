// Products of 8-bit weights for instruction sets without dot products of bytes (P::kSteps is 2). Codes and weights
// are widened to int16 in their order, and pairs of products are added: two lanes have the sums of a column.

constexpr int64_t kWideQuad = 2 * kQuad;  // bytes
constexpr int64_t kWidenedQuads = 64;     // at once by a tile: they stay in the first-level cache

// Adds the products of `quads` widened quads of each row to kCount vectors of columns from `first` on. weights(quad, v,
// half) are four columns of vector v. `Type` is P: only a template may call functions that P does not have.
template <int kRows, int kCount, class GetWeights, class Sums, class Type = P>
inline void add_pairs(const uint8_t* codes, int64_t stride, int64_t quads, int first, const GetWeights& weights,
                      Sums& sums) {
  typename P::I parts[kRows][kCount][2] = {};
  for (int64_t quad = 0; quad < quads; ++quad)
#pragma GCC unroll 8
    for (int v = 0; v < kCount; ++v) {
      const auto low = weights(quad, first + v, 0), high = weights(quad, first + v, 1);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const auto c = Type::pairs(codes + r * stride + quad * kWideQuad);
        parts[r][v][0] = P::dot(parts[r][v][0], c, low);
        parts[r][v][1] = P::dot(parts[r][v][1], c, high);
      }
    }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < kCount; ++v)
      sums[r][first + v] = P::add(sums[r][first + v], Type::sum_pairs(parts[r][v][0], parts[r][v][1]));
}

// dot_products() of few rows; their tiles widen the weights.
template <int kRows, int kBlocks, class Sums, class Type = P>
inline void dot_pairs(const uint8_t* codes, int64_t stride, const Weights<kBlocks>& weights, int64_t from, int64_t to,
                      Sums& sums) {
  constexpr int kCount = kRows <= 2 ? 2 : 1;  // vectors: the sums fit the registers
  static_assert(kVectors % kCount == 0, "parts of a block");
  uint8_t wide[kRows][kWidenedQuads * kWideQuad];
  for (int64_t at = from; at < to; at += kWidenedQuads) {
    const int64_t count = to - at < kWidenedQuads ? to - at : kWidenedQuads;
    for (int64_t r = 0; r < kRows; ++r) Type::widen(codes + r * stride + at * kQuad, count, wide[r]);
    const auto of = [&](int64_t quad, int v, int half) {
      return Type::widen(weights.of[v / kVectors] + (at + quad) * kBlockBytes +
                         (v % kVectors * 2 + half) * (P::kLanes / 2 * kQuad));
    };
#pragma GCC unroll 8
    for (int v = 0; v < kBlocks * kVectors; v += kCount)
      add_pairs<kRows, kCount>(wide[0], kWidenedQuads * kWideQuad, count, v, of, sums);
  }
}
