// Panels of attention over compressed keys and values on tiles: a part of amx.cc, which includes this file. Other
// kernels of it, and panels of few rows, are those of avx512vnni_compressed.cc.
//
// A word is kHighByte * its high digit + its low one, both from -128 to 127, and so is an element of a panel: sums of
// products of digits are exact in tiles of bytes with signs. A panel has quads of four rows: of each quad, the low
// digits of all columns, then the high ones, which nothing reads if all elements fit int8.
//
// One product multiplies two tiles of words, the low and the high digits of 16 rows, by two tiles of a panel: the low
// digits of 32 columns, or the low and the high digits of 16. The four tiles of sums are stored to memory, and
// converted to floats after the next product, as in tile-groups-inl.h.

constexpr int64_t kPanelRows = 16;  // all tiles of a panel, of 4 to 16 quads, have the same size
constexpr int64_t kDigitsBytes = kQuad * kMaxPanelColumns, kPanelQuadBytes = 2 * kDigitsBytes;
static_assert(kMaxPanelColumns == kPair && kMaxProducts % kPanelRows == 0);

// Panels of more rows are multiplied on tiles: they take half of the time (decisions.md).
constexpr int64_t kMaxRowsOfPairs = 32;

using Words = int16_t __attribute__((vector_size(64)));
using Digits = int8_t __attribute__((vector_size(32)));
using Codes = uint8_t __attribute__((vector_size(32)));
constexpr int64_t kVectorWords = 32;
static_assert(kVectorWords == kMaxPanelColumns);

inline bool has_pairs(int64_t panel_stride) { return panel_stride <= kMaxRowsOfPairs * kMaxPanelColumns; }

// Up to kVectorWords elements; those from `count` on are 0.
template <class Vector, class T>
inline Vector load_vector(const T* from, int64_t count) {
  return count < kVectorWords ? load_columns<Vector, kPart>(from, count) : load_columns<Vector, kWhole>(from, count);
}

template <int kKind>
inline Words load_elements(const void* from, int64_t index, int64_t count) {
  if constexpr (kKind == kWords)
    return load_vector<Words>(static_cast<const int16_t*>(from) + index, count);
  else if constexpr (kKind == kU8)
    return __builtin_convertvector(load_vector<Codes>(static_cast<const uint8_t*>(from) + index, count), Words);
  else
    return __builtin_convertvector(load_vector<Digits>(static_cast<const int8_t*>(from) + index, count), Words);
}

inline void store_digits(Words words, void* low, void* high) {
  const Digits low_digits = __builtin_convertvector(words, Digits);
  const Digits high_digits = __builtin_convertvector((words + kHighByte / 2) >> 8, Digits);
  __builtin_memcpy(low, &low_digits, sizeof low_digits);
  __builtin_memcpy(high, &high_digits, sizeof high_digits);
}

// The digits of the elements of rows `d` to `d` + 3 and up to kMaxPanelColumns columns from `first` on; zeros behind
// the last row. `zeros`: the zero points of the columns.
template <int kKind>
inline void digits_of_quad(const PanelPack& p, int64_t d, int64_t first, Words zeros,
                           uint8_t (&digits)[2][kQuad][kMaxPanelColumns]) {
  const bool has_row_zeros = kKind != kWords && p.zero_points != nullptr && p.of_column == 0;
  for (int64_t i = 0; i < kQuad; ++i) {
    Words elements = {};
    if (d + i < p.depth) {
      if (has_row_zeros) {
        const uint8_t zero = p.zero_points[(d + i) * p.of_row];
        zeros = Words{} + static_cast<int16_t>(kKind == kS8 ? static_cast<int8_t>(zero) : int16_t{zero});
      }
      elements = load_elements<kKind>(p.codes, (d + i) * p.code_stride + first, p.cols - first) - zeros;
    }
    store_digits(elements, digits[0][i], digits[1][i]);
  }
}

template <int kKind>
void pack_digits(const PanelPack& p) {
  if (has_pairs(p.panel_stride)) return kAvx512VnniCompressed.pack[kKind](p);
  const bool has_column_zeros = kKind != kWords && p.zero_points != nullptr && p.of_column != 0;
  for (int64_t first = 0; first < p.cols; first += kMaxPanelColumns) {
    auto* to = reinterpret_cast<uint8_t*>(p.panels + first / kMaxPanelColumns * p.panel_stride);
    Words zeros = {};
    if (has_column_zeros) zeros = load_elements<kKind>(p.zero_points, first, p.cols - first);
    for (int64_t d = 0; d < p.depth; d += kQuad, to += kPanelQuadBytes) {
      uint8_t digits[2][kQuad][kMaxPanelColumns];
      digits_of_quad<kKind>(p, d, first, zeros, digits);
      for (int64_t i = 0; i < (p.fits_int8 ? 1 : 2); ++i)
        kAvx512VnniProducts.interleave_quads({digits[i][0], digits[i][1], digits[i][2], digits[i][3]}, kMaxPanelColumns,
                                             0, to + i * kDigitsBytes);
    }
  }
}

// The digits of 16 rows of words, padded with zeros.
struct WordDigits {
  alignas(64) int8_t low[kTileRows][kMaxProducts] = {}, high[kTileRows][kMaxProducts] = {};

  template <bool kIsSplit>
  void set(const PanelProduct& p, const int16_t* words, int64_t rows) {
    for (int64_t r = 0; r < rows; ++r, words += (kIsSplit ? 2 : 1) * p.word_stride)
      for (int64_t d = 0; d < p.depth; d += kVectorWords) {
        Words vector = load_vector<Words>(words + d, p.depth - d);
        if (kIsSplit) vector = vector * kHighByte + load_vector<Words>(words + p.word_stride + d, p.depth - d);
        store_digits(vector, low[r] + d, high[r] + d);
      }
    use_memory(this);
  }
};

// Writes [low and high digits of words][16 rows][digits at `first`, at `second`][16 columns].
inline void multiply_digits(const WordDigits& words, const int8_t* first, const int8_t* second, int64_t quads,
                            int64_t tile_quads, uint32_t* sums) {
  zero_sums();
  for (int64_t quad = 0; quad < quads; quad += tile_quads) {
    const int8_t *const low = words.low[0] + quad * kQuad, *const high = words.high[0] + quad * kQuad;
    _tile_loadd(6, first + quad * kPanelQuadBytes, kPanelQuadBytes);
    _tile_loadd(7, second + quad * kPanelQuadBytes, kPanelQuadBytes);
    _tile_loadd(4, low, kMaxProducts);
    _tile_dpbssd(0, 4, 6);
    _tile_dpbssd(1, 4, 7);
    _tile_loadd(5, high, kMaxProducts);
    _tile_dpbssd(2, 5, 6);
    _tile_dpbssd(3, 5, 7);
  }
  store_sums<2, 2>(sums);
}

inline Floats joined(Sums high, Sums low) {
  using HalfInts = int32_t __attribute__((vector_size(32)));
  using HalfFloats = float __attribute__((vector_size(32)));
  using Doubles = double __attribute__((vector_size(64)));
  HalfInts highs[2], lows[2];
  HalfFloats halves[2];
  __builtin_memcpy(highs, &high, sizeof high);
  __builtin_memcpy(lows, &low, sizeof low);
  for (int i = 0; i < 2; ++i)
    halves[i] = __builtin_convertvector(
        __builtin_convertvector(highs[i], Doubles) * kHighByte + __builtin_convertvector(lows[i], Doubles), HalfFloats);
  Floats both;
  __builtin_memcpy(&both, halves, sizeof both);
  return both;
}

enum Elements { kInt8, kInt9, kInt16 };  // kInt16: words are split

// The scores of rows from `row` on and up to 16 columns from `column` on of a group.
template <Elements kElements, Store kStore>
void score_block(const PanelScores& block, int64_t group, int64_t row, int64_t rows, int64_t column,
                 const uint32_t* sums) {
  const int64_t count = block.product.cols - column;
  const float* const steps = block.steps + group * block.group_steps + row;
  const Floats scales = block.scales == nullptr
                            ? kOnes
                            : load_columns<Floats, kStore>(block.scales + group * block.group_scales + column, count);
  const bool adds = block.adds || group > 0;
  float* to = block.scores + row * block.score_stride + column;
  for (int64_t r = 0; r < rows; ++r, sums += kPair, to += block.score_stride) {
    const auto of_digits = [&](int64_t of_word, int64_t of_element) {
      return load_columns<Sums, kWhole>(sums + of_word * kTileRows * kPair + of_element * kBlockColumns, kBlockColumns);
    };
    const Sums low = of_digits(0, 0);
    Sums high = of_digits(1, 0);
    if (kElements != kInt8) high += of_digits(0, 1) + of_digits(1, 1) * kHighByte;
    const Floats sum = kElements == kInt16
                           ? joined(high, low)
                           : __builtin_convertvector(reinterpret_cast<Ints>(high * kHighByte + low), Floats);
    const Floats score = block.scales_first ? sum * scales * steps[r] : sum * steps[r] * scales;
    store_columns<kStore>(to, adds ? load_columns<Floats, kStore>(to, count) + score : score, count);
  }
}

// The scores of columns from `column` to `end`, 16 at once. `sums`: of the first one.
template <Elements kElements>
void score_blocks(const PanelScores& block, int64_t group, int64_t row, int64_t rows, int64_t column, int64_t end,
                  const uint32_t* sums) {
  for (; column < end; column += kBlockColumns, sums += kBlockColumns)
    (end - column < kBlockColumns ? score_block<kElements, kPart> : score_block<kElements, kWhole>)(block, group, row,
                                                                                                    rows, column, sums);
}

// Quads of a panel, of which a tile has tile_quads.
struct PanelQuads {
  int64_t count, tile_quads;
};

// The scores of up to 16 rows of digits and all columns of a group. Sums become floats beside the products of the next
// columns.
template <Elements kElements>
void multiply_group_panels(const PanelScores& block, const PanelQuads& quads, const WordDigits& words, int64_t group,
                           int64_t row, int64_t rows, uint32_t (&sums)[2][kPair * kPair]) {
  constexpr int64_t kColumns = kElements == kInt8 ? kPair : kBlockColumns;
  const PanelProduct& p = block.product;
  const auto sums_at = [&](int64_t column) { return sums[column / kColumns % 2]; };
  const auto* const panels = reinterpret_cast<const int8_t*>(p.panels + group * block.group_panels);
  for (int64_t column = 0; column < p.cols + kColumns; column += kColumns) {
    if (column < p.cols) {
      const int8_t* const low =
          panels + column / kMaxPanelColumns * p.panel_stride * 2 + column % kMaxPanelColumns * kQuad;
      const int8_t* const second = low + (kElements == kInt8 ? kTileBytes : kDigitsBytes);
      multiply_digits(words, low, second, quads.count, quads.tile_quads, sums_at(column));
    }
    if (const int64_t last = column - kColumns; last >= 0)
      score_blocks<kElements>(block, group, row, rows, last, p.cols < column ? p.cols : column, sums_at(last));
  }
}

template <Elements kElements>
void multiply_panels(const PanelScores& block, const PanelQuads& quads) {
  constexpr bool kIsSplit = kElements == kInt16;
  constexpr int64_t kWordRows = kIsSplit ? 2 : 1;
  const PanelProduct& p = block.product;
  WordDigits words;
  alignas(64) uint32_t sums[2][kPair * kPair];
  for (int64_t row = 0; row < p.rows / kWordRows; row += kTileRows) {
    const int64_t rows = p.rows / kWordRows - row < kTileRows ? p.rows / kWordRows - row : kTileRows;
    for (int64_t group = 0; group < block.groups; ++group) {
      words.set<kIsSplit>(p, p.words + group * block.group_words + row * kWordRows * p.word_stride, rows);
      multiply_group_panels<kElements>(block, quads, words, group, row, rows, sums);
    }
  }
}

void panel_scores(const PanelScores& block) {
  const PanelProduct& p = block.product;
  if (p.is_stored || has_pairs(p.panel_stride)) return kAvx512VnniCompressed.panel_scores(block);
  const int64_t quads = (p.depth + kPanelRows - 1) / kPanelRows * (kPanelRows / kQuad);
  int64_t tiles = 1;
  while (quads % tiles != 0 || quads / tiles > kTileRows) ++tiles;
  const int64_t tile_quads = quads / tiles;
  const TileConfiguration configuration = configuration_of(tile_quads * kQuad);
  const TileConfiguration before = configure_tiles(configuration);
  (block.is_split ? multiply_panels<kInt16>
   : p.fits_int8  ? multiply_panels<kInt8>
                  : multiply_panels<kInt9>)(block, {quads, tile_quads});
  restore_tiles(before, configuration);
}

// As functions, for the reason that amx.cc gives.
template <int kKind>
void by_row(const WordProduct& p) {
  kAvx512VnniCompressed.by_row[kKind](p);
}
template <int kKind>
void by_column(const WordProduct& p) {
  kAvx512VnniCompressed.by_column[kKind](p);
}
void quantize_words(const WordRows& rows) { kAvx512VnniCompressed.quantize_words(rows); }
template <int kKind>
void scores(const ScoreBlock& block) {
  kAvx512VnniCompressed.scores[kKind](block);
}
void pack_weights(const WeightPack& pack) { kAvx512VnniCompressed.pack_weights(pack); }
float powers(const PowerRow& row) { return kAvx512VnniCompressed.powers(row); }

constexpr CompressedKernels compressed_kernels() {
  return {{by_row<kU8>, by_row<kS8>, by_row<kWords>, by_row<kHalves>},
          {by_column<kU8>, by_column<kS8>, by_column<kWords>, by_column<kHalves>},
          quantize_words,
          {scores<kU8>, scores<kS8>},
          powers,
          kMaxPanelColumns,
          kPanelRows,
          kTileRows,
          {pack_digits<kU8>, pack_digits<kS8>, pack_digits<kWords>},
          panel_scores,
          pack_weights};
}
