// Sums of products over many quads.

// Adds the products of quads `from` to `to` of codes that are widened first. `Type` is P: only a template may call a
// widen_steps() that P does not have.
template <int kRows, int kBlocks, class Sums, class Type>
inline void dot_widened(const uint8_t* codes, int64_t stride, const Weights<kBlocks>& weights, int64_t from, int64_t to,
                        Sums& sums) {
  uint8_t wide[P::kSteps][kRows][kWidenedQuads * kQuad];
  for (int64_t first = from; first < to; first += kWidenedQuads) {
    const int64_t count = to - first < kWidenedQuads ? to - first : kWidenedQuads;
    for (int64_t r = 0; r < kRows; ++r)
      Type::widen_steps(codes + r * stride + first * kQuad, count, wide[0][r], wide[1][r]);
    for (int64_t quad = 0; quad < count; ++quad) {
      const int64_t at = (first + quad) * kBlockBytes;
      dot_step<0, kRows, kBlocks>(wide[0][0] + quad * kQuad, kWidenedQuads * kQuad, weights, at, sums);
      dot_step<1, kRows, kBlocks>(wide[1][0] + quad * kQuad, kWidenedQuads * kQuad, weights, at, sums);
    }
  }
}

// Adds the products of quads `from` to `to`. Adding pairs at the end of a group pays only for long groups.
template <bool kOneGroup, int kRows, int kBlocks, class Sums, class Type = P>
inline void dot_products(const uint8_t* codes, int64_t stride, const Weights<kBlocks>& weights, int64_t from,
                         int64_t to, Sums& sums) {
  if constexpr (P::kSteps == 1) {
    int64_t quad = from;
    if constexpr (kRows <= kFewRows && P::kSplit > 1) {
      Sums split[P::kSplit] = {};
      for (; quad + P::kSplit <= to; quad += P::kSplit)
#pragma GCC unroll 8
        for (int s = 0; s < P::kSplit; ++s)
          dot_step<0, kRows, kBlocks>(codes + (quad + s) * kQuad, stride, weights, (quad + s) * kBlockBytes, split[s]);
#pragma GCC unroll 8
      for (int s = 0; s < P::kSplit; ++s) add(sums, split[s]);
    }
    for (; quad < to; ++quad)
      dot_step<0, kRows, kBlocks>(codes + quad * kQuad, stride, weights, quad * kBlockBytes, sums);
  } else if constexpr (kOneGroup) {
    dot_pairs<kRows>(codes, stride, weights, from, to, sums);
  } else {
    dot_widened<kRows, kBlocks, Sums, Type>(codes, stride, weights, from, to, sums);
  }
}

// The products of quads `quad` and `quad` + 1 with 4-bit weights with the zero points `zps`.
template <int kRows, int kBlocks, class Sums>
inline void dot_step_4bit(const uint8_t* codes, int64_t stride, const Weights<kBlocks>& weights, int64_t quad,
                          const P::I (&zps)[kBlocks * kVectors], Sums& sums) {
  typename P::I low[kBlocks * kVectors], high[kBlocks * kVectors];
  if constexpr (kRows <= kFewRows)
#pragma GCC unroll 8
    for (int b = 0; b < kBlocks; ++b) prefetch_ahead<1>(weights.of[b] + quad / 2 * kBlockBytes);
#pragma GCC unroll 8
  for (int v = 0; v < kBlocks * kVectors; ++v) {
    const int64_t at = quad / 2 * kBlockBytes + v % kVectors * P::kLanes * kQuad;
    P::halves(weights.of[v / kVectors] + at, zps[v], low[v], high[v]);
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    const uint8_t* from = codes + r * stride + quad * kQuad;
    const auto c0 = P::quad(from), c1 = P::quad(from + kQuad);
#pragma GCC unroll 8
    for (int v = 0; v < kBlocks * kVectors; ++v) sums[r][v] = P::dot4(sums[r][v], c0, c1, low[v], high[v]);
  }
}

// As dot_products(), for 4-bit weights. `from` and `to` are even.
template <int kRows, int kBlocks, class Sums>
inline void dot_products_4bit(const uint8_t* codes, int64_t stride, const Weights<kBlocks>& weights, int64_t from,
                              int64_t to, const P::I (&zps)[kBlocks * kVectors], Sums& sums) {
  int64_t quad = from;
  if constexpr (kRows <= kFewRows && P::kSplit > 1) {
    Sums others = {};
    for (; quad + 4 <= to; quad += 4) {
      dot_step_4bit<kRows, kBlocks>(codes, stride, weights, quad, zps, sums);
      dot_step_4bit<kRows, kBlocks>(codes, stride, weights, quad + 2, zps, others);
    }
    add(sums, others);
  }
  for (; quad < to; quad += 2) dot_step_4bit<kRows, kBlocks>(codes, stride, weights, quad, zps, sums);
}

// If P::kUnsignedWeights: subtracts the sums of the codes times 128, or times the zero points of 4-bit weights. `Type`
// is P: only a template may call a function that P does not have.
template <int kBits, int kRows, int kSums, class Type = P>
inline void subtract_code_sums(const uint8_t* codes, int64_t stride, int64_t quads, const P::I (&zps)[kSums],
                               P::I (&sums)[kRows][kSums]) {
  if constexpr (Type::kUnsignedWeights)
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const int32_t code_sum = Type::sum_codes(codes + r * stride, quads * kQuad);
#pragma GCC unroll 8
      for (int v = 0; v < kSums; ++v)
        sums[r][v] = P::sub(sums[r][v], P::mul(P::set1(code_sum), kBits == 4 ? zps[v] : P::set1(128)));
    }
}
