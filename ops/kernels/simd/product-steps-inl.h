// The products of one quad of codes with the weights of some blocks of columns.

// The first quads of kBlocks blocks, with first columns `gap` apart. If fewer blocks remain, the last one is
// repeated, and its sums are not used.
template <int kBlocks>
struct Weights {
  const int8_t* of[kBlocks];

  Weights(const ProductBlock& block, int64_t col, int64_t gap) {
    const int64_t last = (block.cols - 1) / kBlockColumns;
#pragma GCC unroll 8
    for (int b = 0; b < kBlocks; ++b) {
      const int64_t at = (col + b * gap) / kBlockColumns;
      of[b] = block.weights.packed + (at < last ? at : last) * block.weights.stride;
    }
  }
};

template <int kRows, int kSums>
inline void add(P::I (&sums)[kRows][kSums], const P::I (&others)[kRows][kSums]) {
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < kSums; ++v) sums[r][v] = P::add(sums[r][v], others[r][v]);
}

// Prefetches lines from array[index] on, which may be behind the end of the array: no pointer may be.
template <class T>
inline void prefetch_at(const T* array, int64_t index, int64_t bytes = kLine) {
  const uintptr_t first = reinterpret_cast<uintptr_t>(array) + static_cast<uintptr_t>(index) * sizeof(T);
  for (int64_t line = 0; line < bytes; line += kLine) {
    const uintptr_t address = first + static_cast<uintptr_t>(line);
    ORT_DYNQ_PREFETCH(reinterpret_cast<const void*>(address));  // NOLINT(performance-no-int-to-ptr)
  }
}

// Up to kFewRows rows are memory-bound. If P::kBytesAhead is not 0, they prefetch their weights: hardware reads too few
// lines ahead.
template <int kLines>
inline void prefetch_ahead(const int8_t* weights) {
  if constexpr (P::kBytesAhead > 0) prefetch_at(weights, P::kBytesAhead, kLines * kLine);
}

template <int kStep, int kRows, int kBlocks, class Sums>
inline void dot_step(const uint8_t* codes, int64_t stride, const Weights<kBlocks>& weights, int64_t at, Sums& sums) {
  typename P::I w[kBlocks * kVectors];
  if constexpr (kRows <= kFewRows)
#pragma GCC unroll 8
    for (int b = 0; b < kBlocks; ++b) prefetch_ahead<1>(weights.of[b] + at);
#pragma GCC unroll 8
  for (int v = 0; v < kBlocks * kVectors; ++v)
    w[v] = P::weights_of<kStep>(
        P::load(static_cast<const void*>(weights.of[v / kVectors] + at + v % kVectors * P::kLanes * kQuad)));
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    const auto c = P::quad(codes + r * stride);
#pragma GCC unroll 8
    for (int v = 0; v < kBlocks * kVectors; ++v) sums[r][v] = P::dot(sums[r][v], c, w[v]);
  }
}
