// Products of words with codes as bytes, four of which are added to each lane: codes of 4 bits, and on CPUs that add
// products of whole bytes also those of 8 bits. compressed-inl.h comes before.
//
// A word is 256 * its high digit + its low one, both from -128 to 127. So codes are multiplied as they are stored:
// those of 8 bits as u8, of which one of s8 is 128 more, and those of 4 bits as the low and high halves of bytes.

constexpr int64_t kBytesOfVector = 4 * V::kLanes;
constexpr int kSignOfBytes = 128;

// The high and low digits of words[i * step].
inline void set_digits(const int16_t* words, int64_t step, int64_t count, int8_t* high, int8_t* low) {
  for (int64_t i = 0; i < count; ++i) {
    const auto word = static_cast<uint16_t>(words[i * step]);
    low[i] = static_cast<int8_t>(word);
    high[i] = static_cast<int8_t>(static_cast<uint16_t>(word + kHighByte / 2) >> 8);
  }
}

// The digits of words in the order of a vector of codes.
template <int kKind>
struct Digits {
  static constexpr int kParts = kKind == kHalves ? 2 : 1;
  int8_t high[kParts][kBytesOfVector], low[kParts][kBytesOfVector];

  // Bytes [first, first + count) of the vector are codes that are multiplied by words.
  void set(int64_t first, const int16_t* words, int64_t count) {
    for (int part = 0; part < kParts; ++part)
      set_digits(words + part, kParts, count, high[part] + first, low[part] + first);
  }
};

// `bytes` of the codes of each of the columns [column, column + kLanes), in kVectors, of which the last may be a part;
// kSplit groups are in each. sums[group] has those of the columns.
template <int kKind, int kSplit, int kVectors>
inline void bytes_of_columns(const WordProduct& p, const uint8_t* codes, int64_t stride, int64_t bytes, int64_t column,
                             const Digits<kKind> (&digits)[kVectors], V::I (&sums)[kSplit]) {
  constexpr int kParts = Digits<kKind>::kParts, kLast = kVectors - 1;
  static_assert(kVectors * kParts <= 8);  // as often as add_bytes may add
  const V::I flips = kKind == kS8 ? V::set1(static_cast<int32_t>(0x80808080u)) : V::set1(p.flipped % 16 * 0x01010101);
  V::I high[kVectors][kParts], low[kVectors][kParts], rows[V::kLanes];
  for (int v = 0; v < kVectors; ++v)
    for (int part = 0; part < kParts; ++part) {
      high[v][part] = V::load(static_cast<const void*>(digits[v].high[part]));
      low[v][part] = V::load(static_cast<const void*>(digits[v].low[part]));
    }
#pragma GCC unroll 16
  for (int64_t c = 0; c < V::kLanes; ++c) {
    const uint8_t* const from = codes + (column + c < p.cols ? column + c : column) * stride;
    V::I sums_of_high = V::set1(int32_t{0}), sums_of_low = sums_of_high;
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const uint8_t* const at = from + v * kBytesOfVector;
      const V::I all =
          v < kLast ? V::load(static_cast<const void*>(at)) : V::load_bytes(at, bytes - kLast * kBytesOfVector);
      V::I parts[2] = {all, all};
      if constexpr (kKind == kS8) parts[0] = V::flip(all, flips);
      if constexpr (kKind == kHalves) V::half_bytes(all, flips, parts);
#pragma GCC unroll 2
      for (int part = 0; part < kParts; ++part) {
        sums_of_high = V::add_bytes(sums_of_high, parts[part], high[v][part]);
        sums_of_low = V::add_bytes(sums_of_low, parts[part], low[v][part]);
      }
    }
    rows[c] = V::add(V::times_256(V::sums_of_bytes(sums_of_high)), V::sums_of_bytes(sums_of_low));
  }
  V::sum_parts(rows, sums);
}

// Groups [group, group + count), at most kSplit: all of them are in a vector, or one is in some vectors.
template <int kKind, int kSplit, int kVectors>
void bytes_of_groups(const WordProduct& p, int64_t group, int64_t count) {
  constexpr int kParts = Digits<kKind>::kParts;
  const int64_t of_group = p.depth / kParts, stride = p.code_stride / kParts;
  const auto* const codes = static_cast<const uint8_t*>(p.codes) + group * of_group;
  for (int64_t r = 0; r < p.rows; ++r) {
    Digits<kKind> digits[kVectors] = {};
    int32_t offsets[kSplit] = {};
    for (int64_t g = 0; g < count; ++g) {
      const int16_t* const words = p.words + (group + g) * p.group_words + r * p.word_stride;
      for (int64_t d = 0; d < of_group; d += kBytesOfVector)
        digits[d / kBytesOfVector].set(g * of_group, words + d * kParts,
                                       of_group - d < kBytesOfVector ? of_group - d : kBytesOfVector);
      if constexpr (kKind == kS8)
        for (int64_t d = 0; d < p.depth; ++d) offsets[g] += words[d] * kSignOfBytes;
    }
    for (int64_t c = 0; c < p.cols; c += V::kLanes) {
      V::I sums[kSplit];
      bytes_of_columns<kKind>(p, codes, stride, count * of_group, c, digits, sums);
      const int64_t cols = p.cols - c < V::kLanes ? p.cols - c : V::kLanes;
      for (int64_t g = 0; g < count; ++g) {
        int32_t* const to = p.sums + (group + g) * p.group_sums + r * p.sum_stride + c;
        const V::I of_columns = V::sub(sums[g], V::set1(offsets[g]));
        memcpy(to, &of_columns, static_cast<size_t>(cols) * sizeof(int32_t));
      }
    }
  }
}

// If groups are in vectors of kSplit, their sums.
template <int kKind, int kSplit>
bool multiplies_groups(const WordProduct& p) {
  if (p.groups == 1 || kSplit * p.depth != kBytesOfVector * Digits<kKind>::kParts) return false;
  for (int64_t g = 0; g < p.groups; g += kSplit)
    bytes_of_groups<kKind, kSplit, 1>(p, g, p.groups - g < kSplit ? p.groups - g : kSplit);
  return true;
}

// Codes of 8 bits in one group take words as fast.
template <CodeKind kKind>
void bytes_by_column(const WordProduct& p) {
  if (!multiplies_groups<kKind, 2>(p) && !multiplies_groups<kKind, 4>(p)) product_by_column<kKind>(p);
}

// Groups in as many vectors as they need.
template <int kVectors>
void halves_of_groups(const WordProduct& p) {
  constexpr int64_t kDepth = 2 * kBytesOfVector * kVectors;
  if constexpr (kDepth < kMaxProducts)
    if (p.depth > kDepth) return halves_of_groups<kVectors + 1>(p);
  for (int64_t g = 0; g < p.groups; ++g) bytes_of_groups<kHalves, 1, kVectors>(p, g, 1);
}

void half_bytes_by_column(const WordProduct& p) {
  if (multiplies_groups<kHalves, 2>(p)) return;
  if constexpr (V::kLanes == 16)
    if (multiplies_groups<kHalves, 4>(p)) return;
  halves_of_groups<1>(p);
}

constexpr int64_t kColumnsOfQuads = 2 * kBytesOfVector, kMaxColumnsOfQuads = 256;

// One row of words and kColumnsOfQuads columns of halves in rows: four rows of codes become quads of bytes. `Type` is
// V: only a template may call a dot_bytes() that V does not have.
template <class Type>
inline void half_quads(const WordProduct& p, const int8_t* high_digits, const int8_t* low_digits, int64_t column) {
  const V::I flips = V::set1(p.flipped % 16 * 0x01010101);
  V::I high[4][2], low[4][2];  // of four vectors of quads, their low and high halves
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) high[i / 2][i % 2] = low[i / 2][i % 2] = V::set1(int32_t{0});
  for (int64_t d = 0; d < p.depth; d += 4) {
    V::I codes[4], quads[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i)  // behind the last row, digits are 0
      codes[i] = V::load(static_cast<const void*>(
          codes_of_row<kHalves>(p.codes, p.code_stride, d + i < p.depth ? d + i : d) + column / 2));
    V::byte_quads(codes, quads);
    const V::I high_quad = V::set1(dynq::load(reinterpret_cast<const int32_t*>(high_digits + d)));
    const V::I low_quad = V::set1(dynq::load(reinterpret_cast<const int32_t*>(low_digits + d)));
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      V::I halves[2];
      V::half_bytes(quads[i], flips, halves);
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        high[i][half] = Type::dot_bytes(high[i][half], halves[half], high_quad);
        low[i][half] = Type::dot_bytes(low[i][half], halves[half], low_quad);
      }
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) low[i / 2][i % 2] = V::add(V::times_256(high[i / 2][i % 2]), low[i / 2][i % 2]);
  V::I sums[8];
  V::order_half_quads(low, sums);
  memcpy(p.sums + column, sums, sizeof sums);
}

// One row of words and `cols` columns of halves in rows, a multiple of kColumnsOfQuads: two rows of codes become pairs
// of bytes: their products are added in int16. Whole rows of codes are read, as in stream_by_row().
constexpr int64_t kBytePairs = 8;  // as often as add_byte_pairs may add

struct DigitPairs {
  int32_t high, low;  // each digit twice
};

ORT_DYNQ_ONE_COPY void set_digit_pairs(const WordProduct& p, DigitPairs* digits) {
  int8_t high[kMaxProducts] = {}, low[kMaxProducts] = {};
  const auto twice = [](const int8_t* pair) {
    return static_cast<int32_t>(dynq::load(reinterpret_cast<const uint16_t*>(pair)) * uint32_t{0x00010001});
  };
  set_digits(p.words, 1, p.depth, high, low);
  for (int64_t i = 0; i < p.depth; i += 2) digits[i / 2] = {twice(high + i), twice(low + i)};
}

// Prefetches a line that may be behind the last row: no pointer may be.
inline void prefetch_rows(const uint8_t* row, int64_t ahead) {
  const uintptr_t address = reinterpret_cast<uintptr_t>(row) + static_cast<uintptr_t>(ahead);
  ORT_DYNQ_PREFETCH(reinterpret_cast<const void*>(address));  // NOLINT(performance-no-int-to-ptr)
}

// Adds the products of kBytesOfVector bytes of two rows to sums in int16: of pairs in two vectors, their low and high
// halves.
template <int kKind>
ORT_DYNQ_INLINE inline void add_pair_of_rows(const uint8_t* first, const uint8_t* second, V::I flips,
                                             const DigitPairs& digits, V::I (&high)[2][2], V::I (&low)[2][2]) {
  constexpr bool kIsShifted = kKind == kShiftedHalves;  // then a second row begins with the high half of a byte
  const V::I high_pair = V::set1(digits.high), low_pair = V::set1(digits.low), none = V::set1(int32_t{0});
  const auto codes_at = [&](const uint8_t* row) ORT_DYNQ_INLINE_LAMBDA {
    const V::I codes = V::load(static_cast<const void*>(row));
    return V::flip(codes, flips);
  };
  const auto add = [&](int j, int half, V::I pairs) ORT_DYNQ_INLINE_LAMBDA {
    high[j][half] = V::add_byte_pairs(high[j][half], pairs, high_pair);
    low[j][half] = V::add_byte_pairs(low[j][half], pairs, low_pair);
  };
  V::I both[2], halves[2], others[2];
  if constexpr (kIsShifted) {
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      V::half_bytes(codes_at(first), none, halves);
      V::half_bytes(codes_at(second + half), none, others);
      V::zip_bytes_of_lanes(halves[half], others[1 - half], both[0], both[1]);
      add(0, half, both[0]);
      add(1, half, both[1]);
    }
  } else {
    V::zip_bytes_of_lanes(codes_at(first), codes_at(second), both[0], both[1]);
#pragma GCC unroll 2
    for (int j = 0; j < 2; ++j) {
      V::half_bytes(both[j], none, halves);
      add(j, 0, halves[0]);
      add(j, 1, halves[1]);
    }
  }
}

// Adds the sums of add_pair_of_rows(), 256 * `high` + `low`, to kColumnsOfQuads sums.
ORT_DYNQ_INLINE inline void add_digit_sums(const V::I (&high)[2][2], const V::I (&low)[2][2], int32_t* to) {
  const V::I digits_of_words = V::set1(0x01000001);
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    V::I words[2];
    V::zip_words_of_lanes(low[i / 2][i % 2], high[i / 2][i % 2], words[0], words[1]);
#pragma GCC unroll 2
    for (int k = 0; k < 2; ++k) {
      int32_t* const at = to + (2 * (i / 2 * 2 + k) + i % 2) * V::kLanes;
      store_sums(at, V::dot_words(V::load(static_cast<const void*>(at)), words[k], digits_of_words));
    }
  }
}

// Adds the products of `count` pairs of rows to the sums, which are not in order. The second row of the last pair is
// `last`.
template <int kKind>
void add_pairs_of_rows(const WordProduct& p, const uint8_t* codes, int64_t count, const uint8_t* last,
                       const DigitPairs* digits, int64_t cols) {
  const int64_t stride = p.code_stride, to_second = stride / 2;
  const int64_t ahead = cols > kMaxColumnsOfQuads ? kBytePairs * stride : 0;  // hardware prefetches short rows
  const V::I flips = flips_of(p), none = V::set1(int32_t{0});
  int32_t* to = p.sums;
  for (int64_t c = 0; c < cols; c += kColumnsOfQuads, to += kColumnsOfQuads, codes += kBytesOfVector) {
    V::I high[2][2], low[2][2];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) high[i / 2][i % 2] = low[i / 2][i % 2] = none;
    const uint8_t* first = codes;
#pragma GCC unroll 1
    for (int64_t i = 0; i < count; ++i, first += stride) {
      const uint8_t* const second = i + 1 < count ? first + to_second : last + c / 2;
      if (ahead > 0) {
        prefetch_rows(first, ahead);
        prefetch_rows(second, ahead);
      }
      add_pair_of_rows<kKind>(first, second, flips, digits[i], high, low);
    }
    add_digit_sums(high, low, to);
  }
}

template <int kKind>
void half_pairs_by_row(const WordProduct& p, int64_t cols) {
  const auto* const codes = static_cast<const uint8_t*>(p.codes);
  const int64_t pairs = (p.depth + 1) / 2;
  DigitPairs digits[kMaxProducts / 2];
  set_digit_pairs(p, digits);
  memset(p.sums, 0, static_cast<size_t>(cols) * sizeof(int32_t));
  for (int64_t i = 0; i < pairs; i += kBytePairs) {
    const int64_t count = pairs - i < kBytePairs ? pairs - i : kBytePairs, last = 2 * (i + count) - 1;
    add_pairs_of_rows<kKind>(p, codes + i * p.code_stride, count,
                             last < p.depth ? codes_of_row<kKind>(codes, p.code_stride, last)
                                            : no_second_row<kKind>(codes, p.code_stride, codes),
                             digits + i, cols);
  }
  for (int64_t c = 0; c < cols; c += kColumnsOfQuads) {
    V::I sums[4][2], ordered[8];
    memcpy(sums, p.sums + c, sizeof sums);
    V::order_half_quads(sums, ordered);
    memcpy(p.sums + c, ordered, sizeof ordered);
  }
}

template <class Type>
ORT_DYNQ_ONE_COPY void half_quads_by_row(const WordProduct& p) {
  int8_t high[kMaxProducts] = {}, low[kMaxProducts] = {};
  set_digits(p.words, 1, p.depth, high, low);
  for (int64_t c = 0; c < p.cols; c += kColumnsOfQuads) half_quads<Type>(p, high, low, c);
}

// Quads pay if a CPU adds the products of whole bytes, for columns with sums that stay in registers.
template <bool kInQuads, class Type = V>
void half_bytes_by_row(const WordProduct& p) {
  const int64_t whole = p.cols / kColumnsOfQuads * kColumnsOfQuads;
  if (p.rows > 1 || 4 * (p.cols - whole) > whole) return halves_product_by_row(p);  // a long rest takes words, too
  const bool is_shifted = p.code_stride % 2 != 0 && p.depth > 1;
  if constexpr (kInQuads)
    if (whole == p.cols && whole <= kMaxColumnsOfQuads && !is_shifted) return half_quads_by_row<Type>(p);
  is_shifted ? half_pairs_by_row<kShiftedHalves>(p, whole) : half_pairs_by_row<kHalves>(p, whole);
  if (whole == p.cols) return;
  WordProduct rest = p;
  rest.codes = static_cast<const uint8_t*>(p.codes) + whole / 2;
  rest.sums += whole;
  rest.cols -= whole;
  halves_product_by_row(rest);
}

constexpr CompressedKernels with_half_bytes(CompressedKernels kernels) {
  kernels.by_column[kHalves] = half_bytes_by_column;
  kernels.by_row[kHalves] = half_bytes_by_row<false>;
  kernels.panels_of_keys = kernels.panels_of_values = true;
  return kernels;
}

// If dot_bytes takes codes of 8 bits, too.
template <class Type = V>
constexpr CompressedKernels with_bytes(CompressedKernels kernels) {
  if constexpr (V::kLanes == 16) {
    kernels.by_column[kU8] = bytes_by_column<kU8>;
    kernels.by_column[kS8] = bytes_by_column<kS8>;
  }
  kernels = with_half_bytes(kernels);
  kernels.by_row[kHalves] = half_bytes_by_row<true, Type>;
  kernels.panels_of_keys = false;
  return kernels;
}
