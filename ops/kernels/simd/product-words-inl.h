// Matrix products of a few rows of one scale by 4-bit weights with zero points of 8, for instruction sets with
// products of bytes that are sums of two in int16. The sums of kChain quads fit int16: they are added before they
// become int32. Tiles compute the integer sums of several groups first, and then their floats: neither waits for the
// other, and both have all registers. product-words-unpacked-inl.h has more rows, and other zero points.

constexpr int64_t kChain = 8;  // quads
static_assert(kChain * 2 * 255 * 8 <= INT16_MAX, "weights from -8 to 7");

constexpr int64_t kWordRows = 4;  // the sums in int16 and the weights of two quads fit the registers
constexpr int64_t kGroupsAtOnce = 16;

inline bool has_zps_of_8(const ProductBlock& block) {
  return block.weights.zps == nullptr && (block.weights.zp & 15) == 8;
}

template <int kRows>
using GroupSums = int32_t[kRows][kBlockColumns];

// Adds the products of two quads of codes, or sets the words to those of the first one and adds the others. `Type` is
// P: only a template may call functions that P does not have.
template <int kRows, class Type = P>
ORT_DYNQ_INLINE inline void add_two_quads(const uint8_t* codes, int64_t stride, const P::I (&low)[kVectors],
                                          const P::I (&high)[kVectors], bool is_first, P::I (&words)[kRows][kVectors]) {
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    const auto c0 = P::quad(codes + r * stride);
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v)
      words[r][v] = is_first ? Type::words(c0, low[v]) : Type::dot_words(words[r][v], c0, low[v]);
    const auto c1 = P::quad(codes + r * stride + kQuad);
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) words[r][v] = Type::dot_words(words[r][v], c1, high[v]);
  }
}

// Blocks of these functions have up to 16 columns.

// Sets the sums of `count` groups from `first` on. `Type` is P: only a template may call functions that P does not
// have.
template <int kRows, class Type = P>
ORT_DYNQ_ONE_COPY void sum_in_words(const ProductBlock& block, int64_t row, int64_t first, int64_t count,
                                    GroupSums<kRows>* to) {
  const int64_t stride = block.codes.stride, quads = block.depth / kQuad / block.groups;
  const uint8_t* codes = block.codes.data + row * stride + first * quads * kQuad;
  const int8_t* weights = block.weights.packed + first * quads / 2 * kBlockBytes;
  const auto zps = P::zps4(P::set1(8));
  for (int64_t group = 0; group < count; ++group) {
    for (int64_t done = 0; done < quads; done += kChain) {
      typename P::I words[kRows][kVectors] = {};
      const int64_t end = quads - done < kChain ? quads - done : kChain;
      for (int64_t quad = 0; quad < end; quad += 2) {
        typename P::I low[kVectors], high[kVectors];
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) P::halves(weights + v * P::kLanes * kQuad, zps, low[v], high[v]);
        add_two_quads<kRows, Type>(codes, stride, low, high, false, words);
        codes += 2 * kQuad;
        weights += kBlockBytes;
      }
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

// Rows of a matrix with a power of two columns share cache sets. So scales and sums of 16 columns are copied to
// adjacent lines, if there are several tiles of rows and few groups.
constexpr int64_t kCopiedGroups = 512, kMinCopiedRows = 2 * kWordRows;

template <class T>
inline void copy_columns(const T* from, int64_t stride, int64_t groups, int64_t cols, T (*to)[kBlockColumns]) {
  for (int64_t group = 0; group < groups; ++group, from += stride)
    if (cols == kBlockColumns)
      memcpy(to[group], from, sizeof to[group]);
    else
      memcpy(to[group], from, static_cast<size_t>(cols) * sizeof(T));
}

// How sums are corrected: by the one zero point of all rows, or in floats if the block is bounded.
enum WordForm { kByOneZp, kByFloats };

// Adds the floats of these groups to `reals`.
template <int kRows, WordForm kForm>
ORT_DYNQ_ONE_COPY void add_group_sums(const ProductBlock& block, int64_t row, int64_t first, int64_t count,
                                      const GroupSums<kRows>* sums, float (&reals)[kRows][kBlockColumns]) {
  const bool in_groups = block.columns.scale_groups > 1;
  float real_zps[kRows];
  for (int r = 0; r < kRows && kForm == kByFloats; ++r) real_zps[r] = static_cast<float>(block.codes.zps[row + r]);
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
    const int64_t at = v * P::kLanes;
    const auto mask = P::first(block.cols - at);
    typename P::F totals[kRows];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) totals[r] = P::load(static_cast<const float*>(reals[r] + v * P::kLanes));
    for (int64_t i = 0; i < count; ++i) {
      const int64_t group = first + i;
      const auto column_scale =
          in_groups ? P::load_part(block.columns.scales + group * block.columns.scales_stride + at, mask)
                    : P::set1(1.0f);
      typename P::F terms[kRows];
      const auto sum_of = [&](int r) { return P::load(static_cast<const void*>(sums[i][r] + v * P::kLanes)); };
      const auto column_sum = P::load_part(block.columns.sums + group * block.columns.sums_stride + at, mask);
      const auto correction = P::mul(P::set1(block.codes.zps[0]), column_sum);
      const auto real_sum = P::to_float(column_sum);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r)
        terms[r] = kForm == kByFloats ? P::fnmadd(P::set1(real_zps[r]), real_sum, P::to_float(sum_of(r)))
                                      : P::to_float(P::sub(sum_of(r), correction));
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) terms[r] = P::mul(terms[r], column_scale);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) totals[r] = P::add(totals[r], terms[r]);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) P::store(reals[r] + v * P::kLanes, totals[r]);
  }
}

template <int kRows>
void words_tile(const ProductBlock& block, int64_t row, WordForm form) {
  alignas(kLine) GroupSums<kRows> sums[kGroupsAtOnce];
  float reals[kRows][kBlockColumns];
  for (auto& of_row : reals)
    for (float& real : of_row) real = -0.0f;
  const auto add = form == kByFloats ? add_group_sums<kRows, kByFloats> : add_group_sums<kRows, kByOneZp>;
  for (int64_t group = 0; group < block.groups; group += kGroupsAtOnce) {
    const int64_t left = block.groups - group, count = left < kGroupsAtOnce ? left : kGroupsAtOnce;
    sum_in_words<kRows>(block, row, group, count, sums);
    add(block, row, group, count, sums, reals);
  }
  store_block(block, row, kRows, 0, reals[0]);
}

inline bool fits_words(const ProductBlock& block) {
  return block.depth > 0 && !block.codes.has_ones && !block.joins_terms && has_zps_of_8(block) &&
         block.codes.scale_groups == 1 && (block.codes.has_one_zp || block.is_bounded);
}

template <class Type = P>
void gemm_words(const ProductBlock& block) {
  const WordForm form = block.codes.has_one_zp ? kByOneZp : kByFloats;
  alignas(kLine) float scales[kCopiedGroups][kBlockColumns];
  alignas(kLine) int32_t sums[kCopiedGroups][kBlockColumns];
  for (int64_t col = 0; col < block.cols; col += kBlockColumns) {
    ProductBlock columns = block;
    columns.cols = block.cols - col < kBlockColumns ? block.cols - col : kBlockColumns;
    columns.weights.packed += col / kBlockColumns * block.weights.stride;
    columns.columns.scales += col;
    columns.columns.sums += col;
    columns.columns.bias += col;
    columns.output.dst += col;
    if (block.rows >= kMinCopiedRows && block.groups <= kCopiedGroups) {
      copy_columns(columns.columns.scales, block.columns.scales_stride, block.columns.scale_groups, columns.cols,
                   scales);
      columns.columns.scales = scales[0];
      columns.columns.scales_stride = kBlockColumns;
      copy_columns(columns.columns.sums, block.columns.sums_stride, block.groups, columns.cols, sums);
      columns.columns.sums = sums[0];
      columns.columns.sums_stride = kBlockColumns;
    }
    for (int64_t row = 0; row < block.rows;) {
      const int64_t left = block.rows - row;
      const int64_t rows = left >= 2 * kWordRows ? kWordRows : left > kWordRows ? (left + 1) / 2 : left;
      constexpr decltype(&words_tile<2>) kTiles[] = {words_tile<2>, words_tile<3>, words_tile<4>};
      kTiles[rows - 2](columns, row, form);  // there are more than two rows
      row += rows;
    }
  }
}
