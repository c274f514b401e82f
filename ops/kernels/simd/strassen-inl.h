// Matrix products by Strassen's algorithm, for instruction sets that multiply int16: avx2.cc includes this file after
// product-inl.h.
//
// Winograd's form of the algorithm computes C = A B, of halves in both directions, by 7 products and 15 additions:
//
//   P0 = A11 B11                 P4 = S1 T1, S1 = A21 + A22, T1 = B12 - B11     C11 = P0 + P1
//   P1 = A12 B21                 P5 = S2 T2, S2 = S1 - A11,  T2 = B22 - T1      U2 = P0 + P5, U3 = U2 + P6
//   P2 = S4 B22, S4 = A12 - S2   P6 = S3 T3, S3 = A11 - A21, T3 = B22 - B12     C12 = U2 + P4 + P2
//   P3 = A22 T4, T4 = B21 - T2                                                  C21 = U3 + P3, C22 = U3 + P4
//
// A is formed once for all columns. B is formed just before its product reads it, so it stays in the first-level cache.
// A product begins with the sums that its result is added to: no pass over results of its own adds them.

constexpr int64_t kStrassenHalf = kStrassenColumns / 2;
constexpr int kStrassenVectors = kStrassenHalf / P::kLanes;
constexpr int kStrassenTile = 2;  // rows

// Operands of weights are [steps][quads][columns][2], and those of codes [rows][steps][quads][2]: the even bytes of
// each quad are in the first step, the odd ones in the second. 120 KB of the stack of a thread, which has 512 KB or
// more.
struct StrassenBuffers {
  alignas(kLine) int16_t weights[2][kStrassenHalf * kStrassenDepth];
  alignas(kLine) int32_t sums[7][kStrassenRows / 2 * kStrassenHalf];
};

template <int kStep>
inline void form_code_operands(const P::I (&codes)[2][2], int64_t size, int16_t* to) {
  const auto a11 = P::codes_of<kStep>(codes[0][0]), a12 = P::codes_of<kStep>(codes[0][1]),
             a21 = P::codes_of<kStep>(codes[1][0]), a22 = P::codes_of<kStep>(codes[1][1]);
  const auto s1 = P::add16(a21, a22), s2 = P::sub16(s1, a11);
  const typename P::I operands[] = {a11, a12, P::sub16(a12, s2), a22, s1, s2, P::sub16(a11, a21)};
#pragma GCC unroll 8
  for (int i = 0; i < kStrassenProducts; ++i) P::store(static_cast<void*>(to + i * size), operands[i]);
}

inline void strassen_form_codes(const uint8_t* codes, int64_t stride, int64_t rows, int64_t depth, int64_t row,
                                int16_t* to) {
  constexpr int64_t kCodes = P::kLanes * kQuad;  // of a vector
  static_assert(kCodes == kStrassenUnit, "half of the k of a piece is a number of vectors");
  const int64_t half = strassen_half_depth(depth), size = strassen_operand_size(rows, depth);
  const auto load = [&](int64_t i, int64_t k) {
    if (i >= rows || k >= depth) return P::set1(0);
    const uint8_t* from = codes + i * stride + k;
    if (k + kCodes <= depth) return P::load(static_cast<const void*>(from));
    uint8_t last[kCodes] = {};
    memcpy(last, from, static_cast<size_t>(depth - k));
    return P::load(static_cast<const void*>(last));
  };
  to += row * half;
  for (int64_t first = 0; first < depth; first += 2 * half, to += kStrassenProducts * size)
    for (int64_t k = 0; k < half; k += kCodes) {
      typename P::I parts[2][2];
#pragma GCC unroll 2
      for (int i = 0; i < 2; ++i)
#pragma GCC unroll 2
        for (int j = 0; j < 2; ++j) parts[i][j] = load(i * strassen_half_rows(rows) + row, first + j * half + k);
      form_code_operands<0>(parts, size, to + k / 2);
      form_code_operands<1>(parts, size, to + half / 2 + k / 2);
    }
}

// One vector of each quarter of the weights.
struct StrassenWeights {
  P::I b11, b12, b21, b22;
};

// The second operand of a product. That of product 3 is formed from that of product 5, T2.
template <int kProduct, int kStep>
inline P::I weight_operand(const StrassenWeights& given, const int16_t* t2) {
  const auto b11 = P::weights_of<kStep>(given.b11), b12 = P::weights_of<kStep>(given.b12);
  const auto b21 = P::weights_of<kStep>(given.b21), b22 = P::weights_of<kStep>(given.b22);
  switch (kProduct) {
    case 0:
      return b11;
    case 1:
      return b21;
    case 2:
      return b22;
    case 3:
      return P::sub16(b21, P::load(static_cast<const void*>(t2)));
    case 4:
      return P::sub16(b12, b11);
    case 5:
      return P::sub16(b22, P::sub16(b12, b11));
    default:
      return P::sub16(b22, b12);
  }
}

// Forms an operand of the weights of `quads` quads from `first` on, and of as many after them.
template <int kProduct>
ORT_DYNQ_ONE_COPY void form_weights(const ProductBlock& block, int64_t first, int64_t quads, const int16_t* t2,
                                    int16_t* to) {
  constexpr bool kHas11 = kProduct == 0 || kProduct == 4 || kProduct == 5, kHas12 = kProduct >= 4,
                 kHas21 = kProduct == 1 || kProduct == 3, kHas22 = kProduct == 2 || kProduct >= 5;
  constexpr int64_t kBlocks = kStrassenHalf / kBlockColumns, kVectorBytes = P::kLanes * kQuad;
  const int64_t left = block.depth / kQuad - first, step_size = quads * kStrassenHalf * 2;
  for (int64_t b = 0; b < kBlocks; ++b) {
    const int8_t* of_left = block.weights.packed + b * block.weights.stride + first * kBlockBytes;
    const int8_t* of_right = of_left + kBlocks * block.weights.stride;
    for (int64_t quad = 0; quad < quads; ++quad)
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        const auto load = [&](bool is_used, const int8_t* from, int64_t i) {
          return is_used && i < left ? P::load(static_cast<const void*>(from + i * kBlockBytes + v * kVectorBytes))
                                     : P::set1(0);
        };
        const StrassenWeights given = {load(kHas11, of_left, quad), load(kHas12, of_right, quad),
                                       load(kHas21, of_left, quads + quad), load(kHas22, of_right, quads + quad)};
        const int64_t at = (quad * kStrassenHalf + b * kBlockColumns + v * P::kLanes) * 2;
        P::store(static_cast<void*>(to + at), weight_operand<kProduct, 0>(given, t2 + at));
        P::store(static_cast<void*>(to + step_size + at), weight_operand<kProduct, 1>(given, t2 + step_size + at));
      }
  }
}

// Where the sums of a product go, [rows][columns] of a half; null pointers are not used.
struct StrassenSums {
  const int32_t* more[2];  // which are added
  int32_t* to;             // null: they are a quarter of the block, and become floats
  int64_t half_row, col;   // 0 or 1, of the quarter; its first column
  const int32_t* more_of_second;
  int32_t* second;  // the sums of the product and more_of_second
};

template <int kRows>
inline void add_sums(const int32_t* more, P::I (&sums)[kRows][kStrassenVectors]) {
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < kStrassenVectors; ++v)
      sums[r][v] = P::add(sums[r][v], P::load(static_cast<const void*>(more + r * kStrassenHalf + v * P::kLanes)));
}

template <int kRows>
inline void store_sums(const P::I (&sums)[kRows][kStrassenVectors], int32_t* to) {
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < kStrassenVectors; ++v)
      P::store(static_cast<void*>(to + r * kStrassenHalf + v * P::kLanes), sums[r][v]);
}

template <int kRows>
inline void finish_rows(const ProductBlock& block, int64_t row, int64_t col,
                        const P::I (&sums)[kRows][kStrassenVectors]) {
  typename P::I corrections[kRows][kStrassenVectors];
  typename P::F reals[kRows][kStrassenVectors];
  set_corrections(block, row, col, corrections);
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < kStrassenVectors; ++v) reals[r][v] = P::to_float(P::add(sums[r][v], corrections[r][v]));
  store_vectors(block, row, col, reals);
}

// kRows rows of a product, from `row` on.
template <int kRows>
inline void multiply_half(const ProductBlock& block, const int16_t* codes, int64_t depth, const int16_t* weights,
                          int64_t row, const StrassenSums& given) {
  const auto* of_rows = reinterpret_cast<const uint8_t*>(codes + row * depth);
  const int64_t stride = depth * static_cast<int64_t>(sizeof(int16_t));
  typename P::I sums[kRows][kStrassenVectors] = {};
#pragma GCC unroll 4
  for (int64_t pair = 0; pair < depth / 2; ++pair) {
    typename P::I c[kRows];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) c[r] = P::quad(of_rows + r * stride + pair * kQuad);
#pragma GCC unroll 8
    for (int v = 0; v < kStrassenVectors; ++v) {
      const auto w = P::load(static_cast<const void*>(weights + (pair * kStrassenHalf + v * P::kLanes) * 2));
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) sums[r][v] = P::dot(sums[r][v], c[r], w);
    }
  }
  const int64_t at = row * kStrassenHalf;
  if (given.second != nullptr) {
    typename P::I second[kRows][kStrassenVectors];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
      for (int v = 0; v < kStrassenVectors; ++v) second[r][v] = sums[r][v];
    add_sums(given.more_of_second + at, second);
    store_sums(second, given.second + at);
  }
  for (const int32_t* more : given.more)
    if (more != nullptr) add_sums(more + at, sums);
  if (given.to != nullptr) {
    store_sums(sums, given.to + at);
    return;
  }
  const int64_t of_block = given.half_row * strassen_half_rows(block.rows) + row;
  if (of_block + kRows <= block.rows) {
    finish_rows(block, of_block, given.col, sums);
  } else if (of_block < block.rows) {  // the last row of the tile is padding
    typename P::I first[1][kStrassenVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kStrassenVectors; ++v) first[0][v] = sums[0][v];
    finish_rows(block, of_block, given.col, first);
  }
}

ORT_DYNQ_ONE_COPY inline void multiply_halves(const ProductBlock& block, const int16_t* codes, int64_t depth,
                                              const int16_t* weights, const StrassenSums& given) {
  static_assert(kStrassenTile == 2, "one row may be left");
  const int64_t rows = strassen_half_rows(block.rows);
  int64_t row = 0;
  for (; row + kStrassenTile <= rows; row += kStrassenTile)
    multiply_half<kStrassenTile>(block, codes, depth, weights, row, given);
  if (row < rows) multiply_half<1>(block, codes, depth, weights, row, given);
}

inline void gemm_strassen(const ProductBlock& block) {
  StrassenBuffers buffers;
  const auto* codes = reinterpret_cast<const int16_t*>(block.codes.data);
  const int64_t half = strassen_half_depth(block.depth), size = strassen_operand_size(block.rows, block.depth);
  const int64_t pieces = strassen_pieces(block.depth), quads = half / kQuad;
  int16_t *const operand = buffers.weights[0], *const t2 = buffers.weights[1];
  int32_t *const p0 = buffers.sums[4], *const u2 = buffers.sums[5], *const u3 = buffers.sums[6];
  int32_t* const u2_p4 = p0;  // which no product reads after U2
  for (int64_t piece = 0; piece < pieces; ++piece, codes += kStrassenProducts * size) {
    const int64_t first = 2 * quads * piece;
    const auto multiply = [&](int product, const int16_t* weights, const StrassenSums& sums) {
      multiply_halves(block, codes + product * size, half, weights, sums);
    };
    // The sums of a quarter of the block, with those of earlier pieces.
    const auto quarter = [&](int i, int j, const int32_t* more) {
      int32_t* const sums = buffers.sums[2 * i + j];
      return StrassenSums{{more, piece == 0 ? nullptr : sums},
                          piece + 1 < pieces ? sums : nullptr,
                          i,
                          j * kStrassenHalf,
                          nullptr,
                          nullptr};
    };
    form_weights<0>(block, first, quads, t2, operand);
    multiply(0, operand, {{nullptr, nullptr}, p0, 0, 0, nullptr, nullptr});
    form_weights<1>(block, first, quads, t2, operand);
    multiply(1, operand, quarter(0, 0, p0));
    form_weights<5>(block, first, quads, t2, t2);
    multiply(5, t2, {{p0, nullptr}, u2, 0, 0, nullptr, nullptr});
    form_weights<6>(block, first, quads, t2, operand);
    multiply(6, operand, {{u2, nullptr}, u3, 0, 0, nullptr, nullptr});
    form_weights<3>(block, first, quads, t2, operand);
    multiply(3, operand, quarter(1, 0, u3));
    form_weights<4>(block, first, quads, t2, operand);
    StrassenSums last = quarter(1, 1, u3);
    last.more_of_second = u2;
    last.second = u2_p4;
    multiply(4, operand, last);
    form_weights<2>(block, first, quads, t2, operand);
    multiply(2, operand, quarter(0, 1, u2_p4));
  }
}

constexpr StrassenKernels kStrassen = {strassen_form_codes, gemm_strassen};
