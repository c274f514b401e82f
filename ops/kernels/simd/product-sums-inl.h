// Matrix products that need the sums of the weights and do not have them.

// A group is a number of units of kGroupUnit k.
constexpr int kUnitQuads = kGroupUnit / kQuad;
constexpr int64_t kUnitBytes = kUnitQuads * kBlockBytes;  // of 8-bit weights of 16 columns

// The sums of the codes of one group of two or more quads of 2-bit or 4-bit weights, as dot4 takes them. Bytes of up to
// kPairs pairs of quads, which are kUnits units, are added first: they stay below 128.
constexpr int64_t kPairs = 4, kUnits = kPairs * 2 / kUnitQuads;
struct NibbleSums {
  P::I bytes = P::set1(0), sums = P::set1(0);

  void add(P::I low, P::I high) { bytes = P::add(bytes, P::add(low, high)); }
  void flush() {
    constexpr uint8_t kOnesOfQuad[kQuad] = {1, 1, 1, 1};
    const auto ones = P::quad(kOnesOfQuad);
    if constexpr (P::kSteps == 1)
      sums = P::dot(sums, ones, bytes);
    else
      sums = P::dot4(sums, ones, ones, bytes, P::set1(0));
    bytes = P::set1(0);
  }
};

// The weights of a unit of four quads, at `from`: 4 bits take two lines of kBlockBytes, 2 bits take one.
template <int kBits>
inline void unit_of_weights(const int8_t* from, P::I (&quads)[4]) {
  if constexpr (kBits == 2) {
    P::quarters(from, quads);
  } else {
    P::halves(from, P::set1(0), quads[0], quads[1]);
    P::halves(from + kBlockBytes, P::set1(0), quads[2], quads[3]);
  }
}

// The address of a vector of weights of kBlocks blocks, `at` bytes after their first ones.
template <int kBlocks>
ORT_DYNQ_INLINE inline const int8_t* weights_at(const Weights<kBlocks>& weights, int64_t at, int v) {
  return weights.of[v / kVectors] + at + v % kVectors * P::kLanes * kQuad;
}

// One unit of weights of 2 or 4 bits.
template <int kBits, int kRows, int kSums, int kBlocks>
ORT_DYNQ_INLINE inline void sum_unit(const uint8_t* codes, int64_t stride, const Weights<kBlocks>& weights, int64_t at,
                                     P::I (&sums)[2][kRows][kSums], NibbleSums (&nibbles)[kSums]) {
  typename P::Quad c[kRows][kUnitQuads];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int i = 0; i < kUnitQuads; ++i) c[r][i] = P::quad(codes + r * stride + i * kQuad);
#pragma GCC unroll 8
  for (int v = 0; v < kSums; ++v) {
    typename P::I w[kUnitQuads];
    prefetch_ahead<kBits / 2>(weights_at(weights, at, v));
    unit_of_weights<kBits>(weights_at(weights, at, v), w);
    nibbles[v].add(w[0], w[1]);
    nibbles[v].add(w[2], w[3]);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      sums[0][r][v] = P::dot4(sums[0][r][v], c[r][0], c[r][1], w[0], w[1]);
      sums[1][r][v] = P::dot4(sums[1][r][v], c[r][2], c[r][3], w[2], w[3]);
    }
  }
}

// One quad of weights of 8 bits.
template <int kRows, int kSums, int kBlocks>
ORT_DYNQ_INLINE inline void sum_quad(const uint8_t* codes, int64_t stride, const Weights<kBlocks>& weights, int64_t at,
                                     P::I (&sums)[kRows][kSums], P::I (&of_weights)[kSums]) {
  constexpr uint8_t kOnesOfQuad[kQuad] = {1, 1, 1, 1};
  const auto ones = P::quad(kOnesOfQuad);
#pragma GCC unroll 8
  for (int v = 0; v < kSums; ++v) {
    prefetch_ahead<1>(weights_at(weights, at, v));
    const auto w = P::template weights_of<0>(P::load(static_cast<const void*>(weights_at(weights, at, v))));
    of_weights[v] = P::dot(of_weights[v], ones, w);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) sums[r][v] = P::dot(sums[r][v], P::quad(codes + r * stride), w);
  }
}

// One group of up to two rows: adds the products to two halves of `sums`, and sets the sums of the weights.
template <int kBits, int kRows, int kSums, int kBlocks>
inline void sum_group(const uint8_t* codes, int64_t stride, const Weights<kBlocks>& weights, int64_t at, int64_t units,
                      P::I (&sums)[2][kRows][kSums], P::I (&of_weights)[kSums]) {
  if constexpr (kBits < 8) {
    NibbleSums nibbles[kSums];
    for (int64_t unit = 0; unit < units;) {
      const int64_t end = units - unit < kUnits ? units : unit + kUnits;
      for (; unit < end; ++unit, at += kUnitBytes * kBits / 8, codes += kUnitQuads * kQuad)
        sum_unit<kBits>(codes, stride, weights, at, sums, nibbles);
#pragma GCC unroll 8
      for (int v = 0; v < kSums; ++v) nibbles[v].flush();
    }
#pragma GCC unroll 8
    for (int v = 0; v < kSums; ++v) of_weights[v] = nibbles[v].sums;
  } else {
    typename P::I parts[2][kSums] = {};
    for (int64_t pair = 0; pair < 2 * units; ++pair)
#pragma GCC unroll 2
      for (int i = 0; i < 2; ++i, at += kBlockBytes, codes += kQuad)
        sum_quad(codes, stride, weights, at, sums[i], parts[i]);
#pragma GCC unroll 8
    for (int v = 0; v < kSums; ++v) of_weights[v] = P::add(parts[0][v], parts[1][v]);
  }
}

// The same for weights of 2 and 4 bits if P::kSteps is 2: subtracts the sums of the weights times the zero points of
// rows. The products of four quads are added as int16, (code - zp) * weight: eight of them are within 255 * 15 * 8 =
// 30600. `zps` are those of the group, zps_stride apart. `Type` is P: only a template may call functions that P does
// not have.
template <int kBits, int kRows, int kSums, int kBlocks, class Type = P>
inline void sum_group_words(const uint8_t* codes, int64_t stride, const Weights<kBlocks>& weights, int64_t at,
                            int64_t units, const int32_t* zps, int64_t zps_stride, P::I (&sums)[kRows][kSums]) {
  constexpr int kAtOnce = kRows == 1 ? kSums : 2;  // the sums and codes of more do not fit the registers
  static_assert(kSums % kAtOnce == 0, "parts of as many vectors");
#pragma GCC unroll 8
  for (int first = 0; first < kSums; first += kAtOnce)
    for (int64_t unit = 0; unit < units; ++unit) {
      typename P::Quad c[kRows][kUnitQuads];
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
        for (int i = 0; i < kUnitQuads; ++i) c[r][i] = P::quad(codes + r * stride + (unit * kUnitQuads + i) * kQuad);
#pragma GCC unroll 8
      for (int v = first; v < first + kAtOnce; ++v) {
        const int8_t* const from = weights.of[v / kVectors] + at + unit * kUnitBytes * kBits / 8;
        if (v % kVectors == 0) prefetch_ahead<kBits / 2>(from);
        typename P::I w[kUnitQuads];
        unit_of_weights<kBits>(from + v % kVectors * P::kLanes * kQuad, w);
        const auto of_weights = P::add(P::add(w[0], w[1]), P::add(w[2], w[3]));  // of bytes, up to 60
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
          const auto zp = Type::same_bytes(zps[r * zps_stride]);
          const auto first_words = Type::add16(Type::words(c[r][0], w[0]), Type::words(c[r][1], w[1]));
          const auto other_words = Type::add16(Type::words(c[r][2], w[2]), Type::words(c[r][3], w[3]));
          const auto words = Type::sub16(Type::add16(first_words, other_words), Type::words(zp, of_weights));
          sums[r][v] = P::add(sums[r][v], Type::sum_words(words));
        }
      }
    }
}

template <int kBits>
inline P::I zps_of(P::I zps, P::I offset) {
  return kBits < 8 ? P::low_nibbles(zps) : P::add(zps, offset);
}

// Prefetches the scales of columns, which vary with the group, of kBlocks blocks that are `gap` apart: those of the
// next blocks in this group, from `first` columns ahead to `end`, and those of a later group.
template <int kBlocks>
inline ORT_DYNQ_INLINE void prefetch_scales(const ProductBlock& block, const uint16_t* halves, const float* scales,
                                            int64_t group, int64_t gap, int64_t first, int64_t end) {
  const auto prefetch = [&](int64_t at) ORT_DYNQ_INLINE_LAMBDA {
    if (halves == nullptr)
      prefetch_at(scales, at);
    else
      prefetch_at(halves, at);
  };
  for (int64_t ahead = first; ahead < end; ahead += kBlockColumns)
    for (int64_t b = 0; b < kBlocks; ++b) prefetch(b * gap + ahead);
  for (int64_t b = 0; b < kBlocks && group + kGroupsAhead < block.groups; ++b)
    prefetch(b * gap + kGroupsAhead * block.columns.scales_stride);
}

// What the sums of rows and a group need. bases: the sums of the codes minus the zero points.
template <int kRows>
struct RowsOfGroup {
  typename P::F zps[kRows], bases[kRows], scales[kRows];

  ORT_DYNQ_INLINE void read(const ProductBlock& block, int64_t group, int64_t parameter, int64_t units) {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const int32_t zp = block.codes.zps[r * block.codes.scale_groups + parameter];
      const int32_t code_sum = block.codes.sums[r * block.groups + group];
      zps[r] = P::set1(static_cast<float>(zp));
      bases[r] = P::set1(static_cast<float>(code_sum - zp * static_cast<int32_t>(kGroupUnit * units)));
      scales[r] = P::set1(block.codes.scales[r * block.codes.scale_groups + parameter]);
    }
  }
};

// Stores the floats of kBlocks blocks that are `gap` apart, with the remaining scales and the bias.
template <int kBlocks, int kRows, int kSums>
inline ORT_DYNQ_INLINE void store_blocks(const ProductBlock& block, int64_t col, int64_t gap,
                                         const typename P::F (&reals)[kRows][kSums]) {
  float stored[kBlocks][kRows][kBlockColumns];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < kSums; ++v) P::store(stored[v / kVectors][r] + v % kVectors * P::kLanes, reals[r][v]);
  for (int b = 0; b < kBlocks; ++b) store_block(block, 0, kRows, col + b * gap, stored[b][0]);
}

// One or two rows of weights in groups, for blocks with a row of ones. The zero points of the weights are not
// subtracted from every weight, but from the sums:
//
//   exact = sum of code * weight - zp * sum of weights - (sum of codes - size * zp) * weight_zp
//
// All of these are integers below 2^24, so floats have them exactly: size is at most kMaxSummedLength. If weights of 8
// bits are unsigned, weight and weight_zp are both 128 larger.
template <int kBits>
constexpr int kWeightOffset = kBits == 8 && P::kUnsignedWeights ? 128 : 0;
template <int kBits>
constexpr int64_t kMaxSummedLength = kBits < 8 ? kMax2BitGroup : 256;
static_assert(int64_t{255} * 15 * kMax2BitGroup < 1 << 24 && int64_t{255} * 255 * 256 < 1 << 24, "they are below 2^24");
static_assert(kMaxJoinedLength <= kMaxSummedLength<8>, "one row of two terms and a row of ones never take gemm_tile()");

// The exact sum of two terms, of sums that are exact as floats.
ORT_DYNQ_INLINE inline P::F joined(P::F first, P::F second) { return P::fnmadd(P::set1(-kTermRatio), first, second); }

// use(r, exact) takes the exact sum of each row, or of two terms in place of the first of two rows.
template <int kRows, class ExactOf, class Use>
ORT_DYNQ_INLINE inline void use_exact_sums(bool joins, const ExactOf& exact_of, const Use& use) {
  if constexpr (kRows == 2)
    if (joins) return use(0, joined(exact_of(0), exact_of(1)));
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) use(r, exact_of(r));
}

// Adds the floats of a vector of columns and a group. kInWords: the zero points of the rows are off the sums already.
template <bool kInWords, int kRows, int kSums>
ORT_DYNQ_INLINE inline void add_real_sums(const RowsOfGroup<kRows>& rows, bool row_varies, bool joins,
                                          const typename P::I (&sums)[2][kRows][kSums], int v, P::F column_sum, P::F zp,
                                          P::F column_scale, typename P::F (&reals)[kRows][kSums]) {
  const auto exact_of = [&](int r) ORT_DYNQ_INLINE_LAMBDA {
    auto exact = P::to_float(kInWords ? sums[0][r][v] : P::add(sums[0][r][v], sums[1][r][v]));
    if (!kInWords) exact = P::fnmadd(rows.zps[r], column_sum, exact);
    return P::fnmadd(rows.bases[r], zp, exact);
  };
  use_exact_sums<kRows>(joins, exact_of, [&](int r, P::F exact) ORT_DYNQ_INLINE_LAMBDA {
    const auto term = P::mul(exact, column_scale);
    reals[r][v] = P::add(reals[r][v], row_varies ? P::mul(term, rows.scales[r]) : term);
  });
}

// The addresses of the scales of columns and zero points of weights of a group: float16 scales or, if `halves` is null,
// floats, and zero points if there are some.
struct GemvColumns {
  const uint16_t* halves;
  const float* scales;
  const int8_t* zps;

  template <bool kIsPlain>
  ORT_DYNQ_INLINE static GemvColumns first(const ProductBlock& block, int64_t col) {
    const int8_t* zps = block.weights.zps == nullptr ? nullptr : block.weights.zps + col;
    if (kIsPlain || block.columns.halves != nullptr) return {block.columns.halves + col, nullptr, zps};
    return {nullptr, block.columns.scales + col, zps};
  }

  // kIsPlain: whole vectors of float16.
  template <bool kIsPlain>
  ORT_DYNQ_INLINE P::F scales_at(int64_t at, int64_t left, P::Mask mask) const {
    if (kIsPlain) return P::load_f16(reinterpret_cast<const uint8_t*>(halves + at));
    return halves != nullptr ? load_halves(halves + at, left) : P::load_part(scales + at, mask);
  }

  ORT_DYNQ_INLINE void move_to_next_group(const ProductBlock& block) {
    const int64_t step = block.columns.scale_groups > 1 ? block.columns.scales_stride : 0;
    if (zps != nullptr) zps += block.weights.zps_stride;
    if (halves != nullptr)
      halves += step;
    else
      scales += step;
  }
};

// The columns of the scales that are prefetched, from column `col` of the first block; others are `gap` columns on.
struct ColumnsAhead {
  int64_t first, end;

  ColumnsAhead(int64_t col, int64_t gap) : first((col == 0 ? 1 : 4) * kBlockColumns) {
    const bool is_fourth = col / kBlockColumns % 4 == 0;  // as in gemm_tile()
    end = is_fourth ? 8 * kBlockColumns : 0;
    if (col + end >= gap) end = gap - col;
  }
};

template <int kBits, int kRows, bool kIsPlain>
void gemv_tile(const ProductBlock& block, int64_t col, int64_t gap) {
  constexpr int kBlocks = 2, kSums = kBlocks * kVectors, kOffset = kWeightOffset<kBits>;
  constexpr bool kInWords = kBits < 8 && P::kSteps == 2;
  const Weights<kBlocks> weights(block, col, gap);
  const auto column = [&](int v) { return v / kVectors * gap + v % kVectors * P::kLanes; };  // of a vector, from col
  const int64_t units = block.depth / kGroupUnit / block.groups;
  const bool row_varies = block.codes.scale_groups > 1, column_varies = block.columns.scale_groups > 1;
  GemvColumns columns = GemvColumns::first<kIsPlain>(block, col);
  const auto zp = static_cast<float>(kBits < 8 ? block.weights.zp & 15 : block.weights.zp + kOffset);
  typename P::Mask masks[kSums];
  typename P::F reals[kRows][kSums], zps[kSums];
#pragma GCC unroll 8
  for (int v = 0; v < kSums; ++v) {
    masks[v] = P::first(block.cols - col - column(v));
    zps[v] = P::set1(zp);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) reals[r][v] = P::set1(-0.0f);
  }
  const ColumnsAhead ahead(col, gap);
  int64_t at = 0;
  const uint8_t* codes = block.codes.data;
  for (int64_t group = 0; group < block.groups; ++group) {
    if (column_varies)
      prefetch_scales<kBlocks>(block, columns.halves, columns.scales, group, gap, ahead.first, ahead.end);
    const int64_t parameter = row_varies ? group : 0;
    typename P::I sums[2][kRows][kSums] = {}, sums_of_weights[kSums];
    if constexpr (kInWords)
      sum_group_words<kBits>(codes, block.codes.stride, weights, at, units, block.codes.zps + parameter,
                             block.codes.scale_groups, sums[0]);
    else
      sum_group<kBits>(codes, block.codes.stride, weights, at, units, sums, sums_of_weights);
    at += units * kUnitBytes * kBits / 8;
    codes += units * kGroupUnit;
    RowsOfGroup<kRows> rows;
    rows.read(block, group, parameter, units);
#pragma GCC unroll 8
    for (int v = 0; v < kSums; ++v) {
      const int64_t left = kIsPlain ? P::kLanes : block.cols - col - column(v);
      if (columns.zps != nullptr)
        zps[v] = P::to_float(zps_of<kBits>(P::load_zps(columns.zps + column(v), left), P::set1(kOffset)));
      const auto column_sum = kInWords ? P::set1(0.0f) : P::to_float(sums_of_weights[v]);
      const auto column_scale = columns.template scales_at<kIsPlain>(column(v), left, masks[v]);
      add_real_sums<kInWords>(rows, row_varies, block.joins_terms, sums, v, column_sum, zps[v], column_scale, reals);
    }
    columns.move_to_next_group(block);
  }
  store_blocks<kBlocks>(block, col, gap, reals);
}

// What the sums of a row and a group need, in the order in which gemv_whole() reads it.
struct RowTerms {
  float zp, base, scale;  // base: the sum of the codes minus the zero points
};

// One unit of whole blocks that are `between` bytes apart: adds the products to two halves of `sums`, and of the
// weights 8-bit ones to two halves of `of_weights`, others to `bytes`.
template <int kBits, int kRows, int kBlocks>
ORT_DYNQ_INLINE inline void sum_whole_unit(const uint8_t* codes, int64_t stride, const int8_t* w, int64_t between,
                                           typename P::I (&sums)[2][kRows][kBlocks],
                                           typename P::I (&of_weights)[2][kBlocks], typename P::I (&bytes)[kBlocks]) {
  constexpr uint8_t kOnesOfQuad[kQuad] = {1, 1, 1, 1};
  const auto ones = P::quad(kOnesOfQuad);
  typename P::I quads[kBlocks][kUnitQuads];
#pragma GCC unroll 8
  for (int b = 0; b < kBlocks; ++b) {
    prefetch_ahead<kBits / 2>(w + b * between);
    if constexpr (kBits < 8) {
      unit_of_weights<kBits>(w + b * between, quads[b]);
      bytes[b] = P::add(bytes[b], P::add(P::add(quads[b][0], quads[b][1]), P::add(quads[b][2], quads[b][3])));
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kUnitQuads; ++i) {
    if constexpr (kBits == 8)
#pragma GCC unroll 8
      for (int b = 0; b < kBlocks; ++b) {
        quads[b][i] = P::load(static_cast<const void*>(w + b * between + i * kLine));
        ORT_DYNQ_OPAQUE(quads[b][i]);  // GCC would load it again for each row
        of_weights[i % 2][b] = P::dot(of_weights[i % 2][b], ones, quads[b][i]);
      }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const auto c = P::quad(codes + r * stride + i * kQuad);
#pragma GCC unroll 8
      for (int b = 0; b < kBlocks; ++b) sums[i % 2][r][b] = P::dot(sums[i % 2][r][b], c, quads[b][i]);
    }
  }
}

// One group of whole blocks that are `between` bytes apart: adds the products to two halves of `sums`, and the sums of
// the weights to those of `of_weights`. Moves `codes` and `w` to the next group.
template <int kBits, int kRows, int kBlocks>
inline ORT_DYNQ_INLINE void sum_whole_group(const uint8_t*& codes, const uint8_t* end_of_codes, int64_t stride,
                                            const int8_t*& w, int64_t between, typename P::I (&sums)[2][kRows][kBlocks],
                                            typename P::I (&of_weights)[2][kBlocks]) {
  constexpr uint8_t kOnesOfQuad[kQuad] = {1, 1, 1, 1};
  while (codes != end_of_codes) {
    typename P::I bytes[kBlocks] = {};
    const uint8_t* const end_of_bytes =
        kBits == 8 || end_of_codes - codes < kUnits * kGroupUnit ? end_of_codes : codes + kUnits * kGroupUnit;
    for (; codes != end_of_bytes; codes += kGroupUnit, w += kBits / 2 * kLine)
      sum_whole_unit<kBits>(codes, stride, w, between, sums, of_weights, bytes);
    if constexpr (kBits < 8)
#pragma GCC unroll 8
      for (int b = 0; b < kBlocks; ++b) of_weights[0][b] = P::dot(of_weights[0][b], P::quad(kOnesOfQuad), bytes[b]);
  }
}

// As gemv_tile() for two whole blocks with scales of float16 that vary with the group, if a vector has the sums of a
// block: all that a group needs is in registers or at one of few addresses.
template <int kBits, int kRows, bool kHasZps>
inline void gemv_whole(const ProductBlock& block, int64_t col, int64_t gap, const RowTerms* terms) {
  constexpr int kBlocks = 2;
  const int8_t* w = block.weights.packed + col / kBlockColumns * block.weights.stride;
  const int64_t between = gap / kBlockColumns * block.weights.stride;  // from the first block to the other one
  const uint16_t* halves = block.columns.halves + col;
  const int64_t halves_step = block.columns.scales_stride;
  const int8_t* zps = kHasZps ? block.weights.zps + col : nullptr;
  const int64_t zps_step = block.weights.zps_stride, stride = block.codes.stride;
  const uint8_t* codes = block.codes.data;
  const int64_t units = block.depth / kGroupUnit / block.groups;
  const auto zp = P::set1(static_cast<float>(kBits < 8 ? block.weights.zp & 15 : block.weights.zp));
  typename P::F reals[kRows][kBlocks];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int b = 0; b < kBlocks; ++b) reals[r][b] = P::set1(-0.0f);
  for (const RowTerms* const end = terms + kRows * block.groups; terms != end; terms += kRows) {
    // Hardware does not prefetch the next line of a row of scales, which two blocks share.
#pragma GCC unroll 8
    for (int b = 0; b < kBlocks; ++b) prefetch_at(halves, b * gap + 2 * kBlockColumns);
    typename P::I sums[2][kRows][kBlocks] = {}, of_weights[2][kBlocks] = {};
    sum_whole_group<kBits>(codes, codes + units * kGroupUnit, stride, w, between, sums, of_weights);
#pragma GCC unroll 8
    for (int b = 0; b < kBlocks; ++b) {
      const auto column_sum = P::to_float(kBits == 8 ? P::add(of_weights[0][b], of_weights[1][b]) : of_weights[0][b]);
      const auto scale = P::load_f16(reinterpret_cast<const uint8_t*>(halves + b * gap));
      const auto weight_zp =
          kHasZps ? P::to_float(zps_of<kBits>(P::load_zps(zps + b * gap, P::kLanes), P::set1(0))) : zp;
      const auto exact_of = [&](int r) ORT_DYNQ_INLINE_LAMBDA {
        auto exact = P::to_float(P::add(sums[0][r][b], sums[1][r][b]));
        exact = P::fnmadd(P::set1(terms[r].zp), column_sum, exact);
        return P::fnmadd(P::set1(terms[r].base), weight_zp, exact);
      };
      use_exact_sums<kRows>(block.joins_terms, exact_of, [&](int r, P::F exact) ORT_DYNQ_INLINE_LAMBDA {
        reals[r][b] = P::add(reals[r][b], P::mul(P::mul(exact, scale), P::set1(terms[r].scale)));
      });
    }
    halves += halves_step;
    if (kHasZps) zps += zps_step;
  }
  store_blocks<kBlocks>(block, col, gap, reals);
}
