// Matrix products: codes of rows times packed weights, to floats, written once for any type P of products. A file of an
// instruction set defines P and includes this file in its anonymous namespace. A vector has the sums of kLanes adjacent
// columns.
//
// More than 450 lines: the passes over rows share the members of P, and the sizes of a tile.

// The members of P. Nothing uses this struct, but the compiler checks that every member exists with its type.
struct ProductMembers {
  using F = P::F;  // kLanes floats
  using I = P::I;  // kLanes int32, or quads of bytes
  using Quad = P::Quad;
  using Mask = P::Mask;
  static constexpr int64_t kLanes = P::kLanes;
  // The blocks of 16 columns of a tile, with one group of k and with several: kMostRows rows of sums fit the registers.
  // Up to kFewRows rows take two blocks.
  static constexpr int kBlocks = P::kBlocks, kGroupBlocks = P::kGroupBlocks;
  static constexpr int kSplit = P::kSplit;                // independent sums for up to kFewRows rows
  static constexpr int64_t kBytesAhead = P::kBytesAhead;  // of prefetched weights for up to kFewRows rows, or 0
  static constexpr int kSteps = P::kSteps;                // calls of dot for the products of a quad: 1 or 2
  // dot takes weights + 128, and dot4 takes 4-bit weights with their zero points: the sums are too large by the sum of
  // the codes (sum_codes) times 128 or the zero point.
  static constexpr bool kUnsignedWeights = P::kUnsignedWeights;

  F (*set1_float)(float) = P::set1;
  I (*set1_int)(int32_t) = P::set1;
  F (*load_floats)(const float*) = P::load;
  I (*load_quads)(const void*) = P::load;
  void (*store)(float*, F) = P::store;
  Mask (*first)(int64_t n) = P::first;  // the first n lanes, for any n
  F (*load_first_floats)(const float*, Mask) = P::load_part;
  I (*load_first_ints)(const int32_t*, Mask) = P::load_part;
  void (*store_first)(float*, F, Mask) = P::store_part;
  I (*load_zps)(const int8_t*, int64_t n) = P::load_zps;  // the first n

  F (*add)(F, F) = P::add;
  F (*mul)(F, F) = P::mul;
  F (*fnmadd)(F a, F b, F c) = P::fnmadd;  // c - a * b, rounded once
  I (*add_ints)(I, I) = P::add;
  I (*sub_ints)(I, I) = P::sub;
  I (*mul_ints)(I, I) = P::mul;
  F (*to_float)(I) = P::to_float;

  Quad (*quad)(const uint8_t* codes) = P::quad;  // for all lanes
  I (*weights_of)(I) = P::weights_of<0>;         // as dot takes them in a step
  I (*dot)(I sums, Quad codes, I weights) = P::dot;
  // 4-bit weights of two quads, minus their zero points.
  I (*zps4)(I) = P::zps4;
  I (*low_nibbles)(I) = P::low_nibbles;  // the low 4 bits of int32
  void (*halves)(const int8_t* weights, I zps4, I& low, I& high) = P::halves;
  I (*dot4)(I sums, Quad codes0, Quad codes1, I low, I high) = P::dot4;
  void (*quarters)(const int8_t* weights, I (&quads)[4]) = P::quarters;  // 2-bit weights of four quads
  F (*load_f16)(const uint8_t*) = P::load_f16;
  // If kSteps is 2, also widen (twice), widen_steps, pairs, sum_pairs, words, add16, sub16, sum_words, same_bytes
  // and either_bits; and sum_codes if kUnsignedWeights.
};

constexpr int64_t kMostRows = 6, kManyRows = 4, kFewRows = 2;
constexpr int kVectors = kBlockColumns / P::kLanes;  // of a block
constexpr bool kIsBlock =
    kVectors == 1 && P::kSteps == 1 && !P::kUnsignedWeights;  // then one vector has the sums of a block
static_assert(!kIsBlock || P::kGroupBlocks == 2, "gemm_whole() takes two blocks");
constexpr int64_t kLine = 64, kBlockBytes = kBlockColumns * kQuad;  // a quad of 8-bit weights, two of 4-bit weights

inline P::F scaled(P::F real, P::F row_scale, P::F column_scale, ScaleOrder order) {
  return order == kScalesFirst ? P::mul(real, P::mul(row_scale, column_scale))
         : order == kRowFirst  ? P::mul(P::mul(real, row_scale), column_scale)
                               : P::mul(P::mul(real, column_scale), row_scale);
}

// The first quads of kBlocks blocks, whose first columns are `gap` apart. If fewer blocks remain, the last one is
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

#include "kernels/simd/product-pairs-inl.h"

// Adds the products of quads `from` to `to`. Adding pairs at the end of a group pays only for long groups. `Type` is P:
// only a template may call a widen_steps() that P does not have.
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
}

// The products of quads `quad` and `quad` + 1 with 4-bit weights, whose zero points are `zps`.
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

// Scales and stores `rows` rows of a tile whose exact sums are converted to floats: of kBlocks blocks of columns, whose
// first columns are `gap` apart.
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

// Scales of a group are a row apart from those of the next one: hardware does not prefetch them. They are in no cache
// when a model is larger than the caches, so tiles prefetch theirs some groups ahead.
constexpr int64_t kGroupsAhead = 8;

// Many rows are compute-bound: meanwhile, the weights of the next strip of columns (kStrip in quantized_matmul.cc)
// arrive.
constexpr int64_t kBlocksAhead = 4;

// A tile of kRows rows and kBlocks blocks of 16 columns, whose first columns are `gap` apart.
template <int kBits, bool kOneGroup, int kBlocks, int kRows>
void gemm_tile(const ProductBlock& block, int64_t row, int64_t col, int64_t gap) {
  constexpr int kSums = kBlocks * kVectors;
  const Weights<kBlocks> weights(block, col, gap);
  const auto column = [&](int v) { return v / kVectors * gap + v % kVectors * P::kLanes; };  // of a vector, from col
  const uint8_t* codes = block.codes.data + row * block.codes.stride;
  const int64_t groups = kOneGroup ? 1 : block.groups, quads = block.depth / kQuad / groups;
  const bool row_varies = block.codes.scale_groups > 1, column_varies = block.columns.scale_groups > 1;
  const bool in_groups = row_varies || column_varies;
  const bool has_ones = !kOneGroup && block.codes.has_ones;  // the last row
  const int32_t* column_sums = has_ones ? nullptr : block.columns.sums + col;
  const int8_t* weight_zps = block.weights.zps == nullptr ? nullptr : block.weights.zps + col;
  const uint16_t* halves = kOneGroup || block.columns.halves == nullptr ? nullptr : block.columns.halves + col;
  const float* column_scales = halves != nullptr ? nullptr : in_groups ? block.columns.scales + col : kOnes;
  typename P::Mask masks[kSums];
#pragma GCC unroll 8
  for (int v = 0; v < kSums; ++v) masks[v] = P::first(block.cols - col - column(v));
  typename P::I zps[kSums];
#pragma GCC unroll 8
  for (int v = 0; v < kSums; ++v) zps[v] = kBits == 4 ? P::zps4(P::set1(block.weights.zp)) : P::set1(block.weights.zp);
  typename P::F reals[kRows][kSums];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < kSums; ++v) reals[r][v] = P::set1(-0.0f);
  const bool is_bounded = !kOneGroup && kRows > kFewRows && block.is_bounded && !block.codes.has_one_zp;
  float real_zps[kRows];
  for (int64_t r = 0; r < kRows && is_bounded && !row_varies; ++r)
    real_zps[r] = static_cast<float>(block.codes.zps[row + r]);
  // Hardware does not prefetch the next group's part of an array of columns. One or two rows are memory-bound, so every
  // fourth block prefetches the parts of blocks +4 to +7: adjacent lines arrive faster together.
  const bool is_fourth = !kOneGroup && kRows <= kFewRows && col / kBlockColumns % 4 == 0;
  const int64_t first_ahead = (col == 0 ? 1 : 4) * kBlockColumns, end_ahead = is_fourth ? 8 * kBlockColumns : 0;
  for (int64_t group = 0; group < groups; ++group) {
    for (int64_t ahead = first_ahead; ahead < end_ahead && col + ahead < gap; ahead += kBlockColumns)
      for (int64_t b = 0; b < kBlocks; ++b) {
        if (column_sums != nullptr) prefetch_at(column_sums, b * gap + ahead);
        if (column_varies && halves == nullptr) prefetch_at(column_scales, b * gap + ahead);
        if (column_varies && halves != nullptr) prefetch_at(halves, b * gap + ahead);
      }
    for (int64_t b = 0; b < kBlocks && row == 0 && column_varies && group + kGroupsAhead < groups; ++b) {
      const int64_t ahead = b * gap + kGroupsAhead * block.columns.scales_stride;
      if (halves == nullptr)
        prefetch_at(column_scales, ahead);
      else
        prefetch_at(halves, ahead);
    }
    if (!kOneGroup && kRows > kFewRows && row == 0) {
      const int64_t bytes = quads * kBlockBytes * kBits / 8,
                    ahead = group * bytes + kBlocksAhead * block.weights.stride;
      for (int64_t b = 0; b < kBlocks; ++b) prefetch_at(weights.of[b], ahead, bytes);
    }
    typename P::I sums[kRows][kSums];
    const int32_t* row_zps = block.codes.zps + row * block.codes.scale_groups + (row_varies ? group : 0);
#pragma GCC unroll 8
    for (int v = 0; v < kSums; ++v) {
      const auto column_sum = is_bounded || has_ones ? P::set1(0) : P::load_part(column_sums + column(v), masks[v]);
      if (!kOneGroup && kRows > kFewRows && block.codes.has_one_zp) {
        const auto correction = P::mul(P::set1(-row_zps[0]), column_sum);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) sums[r][v] = correction;
        continue;
      }
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r)
        sums[r][v] =
            is_bounded || has_ones ? P::set1(0) : P::mul(P::set1(-row_zps[r * block.codes.scale_groups]), column_sum);
    }
    if (is_bounded && row_varies)
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) real_zps[r] = static_cast<float>(row_zps[r * block.codes.scale_groups]);
    if (weight_zps != nullptr) {
#pragma GCC unroll 8
      for (int v = 0; v < kSums; ++v) {
        zps[v] = P::load_zps(weight_zps + column(v), block.cols - col - column(v));
        if (kBits == 4) zps[v] = P::zps4(zps[v]);
      }
    }
    subtract_code_sums<kBits>(codes + group * quads * kQuad, block.codes.stride, quads, zps, sums);
    if constexpr (kBits == 4) {
      dot_products_4bit<kRows, kBlocks>(codes, block.codes.stride, weights, group * quads, (group + 1) * quads, zps,
                                        sums);
    } else {
      if (block.codes.sums != nullptr)
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
          const auto row_sum = P::set1(block.codes.sums[(row + r) * block.groups + group]);
#pragma GCC unroll 8
          for (int v = 0; v < kSums; ++v) sums[r][v] = P::sub(sums[r][v], P::mul(row_sum, zps[v]));
        }
      dot_products<kOneGroup, kRows, kBlocks>(codes, block.codes.stride, weights, group * quads, (group + 1) * quads,
                                              sums);
    }
    if constexpr (kOneGroup) {
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < kSums; ++v) reals[r][v] = P::to_float(sums[r][v]);
    } else {
      typename P::F terms[kRows][kSums];
      if (has_ones)
#pragma GCC unroll 8
        for (int r = 0; r + 1 < kRows; ++r) {
          const auto row_zp = P::set1(row_zps[r * block.codes.scale_groups]);
#pragma GCC unroll 8
          for (int v = 0; v < kSums; ++v) sums[r][v] = P::sub(sums[r][v], P::mul(row_zp, sums[kRows - 1][v]));
        }
#pragma GCC unroll 8
      for (int v = 0; v < kSums; ++v) {
        const auto column_scale = halves != nullptr
                                      ? load_halves(halves + column(v), block.cols - col - column(v))
                                      : P::load_part(column_scales + (in_groups ? column(v) : 0), masks[v]);
        const auto column_sum =
            is_bounded ? P::to_float(P::load_part(column_sums + column(v), masks[v])) : P::set1(0.0f);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
          auto exact = P::to_float(sums[r][v]);
          if (is_bounded) exact = P::fnmadd(P::set1(real_zps[r]), column_sum, exact);
          terms[r][v] = P::mul(exact, column_scale);
        }
      }
      if (row_varies)
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
          const auto scale = P::set1(block.codes.scales[(row + r) * groups + group]);
#pragma GCC unroll 8
          for (int v = 0; v < kSums; ++v) terms[r][v] = P::mul(terms[r][v], scale);
        }
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < kSums; ++v) reals[r][v] = P::add(reals[r][v], terms[r][v]);
    }
    if (column_sums != nullptr) column_sums += block.columns.sums_stride;
    if (weight_zps != nullptr) weight_zps += block.weights.zps_stride;
    if (column_varies && halves != nullptr) halves += block.columns.scales_stride;
    if (column_varies && halves == nullptr) column_scales += block.columns.scales_stride;
  }
  store_tile<kOneGroup, kBlocks>(block, row, kRows - has_ones, col, gap, reals);
}

// As gemm_tile() for two whole blocks of weights in groups, if a vector has the sums of a block: for rows and columns
// whose scales are floats that vary with the group. All that a group needs is in registers or at one of few addresses:
// groups of 32 k take two thirds of the time.
template <int kBits, int kRows>
inline void gemm_whole(const ProductBlock& block, int64_t row, int64_t col, int64_t gap) {
  constexpr int kBlocks = 2, kUnitQuads = kGroupUnit / kQuad;
  const int64_t stride = block.codes.stride, groups = block.groups, units = block.depth / kGroupUnit / groups;
  const int64_t between = gap / kBlockColumns * block.weights.stride;  // from the first block to the other one
  const int8_t* w = block.weights.packed + col / kBlockColumns * block.weights.stride;
  const uint8_t* codes = block.codes.data + row * stride;
  const float *column_scales = block.columns.scales + col, *row_scales = block.codes.scales + row * groups;
  const int32_t *column_sums = block.columns.sums + col, *row_zps = block.codes.zps + row * groups;
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
#pragma GCC unroll 8
    for (int b = 0; b < kBlocks; ++b) {
      const auto column_sum = P::load(static_cast<const void*>(column_sums + b * gap));
      const auto correction = has_one_zp ? P::mul(P::set1(-row_zps[0]), column_sum) : P::set1(0);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) sums[r][b] = correction;
      if (kBits == 4 && weight_zps != nullptr) zps[b] = P::zps4(P::load_zps(weight_zps + b * gap, P::kLanes));
    }
    for (int64_t unit = 0; unit < units; ++unit, codes += kGroupUnit, w += kGroupUnit * kBlockColumns * kBits / 8) {
#pragma GCC unroll 8
      for (int i = 0; i < kUnitQuads; i += 2) {
        typename P::I quads[2][kBlocks];
#pragma GCC unroll 8
        for (int b = 0; b < kBlocks; ++b) {
          const int8_t* from = w + b * between + i * kBlockBytes * kBits / 8;
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
#pragma GCC unroll 8
    for (int b = 0; b < kBlocks; ++b) {
      const auto scale = P::load(column_scales + b * gap);
      const auto column_sum = P::to_float(P::load(static_cast<const void*>(column_sums + b * gap)));
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        auto exact = P::to_float(sums[r][b]);
        if (!has_one_zp) exact = P::fnmadd(P::to_float(P::set1(row_zps[r * groups])), column_sum, exact);
        reals[r][b] = P::add(reals[r][b], P::mul(P::mul(exact, scale), P::set1(row_scales[r * groups])));
      }
    }
    column_scales += block.columns.scales_stride;
    column_sums += block.columns.sums_stride;
    if (weight_zps != nullptr) weight_zps += block.weights.zps_stride;
    ++row_scales;
    ++row_zps;
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
    if (is_whole && has_scales && has_sums && (block.codes.has_one_zp || block.is_bounded))
      return gemm_whole<kBits, kRows>(block, row, col, gap);
  }
  gemm_tile<kBits, false, P::kGroupBlocks, kRows>(block, row, col, gap);
}

#include "kernels/simd/product-sums-inl.h"
#include "kernels/simd/product-wide-inl.h"

using TileKernel = void (*)(const ProductBlock&, int64_t row, int64_t col, int64_t gap);

// Covers the block with tiles. `kernels` has one for each number of rows from 1 to kMostRows. The loop over columns is
// outside: weights stay in the caches for all rows.
inline void gemm_row_tiles(const ProductBlock& block, int64_t width, const TileKernel (&kernels)[kMostRows]) {
  for (int64_t col = 0; col < block.cols; col += width)
    for (int64_t row = 0; row < block.rows;) {
      const int64_t left = block.rows - row;
      const int64_t count = left >= 2 * kMostRows ? kMostRows : left > kMostRows ? (left + 1) / 2 : left;
      kernels[count - 1](block, row, col, kBlockColumns);
      row += count;
    }
}

#include "kernels/simd/product-words-inl.h"
#include "kernels/simd/product-words-unpacked-inl.h"

// One or two rows are memory-bound. Two sequential streams of weights are fastest: one through the first half of the
// columns, one through the second.
template <int kBits, bool kOneGroup, int kRows>
void gemm_few_rows(const ProductBlock& block) {
  const int64_t blocks = (block.cols + kBlockColumns - 1) / kBlockColumns, half = (blocks + 1) / 2 * kBlockColumns;
  if constexpr (!kOneGroup && kRows > 1 && (kBits == 4 || P::kSteps == 1))
    if (block.codes.has_ones && block.depth <= block.groups * kLongestSummed<kBits>)
      return gemv<kBits, kRows - 1>(block);
  for (int64_t col = 0; col < half; col += kBlockColumns) gemm_tile<kBits, kOneGroup, 2, kRows>(block, 0, col, half);
}

// 2-bit weights have no other kernel of their own: for all other blocks they become 4-bit weights first.
inline void gemm_2bit(const ProductBlock& block) { (block.rows == 2 ? gemv<2, 1> : gemv<2, 2>)(block); }

// gemm_row_tiles() has no tiles of kFewRows rows or fewer.
static_assert(kFewRows == 2, "gemm_few_rows() is called for 1 and 2");
template <int kBits, bool kOneGroup, int kBlocks>
void gemm_direct(const ProductBlock& block) {
  if (block.rows == 1)
    gemm_few_rows<kBits, kOneGroup, 1>(block);
  else if (block.rows == 2)
    gemm_few_rows<kBits, kOneGroup, 2>(block);
  else if (!kOneGroup && block.rows == 3 && block.codes.has_ones)
    gemm_few_rows<kBits, kOneGroup, 3>(block);
  else if (kBlocks > 2 && kBits == 8 && kOneGroup && block.cols <= 2 * kBlockColumns)  // such as a head of attention
    gemm_row_tiles(block, 2 * kBlockColumns,
                   {nullptr, nullptr, gemm_tile<kBits, kOneGroup, 2, 3>, gemm_tile<kBits, kOneGroup, 2, 4>,
                    gemm_tile<kBits, kOneGroup, 2, 5>, gemm_tile<kBits, kOneGroup, 2, 6>});
  else if constexpr (!kOneGroup)
    gemm_row_tiles(
        block, kBlocks * kBlockColumns,
        {nullptr, nullptr, gemm_groups<kBits, 3>, gemm_groups<kBits, 4>, gemm_groups<kBits, 5>, gemm_groups<kBits, 6>});
  else
    gemm_row_tiles(block, kBlocks * kBlockColumns,
                   {nullptr, nullptr, gemm_tile<kBits, kOneGroup, kBlocks, 3>, gemm_tile<kBits, kOneGroup, kBlocks, 4>,
                    gemm_tile<kBits, kOneGroup, kBlocks, 5>, gemm_tile<kBits, kOneGroup, kBlocks, 6>});
}

template <int kBits, bool kOneGroup, int kBlocks>
void gemm(const ProductBlock& block) {
  if constexpr (kBits == 8 && kOneGroup && P::kSteps == 2)
    if (block.rows > kRowsInPlace) return gemm_wide(block);
  if constexpr (kBits == 4 && P::kSteps == 2) {
    if (fits_unpacked(block)) return gemm_unpacked<>(block, gemm_direct<kBits, kOneGroup, kBlocks>);
    if (block.rows > kFewRows && fits_words(block)) return gemm_words<>(block);
  }
  gemm_direct<kBits, kOneGroup, kBlocks>(block);
}
