// Matrix products of many rows by 8-bit weights of one group, for instruction sets without dot products of bytes.
// Codes and weights are widened to int16 once for all tiles that read them: the weights of 16 columns stay in the
// first-level cache for all rows, the codes in the second-level cache for all columns.

// Tiles of as many rows widen the weights themselves: a few tiles do not pay for a copy. Bits do not depend on it.
constexpr int64_t kRowsInPlace = 4 * kMaxRows;

// At once: rows of codes; quads, with weights of 24 KB as int16; and columns, with memory for their sums of a part of
// the quads: 140 KB of the stack of a thread, which has 512 KB or more.
constexpr int64_t kWideRows = 64, kWideQuads = 192, kWideColumns = 64;
constexpr int64_t kWideStride = kWideQuads * kWideQuad + 64;  // no power of two: rows would share cache sets
constexpr int64_t kWideVectorBytes = 2 * P::kLanes * kQuad;   // a quad of the weights of a vector

// The widened codes of the rows, the weights of 16 columns and the sums of earlier quads.
struct WideBuffers {
  alignas(kLine) uint8_t weights[kVectors][kWideQuads * kWideVectorBytes];
  uint8_t codes[kWideRows * kWideStride];
  int32_t sums[kWideColumns / kBlockColumns][kWideRows * kBlockColumns];
};

// What the exact sums of a tile have beside products: the zero points of rows times the sums of columns, and the sums
// of rows times the zero points of weights.
template <int kRows, int kSums>
inline void set_corrections(const ProductBlock& block, int64_t row, int64_t col, P::I (&sums)[kRows][kSums]) {
#pragma GCC unroll 8
  for (int v = 0; v < kSums; ++v) {
    const int64_t at = col + v * P::kLanes, left = block.cols - at;
    const auto column_sum = P::load_part(block.columns.sums + at, P::first(left));
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) sums[r][v] = P::mul(P::set1(-block.codes.zps[row + r]), column_sum);
    if (block.codes.sums == nullptr) continue;
    const auto zps =
        block.weights.zps == nullptr ? P::set1(block.weights.zp) : P::load_zps(block.weights.zps + at, left);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) sums[r][v] = P::sub(sums[r][v], P::mul(P::set1(block.codes.sums[row + r]), zps));
  }
}

struct WideTile {
  int64_t row, col, quads;
  const uint8_t* codes;
  const uint8_t (*weights)[kWideQuads * kWideVectorBytes];
  int32_t* sums;  // of earlier quads
  bool is_first, is_last;
};

template <int kRows>
void multiply_wide(const ProductBlock& block, const WideTile& tile) {
  typename P::I sums[kRows][kVectors];
  if (tile.is_first)
    set_corrections(block, tile.row, tile.col, sums);
  else
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v)
        sums[r][v] = P::load(static_cast<const void*>(tile.sums + r * kBlockColumns + v * P::kLanes));
  const auto weights = [&](int64_t quad, int v, int half) {
    return P::load(static_cast<const void*>(tile.weights[v] + (2 * quad + half) * P::kLanes * kQuad));
  };
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) add_pairs<kRows, 1>(tile.codes, kWideStride, tile.quads, v, weights, sums);
  if (tile.is_last) {
    typename P::F reals[kRows][kVectors];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) reals[r][v] = P::to_float(sums[r][v]);
    store_tile<true, 1>(block, tile.row, kRows, tile.col, kBlockColumns, reals);
  } else {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v)
        P::store(static_cast<void*>(tile.sums + r * kBlockColumns + v * P::kLanes), sums[r][v]);
  }
}

// `Type` is P: only a template may call a widen() that P does not have.

// `count` quads of the weights of 16 columns.
template <class Type = P>
inline void widen_weights(const int8_t* from, int64_t count, WideBuffers& buffers) {
  for (int64_t quad = 0; quad < count; ++quad)
#pragma GCC unroll 8
    for (int i = 0; i < 2 * kVectors; ++i)
      P::store(static_cast<void*>(buffers.weights[i / 2] + (2 * quad + i % 2) * P::kLanes * kQuad),
               Type::widen(from + quad * kBlockBytes + i * (P::kLanes / 2 * kQuad)));
}

// A part of the quads.
struct WidePart {
  int64_t first, count;
  bool is_first, is_last;
};

// Rows from `row` to `end` of 16 columns. `sums`: of earlier quads.
template <class Type = P>
inline void multiply_wide_rows(const ProductBlock& block, const WideBuffers& buffers, const WidePart& part, int64_t row,
                               int64_t end, int64_t col, int32_t* sums) {
  using Multiply = void (*)(const ProductBlock&, const WideTile&);
  constexpr Multiply kMultiply[] = {multiply_wide<1>, multiply_wide<2>, multiply_wide<3>,
                                    multiply_wide<4>, multiply_wide<5>, multiply_wide<6>};
  for (int64_t r = row; r < end;) {
    const int64_t left = end - r;
    const int64_t rows = left >= 2 * kMaxRows ? kMaxRows : left > kMaxRows ? (left + 1) / 2 : left;
    kMultiply[rows - 1](block, {r, col, part.count, buffers.codes + (r - row) * kWideStride, buffers.weights,
                                sums + (r - row) * kBlockColumns, part.is_first, part.is_last});
    r += rows;
  }
}

template <class Type = P>
void gemm_wide(const ProductBlock& block) {
  WideBuffers buffers;
  const auto parts_of = [](int64_t count, int64_t most) { return count <= most ? 1 : (count + most - 1) / most; };
  const int64_t quads = block.depth / kQuad, parts = parts_of(quads, kWideQuads);
  const int64_t row_parts = parts_of(block.rows, kWideRows);
  for (int64_t row_part = 0; row_part < row_parts; ++row_part) {
    const int64_t row = block.rows * row_part / row_parts, end = block.rows * (row_part + 1) / row_parts;
    for (int64_t first_col = 0; first_col < block.cols; first_col += kWideColumns)
      for (int64_t i = 0; i < parts; ++i) {
        const int64_t first = quads * i / parts;
        const WidePart part = {first, quads * (i + 1) / parts - first, i == 0, i == parts - 1};
        for (int64_t r = row; r < end && (first_col == 0 || parts > 1); ++r)
          Type::widen(block.codes.data + r * block.codes.stride + first * kQuad, part.count,
                      buffers.codes + (r - row) * kWideStride);
        for (int64_t col = first_col; col < block.cols && col < first_col + kWideColumns; col += kBlockColumns) {
          const int8_t* of_columns = block.weights.packed + col / kBlockColumns * block.weights.stride;
          widen_weights<Type>(of_columns + first * kBlockBytes, part.count, buffers);
          multiply_wide_rows<Type>(block, buffers, part, row, end, col,
                                   buffers.sums[(col - first_col) / kBlockColumns]);
        }
      }
  }
}
