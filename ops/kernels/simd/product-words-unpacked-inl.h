// Matrix products of many rows by 4-bit weights, for instruction sets that add two products of bytes in int16:
// product-inl.h includes this file after product-words-inl.h. The weights of some groups and 16
// columns are unpacked once, to bytes minus 8, which stay in the first-level cache for all rows, as scales and sums of
// columns do. Other zero points than 8 come off the sums. Sums of columns that the block does not have are made of the
// unpacked weights: that takes a sixth of the time of sum_columns(), which unpacks them again.

// More rows of one scale by weights with zero points of 8 than product-words-inl.h multiplies as fast, and the fewest
// others.
constexpr int64_t kMinUnpackedRows = 32, kMinOtherRows = 12;
static_assert(kMinOtherRows == kMinSummingRows, "such blocks may have no sums of columns");

// Groups are unpacked together up to kQuadsAtOnce; longer ones are unpacked one by one.
constexpr int64_t kUnpackedQuads = 1024, kQuadsAtOnce = 128;
static_assert(kUnpackedQuads * kQuad == kMaxSummedGroup, "such a group fits");
constexpr int64_t kUnpackedRows = 128;  // at once: their floats wait for further groups

// Blocks of these functions have up to 16 columns.

inline void unpack_quads(const int8_t* packed, int64_t quads, int8_t* to) {
  const auto zps = P::zps4(P::set1(8));
  for (int64_t quad = 0; quad < quads; quad += 2, packed += kBlockBytes, to += 2 * kBlockBytes) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      const int64_t at = v * P::kLanes * kQuad;
      typename P::I low, high;
      P::halves(packed + at, zps, low, high);
      P::store(static_cast<void*>(to + at), low);
      P::store(static_cast<void*>(to + kBlockBytes + at), high);
    }
  }
}

// Sets the sums of the columns of unpacked weights.
template <class Type = P>
inline void sum_unpacked_columns(const int8_t* weights, int64_t count, int64_t quads, int32_t (*to)[kBlockColumns]) {
  const auto ones = Type::same_bytes(1);
  for (int64_t group = 0; group < count; ++group)
    for (int64_t done = 0; done < quads; done += kChain) {
      typename P::I words[kVectors] = {};
      const int64_t end = quads - done < kChain ? quads - done : kChain;
      for (int64_t quad = 0; quad < end; ++quad, weights += kBlockBytes)
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v)
          words[v] =
              Type::dot_words(words[v], ones, P::load(static_cast<const void*>(weights + v * P::kLanes * kQuad)));
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        void* const at = to[group] + v * P::kLanes;
        const auto sum = Type::sum_words(words[v]);
        P::store(at, done == 0 ? sum : P::add(P::load(static_cast<const void*>(at)), sum));
      }
    }
}

ORT_DYNQ_INLINE inline void load_two_quads(const int8_t* weights, P::I (&low)[kVectors], P::I (&high)[kVectors]) {
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
    low[v] = P::load(static_cast<const void*>(weights + v * P::kLanes * kQuad));
    high[v] = P::load(static_cast<const void*>(weights + kBlockBytes + v * P::kLanes * kQuad));
  }
}

// Sets the sums of `count` groups from `first` on: their weights are unpacked. The first tile of rows prefetches the
// packed weights `ahead`, which are unpacked next: hardware does not read them while it multiplies. `Type` is P: only a
// template may call functions that P does not have.
template <int kRows, class Type = P>
ORT_DYNQ_ONE_COPY void sum_unpacked(const ProductBlock& block, int64_t row, int64_t first, int64_t count,
                                    const int8_t* weights, const int8_t* ahead, GroupSums<kRows>* to) {
  const int64_t stride = block.codes.stride, quads = block.depth / kQuad / block.groups;
  auto address = reinterpret_cast<uintptr_t>(ahead);  // no pointer: it leaves the weights behind the last groups
  const uintptr_t address_step = row == 0 ? kBlockBytes : 0;
  const uint8_t* codes = block.codes.data + row * stride + first * quads * kQuad;
  for (int64_t group = 0; group < count; ++group) {
    for (int64_t done = 0; done < quads; done += kChain) {
      typename P::I words[kRows][kVectors];
      const auto add_next_quads = [&](bool is_first) ORT_DYNQ_INLINE_LAMBDA {
        ORT_DYNQ_PREFETCH(reinterpret_cast<const void*>(address));  // NOLINT(performance-no-int-to-ptr)
        address += address_step;
        typename P::I low[kVectors], high[kVectors];
        load_two_quads(weights, low, high);
        add_two_quads<kRows, Type>(codes, stride, low, high, is_first, words);
        codes += 2 * kQuad;
        weights += 2 * kBlockBytes;
      };
      add_next_quads(true);
      const int64_t end = quads - done < kChain ? quads - done : kChain;
      for (int64_t quad = 2; quad < end; quad += 2) add_next_quads(false);
      // As in product-words-inl.h: as one function of both, the words leave the registers, which costs a fifth.
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) {
          void* const at = to[group][r] + v * P::kLanes;
          const auto sum = Type::sum_words(words[r][v]);
          P::store(at, done == 0 ? sum : P::add(P::load(static_cast<const void*>(at)), sum));
        }
    }
  }
}

// The sums lack, by zero points of rows and of weights:
//
//   exact = sum - zp of the row * sum of the column - sum of the row's codes * (zp of the weights - 8)
//
// In floats, all of it is exact for groups of up to kMaxTileGroup k, if sums of columns are within
// kUnpackedColumnSum.
constexpr int32_t kUnpackedColumnSum = 1 << 15;
static_assert(int64_t{255} * kUnpackedColumnSum + int64_t{2} * 255 * 8 * kMaxTileGroup <= 1 << 24, "exact as floats");
static_assert(15 * kMaxTileGroup <= kUnpackedColumnSum, "sums of weights minus zero points");

// Longer groups are corrected in int32. `T` is float or int32_t.
template <class T>
constexpr bool kIsFloat = static_cast<T>(0.5f) != 0;

inline void store_as(float* to, P::I a) { P::store(to, P::to_float(a)); }
inline void store_as(int32_t* to, P::I a) { P::store(static_cast<void*>(to), a); }
template <class T>
inline void copy_as(const int32_t* from, int64_t count, T* to) {
  int64_t i = 0;
  for (; i + P::kLanes <= count; i += P::kLanes) store_as(to + i, P::load(static_cast<const void*>(from + i)));
  for (; i < count; ++i) to[i] = static_cast<T>(from[i]);
}

// The scales of 16 columns of a group, 1 if they do not vary, their sums, and their zero points minus 8. Rows of a
// matrix with a power of two columns share cache sets, so these are copied to adjacent lines.
template <class T>
struct ColumnGroup {
  alignas(kLine) float scales[kBlockColumns];
  T sums[kBlockColumns], zps[kBlockColumns];
};

// The columns of the next block.
inline void prefetch_groups(const ProductBlock& block, int64_t first, int64_t count) {
  for (int64_t group = first; group < first + count; ++group) {
    if (block.columns.sums != nullptr)
      prefetch_at(block.columns.sums, group * block.columns.sums_stride + kBlockColumns);
    if (block.columns.scale_groups > 1)
      prefetch_at(block.columns.scales, group * block.columns.scales_stride + kBlockColumns);
  }
}

// The bits that some lane has.
inline uint32_t bits_of_lanes(P::I vector) {
  int32_t lanes[P::kLanes];
  P::store(static_cast<void*>(lanes), vector);
  uint32_t any = 0;
  for (const int32_t lane : lanes) any |= static_cast<uint32_t>(lane);
  return any;
}

// Returns whether the sums are within the bound. `made` has the sums of the unpacked weights if the block has no sums.
template <class T, class Type = P>
bool copy_columns(const ProductBlock& block, bool has_zps, int64_t first, int64_t count,
                  const int32_t (*made)[kBlockColumns], ColumnGroup<T>* to) {
  const bool is_given = block.columns.sums != nullptr;
  const bool scales_vary = block.columns.scale_groups > 1, in_groups = scales_vary || block.codes.scale_groups > 1;
  auto beyond = P::set1(0);
  prefetch_groups(block, first, count);
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
    const int64_t at = v * P::kLanes, left = block.cols - at;
    const auto mask = P::first(left);
    const auto load_scales = [&](const float* p) { return left >= P::kLanes ? P::load(p) : P::load_part(p, mask); };
    const auto load_sums = [&](const int32_t* p) {
      return left >= P::kLanes ? P::load(static_cast<const void*>(p)) : P::load_part(p, mask);
    };
    auto scales = in_groups && !scales_vary ? load_scales(block.columns.scales + at) : P::set1(1.0f);
    auto zps = P::set1(block.weights.zp);
    const auto group_size = P::set1(static_cast<int32_t>(block.depth / block.groups));
    for (int64_t i = 0; i < count; ++i) {
      const int64_t group = first + i;
      if (block.weights.zps != nullptr)
        zps = P::load_zps(block.weights.zps + group * block.weights.zps_stride + at, left);
      const auto offsets = P::sub(P::low_nibbles(zps), P::set1(8));
      const auto sums = is_given ? load_sums(block.columns.sums + group * block.columns.sums_stride + at)
                                 : P::sub(P::load(static_cast<const void*>(made[i] + at)), P::mul(group_size, offsets));
      beyond = Type::either_bits(beyond, P::add(sums, P::set1(kUnpackedColumnSum)));
      store_as(to[i].sums + at, sums);
      if (scales_vary) scales = load_scales(block.columns.scales + group * block.columns.scales_stride + at);
      P::store(to[i].scales + at, scales);
      if (has_zps) store_as(to[i].zps + at, offsets);
    }
  }
  return bits_of_lanes(beyond) < 2 * uint32_t{kUnpackedColumnSum};
}

// Of the groups that a tile takes at once: zero points of rows, sums of their codes, and scales; 1 if they do not vary.
template <class T>
struct RowGroups {
  T zps[kWordRows][kGroupsAtOnce], sums[kWordRows][kGroupsAtOnce];
  float scales[kWordRows][kGroupsAtOnce];
};

template <class T>
ORT_DYNQ_ONE_COPY void copy_rows(const ProductBlock& block, bool has_zps, int64_t first_row, int64_t rows,
                                 int64_t first, int64_t count, RowGroups<T>& to) {
  const bool vary = block.codes.scale_groups > 1;
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t of_row = (first_row + r) * block.codes.scale_groups + (vary ? first : 0);
    const int32_t* zps = block.codes.zps + of_row;
    if (vary) {
      copy_as(zps, count, to.zps[r]);
      memcpy(to.scales[r], block.codes.scales + of_row, static_cast<size_t>(count) * sizeof(float));
    } else {
      for (T& zp : to.zps[r]) zp = static_cast<T>(zps[0]);
      for (float& scale : to.scales[r]) scale = 1;
    }
    if (has_zps) copy_as(block.codes.sums + (first_row + r) * block.groups + first, count, to.sums[r]);
  }
}

inline P::F corrected(P::F sum, float factor, const float* columns) {
  return P::fnmadd(P::set1(factor), P::load(columns), sum);
}
inline P::I corrected(P::I sum, int32_t factor, const int32_t* columns) {
  return P::sub(sum, P::mul(P::set1(factor), P::load(static_cast<const void*>(columns))));
}
inline P::F sum_as(float, P::I sum) { return P::to_float(sum); }
inline P::I sum_as(int32_t, P::I sum) { return sum; }
inline P::F real_of(P::F sum) { return sum; }
inline P::F real_of(P::I sum) { return P::to_float(sum); }

// Which scales vary with the group. Other scales apply to the sum of all groups.
enum VaryingScales { kNoScales, kColumnScales, kBothScales };

// Adds the floats of these groups to `reals`.
template <class T, int kRows, bool kHasZps, VaryingScales kScales>
ORT_DYNQ_ONE_COPY void add_corrected_sums(const ProductBlock& block, int64_t row, int64_t first, int64_t count,
                                          const ColumnGroup<T>* columns, const GroupSums<kRows>* sums,
                                          float (*reals)[kBlockColumns]) {
  RowGroups<T> rows;
  copy_rows(block, kHasZps, row, kRows, first, count, rows);
  typename P::F totals[kRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) totals[r][v] = P::load(static_cast<const float*>(reals[r] + v * P::kLanes));
  for (int64_t i = 0; i < count; ++i) {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        const int64_t at = v * P::kLanes;
        auto sum = sum_as(T{}, P::load(static_cast<const void*>(sums[i][r] + at)));
        sum = corrected(sum, rows.zps[r][i], columns[i].sums + at);
        if (kHasZps) sum = corrected(sum, rows.sums[r][i], columns[i].zps + at);
        auto real = real_of(sum);
        if (kScales != kNoScales) real = P::mul(real, P::load(columns[i].scales + at));
        if (kScales == kBothScales) real = P::mul(real, P::set1(rows.scales[r][i]));
        totals[r][v] = P::add(totals[r][v], real);
      }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) P::store(reals[r] + v * P::kLanes, totals[r][v]);
}

template <class T, int kRows>
using AddSums = void (*)(const ProductBlock&, int64_t, int64_t, int64_t, const ColumnGroup<T>*, const GroupSums<kRows>*,
                         float (*)[kBlockColumns]);

template <class T, int kRows>
inline AddSums<T, kRows> adder(bool has_zps, VaryingScales scales) {
  if constexpr (kIsFloat<T>) {  // int32 has few groups
    if (scales == kNoScales)
      return has_zps ? add_corrected_sums<T, kRows, true, kNoScales> : add_corrected_sums<T, kRows, false, kNoScales>;
    if (scales == kColumnScales)
      return has_zps ? add_corrected_sums<T, kRows, true, kColumnScales>
                     : add_corrected_sums<T, kRows, false, kColumnScales>;
  }
  return has_zps ? add_corrected_sums<T, kRows, true, kBothScales> : add_corrected_sums<T, kRows, false, kBothScales>;
}

template <class T, int kRows>
void unpacked_tile(const ProductBlock& block, int64_t row, int64_t first, int64_t count, const ColumnGroup<T>* columns,
                   const int8_t* unpacked, const int8_t* ahead, float (*reals)[kBlockColumns]) {
  alignas(kLine) GroupSums<kRows> sums[kGroupsAtOnce];
  sum_unpacked<kRows>(block, row, first, count, unpacked, ahead, sums);
  const VaryingScales scales = block.codes.scale_groups > 1     ? kBothScales
                               : block.columns.scale_groups > 1 ? kColumnScales
                                                                : kNoScales;
  adder<T, kRows>(!has_zps_of_8(block), scales)(block, row, first, count, columns, sums, reals);
}

inline bool fits_unpacked(const ProductBlock& block) {
  if (block.joins_terms) return false;
  if (block.columns.sums == nullptr) return !block.codes.has_ones;
  const int64_t fewest = fits_words(block) ? kMinUnpackedRows : kMinOtherRows;
  return block.rows >= fewest && block.depth > 0 && block.depth <= block.groups * kUnpackedQuads * kQuad &&
         !block.codes.has_ones && (has_zps_of_8(block) || block.codes.sums != nullptr);
}

// Returns false if a sum of a column is too large. `block` has up to 16 columns and kUnpackedRows rows.
template <class T>
bool multiply_unpacked(const ProductBlock& block) {
  ColumnGroup<T> columns[kGroupsAtOnce];
  float totals[kUnpackedRows][kBlockColumns];
  alignas(kLine) int8_t unpacked[kUnpackedQuads * kBlockBytes];
  const int64_t quads = block.depth / kQuad / block.groups, fitting = kQuadsAtOnce / quads;
  const int64_t at_once = fitting < 1 ? 1 : fitting < kGroupsAtOnce ? fitting : kGroupsAtOnce;
  const bool has_zps = !has_zps_of_8(block);
  for (int64_t row = 0; row < block.rows; ++row)
    for (float& total : totals[row]) total = -0.0f;
  for (int64_t group = 0; group < block.groups; group += at_once) {
    const int64_t count = block.groups - group < at_once ? block.groups - group : at_once;
    const int8_t* const packed = block.weights.packed + group * quads / 2 * kBlockBytes;
    unpack_quads(packed, count * quads, unpacked);
    alignas(kLine) int32_t made[kGroupsAtOnce][kBlockColumns];
    if (block.columns.sums == nullptr) sum_unpacked_columns(unpacked, count, quads, made);
    if (!copy_columns(block, has_zps, group, count, made, columns) && kIsFloat<T>) return false;
    for (int64_t row = 0; row < block.rows;) {
      const int64_t left = block.rows - row;
      const int64_t rows = left >= 2 * kWordRows ? kWordRows : left > kWordRows ? (left + 1) / 2 : left;
      constexpr decltype(&unpacked_tile<T, 1>) kTiles[] = {unpacked_tile<T, 1>, unpacked_tile<T, 2>,
                                                           unpacked_tile<T, 3>, unpacked_tile<T, 4>};
      kTiles[rows - 1](block, row, group, count, columns, unpacked, packed + count * quads / 2 * kBlockBytes,
                       totals + row);
      row += rows;
    }
  }
  store_block(block, 0, block.rows, 0, totals[0]);
  return true;
}

// `kDirect` computes blocks with sums of columns that are too large.
template <ProductKernel kDirect>
void gemm_unpacked(const ProductBlock& all) {
  const int64_t group = all.depth / all.groups;
  const auto multiply = group <= kMaxTileGroup ? multiply_unpacked<float> : multiply_unpacked<int32_t>;
  for (int64_t col = 0; col < all.cols; col += kBlockColumns)
    for (int64_t row = 0; row < all.rows; row += kUnpackedRows) {
      ProductBlock block = all;
      block.rows = all.rows - row < kUnpackedRows ? all.rows - row : kUnpackedRows;
      block.cols = all.cols - col < kBlockColumns ? all.cols - col : kBlockColumns;
      block.output.dst += row * all.output.stride + col;
      block.codes.data += row * all.codes.stride;
      block.codes.scales += row * all.codes.scale_groups;
      block.codes.zps += row * all.codes.scale_groups;
      if (all.codes.sums != nullptr) block.codes.sums += row * all.groups;
      block.weights.packed += col / kBlockColumns * all.weights.stride;
      if (all.weights.zps != nullptr) block.weights.zps += col;
      block.columns.scales += col;
      if (all.columns.sums != nullptr) block.columns.sums += col;
      block.columns.bias += col;
      if (!multiply(block)) kDirect(block);
    }
}
