// Matrix products and convolutions by Strassen's algorithm, for instruction sets that multiply int16: avx2_products.cc
// includes this file after conv-inl.h.
//
// Winograd's form of the algorithm computes C = A B, of halves in both directions, by 7 products and 15 additions:
//
//   P0 = A11 B11                 P4 = S1 T1, S1 = A21 + A22, T1 = B12 - B11     C11 = P0 + P1
//   P1 = A12 B21                 P5 = S2 T2, S2 = S1 - A11,  T2 = B22 - T1      U2 = P0 + P5, U3 = U2 + P6
//   P2 = S4 B22, S4 = A12 - S2   P6 = S3 T3, S3 = A11 - A21, T3 = B22 - B12     C12 = U2 + P4 + P2
//   P3 = A22 T4, T4 = B21 - T2                                                  C21 = U3 + P3, C22 = U3 + P4
//
// In a matrix product, A are codes and B weights. In a convolution, A are weights and B codes, so that channels of the
// output are rows. A is formed once for all columns. B is formed just before its product reads it, so it stays in the
// first-level cache.
// A product begins with the sums that its result is added to: no pass over results of its own adds them.

constexpr int64_t kStrassenHalf = kStrassenColumns / 2;
constexpr int kStrassenVectors = kStrassenHalf / P::kLanes;
constexpr int kStrassenTile = 2;  // rows

// Operands of B are [steps][quads][columns][2], and those of A [rows][steps][quads][2]: the even bytes of each quad are
// in the first step, the odd ones in the second. 120 KB of the stack of a thread, which has 512 KB or
// more.
struct StrassenBuffers {
  alignas(kLine) int16_t columns[2][kStrassenHalf * kStrassenDepth];
  alignas(kLine) int32_t sums[7][kStrassenRows / 2 * kStrassenHalf];
};

// Bytes of codes or weights as int16.
struct StrassenCodes {
  template <int kStep>
  static P::I widen(P::I quads) {
    return P::codes_of<kStep>(quads);
  }
};
struct StrassenWeights {
  template <int kStep>
  static P::I widen(P::I quads) {
    return P::weights_of<kStep>(quads);
  }
};

template <class Type, int kStep>
inline void form_row_operands(const P::I (&quarters)[2][2], int64_t size, int16_t* to) {
  const auto a11 = Type::template widen<kStep>(quarters[0][0]), a12 = Type::template widen<kStep>(quarters[0][1]),
             a21 = Type::template widen<kStep>(quarters[1][0]), a22 = Type::template widen<kStep>(quarters[1][1]);
  const auto s1 = P::add16(a21, a22), s2 = P::sub16(s1, a11);
  const typename P::I operands[] = {a11, a12, P::sub16(a12, s2), a22, s1, s2, P::sub16(a11, a21)};
#pragma GCC unroll 8
  for (int i = 0; i < kStrassenProducts; ++i) P::store(static_cast<void*>(to + i * size), operands[i]);
}

// Forms row `row` of the operands of A, which has half as many rows. load(i, k) is a vector of row i from k on.
template <class Type, class Load>
inline void form_row(int64_t rows, int64_t depth, int64_t row, const Load& load, int16_t* to) {
  constexpr int64_t kBytes = P::kLanes * kQuad;
  static_assert(kBytes == kStrassenUnit, "half of the k of a piece is a number of vectors");
  const int64_t half = strassen_half_depth(depth), size = strassen_operand_size(rows, depth);
  to += row * half;
  for (int64_t first = 0; first < depth; first += 2 * half, to += kStrassenProducts * size)
    for (int64_t k = 0; k < half; k += kBytes) {
      typename P::I quarters[2][2];
#pragma GCC unroll 2
      for (int i = 0; i < 2; ++i)
#pragma GCC unroll 2
        for (int j = 0; j < 2; ++j) {
          const int64_t at = i * strassen_half_rows(rows) + row, of_row = first + j * half + k;
          quarters[i][j] = at < rows && of_row < depth ? load(at, of_row) : P::set1(0);
        }
      form_row_operands<Type, 0>(quarters, size, to + k / 2);
      form_row_operands<Type, 1>(quarters, size, to + half / 2 + k / 2);
    }
}

inline void strassen_form_codes(const uint8_t* codes, int64_t stride, int64_t rows, int64_t depth, int64_t row,
                                int16_t* to) {
  const auto load = [&](int64_t i, int64_t k) {
    const uint8_t* from = codes + i * stride + k;
    if (k + kStrassenUnit <= depth) return P::load(static_cast<const void*>(from));
    uint8_t last[kStrassenUnit] = {};
    memcpy(last, from, static_cast<size_t>(depth - k));
    return P::load(static_cast<const void*>(last));
  };
  form_row<StrassenCodes>(rows, depth, row, load, to);
}

inline void strassen_form_channel(const int8_t* packed, int64_t stride, int64_t channels, int64_t depth, int64_t row,
                                  int16_t* to) {
  const auto load = [&](int64_t channel, int64_t k) {
    const int8_t* from =
        packed + channel / kBlockColumns * stride + k / kQuad * kBlockBytes + channel % kBlockColumns * kQuad;
    int8_t quads[kStrassenUnit];
    if (k + kStrassenUnit <= depth) {
#pragma GCC unroll 8
      for (int64_t quad = 0; quad < P::kLanes; ++quad) memcpy(quads + quad * kQuad, from + quad * kBlockBytes, kQuad);
    } else {
      memset(quads, 0, sizeof quads);
      for (int64_t i = k; i < depth; i += kQuad) memcpy(quads + i - k, from + (i - k) * kBlockColumns, kQuad);
    }
    return P::load(static_cast<const void*>(quads));
  };
  form_row<StrassenWeights>(channels, depth, row, load, to);
}

// One vector of each quarter of B.
struct StrassenQuarters {
  P::I b11, b12, b21, b22;
};

// The second operand of a product. That of product 3 is formed from that of product 5, T2.
template <class Type, int kProduct, int kStep>
inline P::I column_operand(const StrassenQuarters& given, const int16_t* t2) {
  const auto b11 = Type::template widen<kStep>(given.b11), b12 = Type::template widen<kStep>(given.b12);
  const auto b21 = Type::template widen<kStep>(given.b21), b22 = Type::template widen<kStep>(given.b22);
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

// A product of matrices. A task has its rows, B, and what becomes of the sums.
struct StrassenProduct : StrassenWeights {
  const ProductBlock& block;

  explicit StrassenProduct(const ProductBlock& given) : block(given) {}
  int64_t rows() const { return block.rows; }
  int64_t depth() const { return block.depth; }
  const void* columns(int64_t quad, int64_t col) const {
    return block.weights.packed + col / kBlockColumns * block.weights.stride + quad * kBlockBytes +
           col % kBlockColumns * kQuad;
  }

  template <int kRows>
  void finish(int64_t row, int64_t col, const P::I (&sums)[kRows][kStrassenVectors]) const {
    typename P::I corrections[kRows][kStrassenVectors];
    typename P::F reals[kRows][kStrassenVectors];
    set_corrections(block, row, col, corrections);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
      for (int v = 0; v < kStrassenVectors; ++v) reals[r][v] = P::to_float(P::add(sums[r][v], corrections[r][v]));
    store_vectors(block, row, col, reals);
  }
};

// A convolution: rows are channels, and columns are positions.
struct StrassenConv : StrassenCodes {
  const ConvBlock& block;

  explicit StrassenConv(const ConvBlock& given) : block(given) {}
  int64_t rows() const { return block.channels; }
  int64_t depth() const { return block.input.quads * kQuad; }
  const void* columns(int64_t quad, int64_t col) const {
    return block.input.image + block.input.offsets[quad] + col * kQuad;
  }

  template <int kRows>
  void finish(int64_t channel, int64_t position, const P::I (&sums)[kRows][kStrassenVectors]) const {
    static_assert(!C::kSignedCodes, "sums of codes as they are");
    const auto lowest = C::set1(block.scaling.lowest), highest = C::set1(block.scaling.highest);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const ConvChannel of_channel(block, channel + r, 0);
      float* dst = block.output.dst + (channel + r) * block.output.channel_stride + position;
#pragma GCC unroll 8
      for (int v = 0; v < kStrassenVectors; ++v) {
        const int64_t at = v * P::kLanes;
        auto sum = C::add(sums[r][v], C::set1(of_channel.correction));
        if (has_zero_points(block.weights))
          sum = C::sub(sum, C::mul(C::set1(of_channel.zp),
                                   C::load(static_cast<const void*>(block.scratch.code_sums + position + at))));
        const auto real = C::add(
            C::mul(C::mul(C::to_float(sum), C::set1(of_channel.factors.first)), C::set1(of_channel.factors.second)),
            C::set1(of_channel.bias));
        C::store(dst + at, C::min(highest, C::max(lowest, real)));
      }
    }
  }
};

// Forms an operand of the columns of `quads` quads from `first` on, and of as many after them.
template <int kProduct, class Task>
ORT_DYNQ_ONE_COPY void form_columns(const Task& task, int64_t first, int64_t quads, const int16_t* t2, int16_t* to) {
  constexpr bool kHas11 = kProduct == 0 || kProduct == 4 || kProduct == 5, kHas12 = kProduct >= 4,
                 kHas21 = kProduct == 1 || kProduct == 3, kHas22 = kProduct == 2 || kProduct >= 5;
  const int64_t left = task.depth() / kQuad - first, step_size = quads * kStrassenHalf * 2;
  for (int64_t block = 0; block < kStrassenHalf; block += kBlockColumns)
    for (int64_t quad = 0; quad < quads; ++quad)
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        const int64_t col = block + v * P::kLanes, at = (quad * kStrassenHalf + col) * 2;
        const auto load = [&](bool is_used, int64_t i, int64_t from) {
          return is_used && i < left ? P::load(task.columns(first + i, from)) : P::set1(0);
        };
        const StrassenQuarters given = {load(kHas11, quad, col), load(kHas12, quad, col + kStrassenHalf),
                                        load(kHas21, quads + quad, col),
                                        load(kHas22, quads + quad, col + kStrassenHalf)};
        P::store(static_cast<void*>(to + at), column_operand<Task, kProduct, 0>(given, t2 + at));
        P::store(static_cast<void*>(to + step_size + at),
                 column_operand<Task, kProduct, 1>(given, t2 + step_size + at));
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

// kRows rows of a product, from `row` on.
template <int kRows, class Task>
inline void multiply_half(const Task& task, const int16_t* rows, int64_t depth, const int16_t* columns, int64_t row,
                          const StrassenSums& given) {
  const auto* of_rows = reinterpret_cast<const uint8_t*>(rows + row * depth);
  const int64_t stride = depth * static_cast<int64_t>(sizeof(int16_t));
  typename P::I sums[kRows][kStrassenVectors] = {};
#pragma GCC unroll 4
  for (int64_t pair = 0; pair < depth / 2; ++pair) {
    typename P::I c[kRows];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) c[r] = P::quad(of_rows + r * stride + pair * kQuad);
#pragma GCC unroll 8
    for (int v = 0; v < kStrassenVectors; ++v) {
      const auto w = P::load(static_cast<const void*>(columns + (pair * kStrassenHalf + v * P::kLanes) * 2));
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
  const int64_t of_block = given.half_row * strassen_half_rows(task.rows()) + row;
  if (of_block + kRows <= task.rows()) {
    task.finish(of_block, given.col, sums);
  } else if (of_block < task.rows()) {  // the last row of the tile is padding
    typename P::I first[1][kStrassenVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kStrassenVectors; ++v) first[0][v] = sums[0][v];
    task.finish(of_block, given.col, first);
  }
}

template <class Task>
ORT_DYNQ_ONE_COPY void multiply_halves(const Task& task, const int16_t* rows, int64_t depth, const int16_t* columns,
                                       const StrassenSums& given) {
  static_assert(kStrassenTile == 2, "one row may be left");
  const int64_t count = strassen_half_rows(task.rows());
  int64_t row = 0;
  for (; row + kStrassenTile <= count; row += kStrassenTile)
    multiply_half<kStrassenTile>(task, rows, depth, columns, row, given);
  if (row < count) multiply_half<1>(task, rows, depth, columns, row, given);
}

// `rows`: the operands of A.
template <class Task>
void multiply_strassen(const Task& task, const int16_t* rows) {
  StrassenBuffers buffers;
  const int64_t half = strassen_half_depth(task.depth()), size = strassen_operand_size(task.rows(), task.depth());
  const int64_t pieces = strassen_pieces(task.depth()), quads = half / kQuad;
  int16_t *const operand = buffers.columns[0], *const t2 = buffers.columns[1];
  int32_t *const p0 = buffers.sums[4], *const u2 = buffers.sums[5], *const u3 = buffers.sums[6];
  int32_t* const u2_p4 = p0;  // which no product reads after U2
  for (int64_t piece = 0; piece < pieces; ++piece, rows += kStrassenProducts * size) {
    const int64_t first = 2 * quads * piece;
    const auto multiply = [&](int product, const int16_t* columns, const StrassenSums& sums) {
      multiply_halves(task, rows + product * size, half, columns, sums);
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
    form_columns<0>(task, first, quads, t2, operand);
    multiply(0, operand, {{nullptr, nullptr}, p0, 0, 0, nullptr, nullptr});
    form_columns<1>(task, first, quads, t2, operand);
    multiply(1, operand, quarter(0, 0, p0));
    form_columns<5>(task, first, quads, t2, t2);
    multiply(5, t2, {{p0, nullptr}, u2, 0, 0, nullptr, nullptr});
    form_columns<6>(task, first, quads, t2, operand);
    multiply(6, operand, {{u2, nullptr}, u3, 0, 0, nullptr, nullptr});
    form_columns<3>(task, first, quads, t2, operand);
    multiply(3, operand, quarter(1, 0, u3));
    form_columns<4>(task, first, quads, t2, operand);
    StrassenSums last = quarter(1, 1, u3);
    last.more_of_second = u2;
    last.second = u2_p4;
    multiply(4, operand, last);
    form_columns<2>(task, first, quads, t2, operand);
    multiply(2, operand, quarter(0, 1, u2_p4));
  }
}

inline void gemm_strassen(const ProductBlock& block) {
  multiply_strassen(StrassenProduct(block), reinterpret_cast<const int16_t*>(block.codes.data));
}

inline void conv_strassen(const ConvBlock& block, const int16_t* operands) {
  multiply_strassen(StrassenConv(block), operands);
}

constexpr StrassenKernels kStrassen = {strassen_form_codes, gemm_strassen, strassen_form_channel, conv_strassen};
