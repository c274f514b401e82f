// Packed weights of matrix products as stored panels: a part of compressed-inl.h.

constexpr int64_t kWeightColumns = 16;
constexpr int64_t kWeightVectors = kWeightColumns / V::kLanes;  // of a quad of a block of columns
constexpr int64_t kPanelPairs = 2 * kMaxPanelColumns;           // int16 of the pairs of all columns of a panel

// A zero point as the pair of one column.
inline int32_t pair_of_zero(const WeightPack& p, int32_t zp) {
  return static_cast<int32_t>((static_cast<uint32_t>(zp) & (p.bits == 4 ? 15 : 0xffff)) * 0x10001);
}

// Those of up to 16 columns and a group.
inline void zero_pairs(const WeightPack& p, int64_t group, int64_t first, V::I (&zeros)[kWeightVectors]) {
  if (p.zps == nullptr) {
    for (V::I& zero : zeros) zero = V::set1(pair_of_zero(p, p.zp));
    return;
  }
  const int8_t* const zps = p.zps + group * p.zps_stride + first;
  const int64_t count = p.cols - first < kWeightColumns ? p.cols - first : kWeightColumns;
  int32_t pairs[kWeightColumns] = {};
  for (int64_t i = 0; i < count; ++i) pairs[i] = pair_of_zero(p, zps[i]);
  memcpy(zeros, pairs, sizeof pairs);
}

// A group of a block of columns.
template <int kBits>
ORT_DYNQ_INLINE inline void widen_group(const int8_t* from, int64_t size, const V::I (&zeros)[kWeightVectors],
                                        int16_t* to) {
  constexpr int64_t kPairs = 16 / kBits;
  constexpr int64_t kPlaces[] = {0, kPairs / 2, 1, 3};  // of a vector; half_words() has them by bits
  for (int64_t k = 0; k < size; k += 2 * kPairs, to += kPairs * kPanelPairs)
#pragma GCC unroll 4
    for (int64_t v = 0; v < kWeightVectors; ++v, from += 4 * V::kLanes) {
      V::I words[kPairs];
      if constexpr (kBits == 4)
        V::half_words(V::load(static_cast<const void*>(from)), words);
      else
        V::byte_words(V::load(static_cast<const void*>(from)), words);
#pragma GCC unroll 4
      for (int i = 0; i < kPairs; ++i) {
        const V::I difference = V::sub16(words[i], zeros[v]);
        memcpy(to + kPlaces[i] * kPanelPairs + v * 2 * V::kLanes, &difference, sizeof difference);
      }
    }
}

template <int kBits>
void pack_blocks(const WeightPack& p) {
  for (int64_t first = 0; first < p.cols; first += kWeightColumns)
    for (int64_t group = 0; group < p.groups; ++group) {
      V::I zeros[kWeightVectors];
      zero_pairs(p, group, first, zeros);
      const int64_t k = group * p.group_size;
      widen_group<kBits>(p.packed + first / kWeightColumns * p.stride + k * kWeightColumns * kBits / 8, p.group_size,
                         zeros, p.panel + k * kMaxPanelColumns + 2 * first);
    }
}

void pack_weights(const WeightPack& p) { (p.bits == 4 ? pack_blocks<4> : pack_blocks<8>)(p); }
