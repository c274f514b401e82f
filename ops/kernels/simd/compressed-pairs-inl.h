// Pairs of words of codes and rows, which all products of compressed-inl.h multiply: a part of it.

constexpr int64_t kPairColumns = 2 * V::kLanes;  // also of a panel
static_assert(kMaxPanelColumns % kPairColumns == 0);
constexpr int kTileRows = 6;                 // of words, with two vectors of sums each
constexpr int kShiftedHalves = kHalves + 1;  // by row: the second row of each pair begins within a byte

inline V::I pair_of_words(const int16_t* words, int64_t count) {  // the second word is 0 if count < 2
  int32_t pair = static_cast<int32_t>(static_cast<uint16_t>(words[0]));
  if (count >= 2) memcpy(&pair, words, sizeof pair);
  return V::set1(pair);
}

inline void store_sums(int32_t* to, V::I sums) { memcpy(to, &sums, sizeof sums); }

template <int kKind>
constexpr int64_t bytes_of(int64_t codes) {
  return kKind == kWords ? 2 * codes : kKind >= kHalves ? codes / 2 : codes;
}

template <int kKind>
inline V::I words_at(const uint8_t* codes, [[maybe_unused]] V::I flips) {
  if constexpr (kKind == kHalves)
    return V::words_of_halves(codes, flips);
  else if constexpr (kKind == kWords)
    return V::load(static_cast<const void*>(codes));
  else
    return V::words<static_cast<CodeKind>(kKind)>(codes);
}

// The pairs of 2 * kLanes columns, in the order that in_order() changes to that of the columns.
template <int kKind>
inline void pairs_at(const uint8_t* first, const uint8_t* second, [[maybe_unused]] V::I flips, V::I& low, V::I& high) {
  if constexpr (kKind >= kHalves)
    V::half_pairs<kKind == kShiftedHalves>(first, second, flips, low, high);
  else if constexpr (kKind == kWords)
    V::zip_words(V::load(static_cast<const void*>(first)), V::load(static_cast<const void*>(second)), low, high);
  else
    V::word_pairs<static_cast<CodeKind>(kKind)>(first, second, low, high);
}

template <int kKind>
inline void in_order(V::I& low, V::I& high) {
  if constexpr (kKind >= kHalves)
    V::zip_lanes(low, high);
  else if constexpr (kKind != kWords)
    V::order_pairs(low, high);
}

inline V::I flips_of(const WordProduct& p) { return V::set1(static_cast<int32_t>(p.flipped * 0x01010101u)); }

// Row d of codes.
template <int kKind>
inline const uint8_t* codes_of_row(const void* codes, int64_t stride, int64_t d) {
  return static_cast<const uint8_t*>(codes) + bytes_of<kKind>(d * stride);
}

// What takes the place of a second row after the last one, `first`: a row that may be read as a second one.
template <int kKind>
inline const uint8_t* no_second_row(const void* codes, int64_t stride, const uint8_t* first) {
  return kKind == kShiftedHalves ? codes_of_row<kKind>(codes, stride, 1) : first;
}

inline V::F numbers_at(const float* x, int64_t i, int64_t count) {
  return i + V::kLanes <= count ? V::load(x + i) : V::load_part(x + i, count - i);
}
