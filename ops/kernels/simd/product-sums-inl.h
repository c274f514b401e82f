// Matrix products that need the sums of the weights and do not have them: a part of product-inl.h, which includes this
// file.

// The sums of the codes of one group of two or more quads of 4-bit weights, as dot4 takes them. Bytes of up to kPairs
// pairs of quads are added first: they stay below 128.
constexpr int64_t kPairs = 4;
struct NibbleSums {
  P::I bytes = P::set1(0), sums = P::set1(0);

  void add(P::I low, P::I high) { bytes = P::add(bytes, P::add(low, high)); }
  void flush() {
    constexpr uint8_t kOnesOfQuad[kQuad] = {1, 1, 1, 1};
    const auto ones = P::quad(kOnesOfQuad);
    sums = P::dot4(sums, ones, ones, bytes, P::set1(0));
    bytes = P::set1(0);
  }
};

// One group of up to two rows: adds the products to two halves of `sums`, and sets the sums of the weights.
template <int kBits, int kRows, int kSums, int kBlocks>
inline void sum_group(const uint8_t* codes, int64_t stride, const Weights<kBlocks>& weights, int64_t at, int64_t pairs,
                      P::I (&sums)[2][kRows][kSums], P::I (&of_weights)[kSums]) {
  const auto address = [&](int v) { return weights.of[v / kVectors] + at + v % kVectors * P::kLanes * kQuad; };
  if constexpr (kBits == 4) {
    NibbleSums nibbles[kSums];
    for (int64_t pair = 0; pair < pairs;) {
      const int64_t end = pairs - pair < kPairs ? pairs : pair + kPairs;
      for (; pair < end; pair += 2)
#pragma GCC unroll 2
        for (int i = 0; i < 2; ++i, at += kBlockBytes, codes += 2 * kQuad) {
          typename P::I low[kSums], high[kSums];
#pragma GCC unroll 8
          for (int v = 0; v < kSums; ++v) {
            P::halves(address(v), P::set1(0), low[v], high[v]);
            nibbles[v].add(low[v], high[v]);
          }
#pragma GCC unroll 8
          for (int r = 0; r < kRows; ++r) {
            const auto c0 = P::quad(codes + r * stride), c1 = P::quad(codes + r * stride + kQuad);
#pragma GCC unroll 8
            for (int v = 0; v < kSums; ++v) sums[i][r][v] = P::dot4(sums[i][r][v], c0, c1, low[v], high[v]);
          }
        }
#pragma GCC unroll 8
      for (int v = 0; v < kSums; ++v) nibbles[v].flush();
    }
#pragma GCC unroll 8
    for (int v = 0; v < kSums; ++v) of_weights[v] = nibbles[v].sums;
  } else {
    constexpr uint8_t kOnesOfQuad[kQuad] = {1, 1, 1, 1};
    const auto ones = P::quad(kOnesOfQuad);
    typename P::I parts[2][kSums] = {};
    for (int64_t pair = 0; pair < pairs; ++pair)
#pragma GCC unroll 2
      for (int i = 0; i < 2; ++i, at += kBlockBytes, codes += kQuad)
#pragma GCC unroll 8
        for (int v = 0; v < kSums; ++v) {
          const auto w = P::template weights_of<0>(P::load(static_cast<const void*>(address(v))));
          parts[i][v] = P::dot(parts[i][v], ones, w);
#pragma GCC unroll 8
          for (int r = 0; r < kRows; ++r) sums[i][r][v] = P::dot(sums[i][r][v], P::quad(codes + r * stride), w);
        }
#pragma GCC unroll 8
    for (int v = 0; v < kSums; ++v) of_weights[v] = P::add(parts[0][v], parts[1][v]);
  }
}

// The same for 4-bit weights if P::kSteps is 2: subtracts the sums of the weights times the zero points of rows. The
// products of four quads are added as int16, (code - zp) * weight: eight of them are within 255 * 15 * 8 = 30600. `zps`
// are those of the group, zps_stride apart. Two vectors at once: the sums of four do not fit the registers. `Type` is
// P: only a template may call functions that P does not have.
template <int kRows, int kSums, int kBlocks, class Type = P>
inline void sum_group_words(const uint8_t* codes, int64_t stride, const Weights<kBlocks>& weights, int64_t at,
                            int64_t pairs, const int32_t* zps, int64_t zps_stride, P::I (&sums)[kRows][kSums]) {
  constexpr int kAtOnce = 2;
  static_assert(kSums % kAtOnce == 0, "parts of two vectors");
#pragma GCC unroll 8
  for (int first = 0; first < kSums; first += kAtOnce)
    for (int64_t pair = 0; pair < pairs; pair += 2) {
      typename P::I w[kAtOnce][4], of_weights[kAtOnce];
#pragma GCC unroll 8
      for (int v = 0; v < kAtOnce; ++v) {
        const int8_t* from =
            weights.of[(first + v) / kVectors] + at + pair * kBlockBytes + (first + v) % kVectors * P::kLanes * kQuad;
        P::halves(from, P::set1(0), w[v][0], w[v][1]);
        P::halves(from + kBlockBytes, P::set1(0), w[v][2], w[v][3]);
        of_weights[v] = P::add(P::add(w[v][0], w[v][1]), P::add(w[v][2], w[v][3]));  // of bytes, up to 60
      }
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const uint8_t* quads = codes + r * stride + pair * 2 * kQuad;
        const auto c0 = P::quad(quads), c1 = P::quad(quads + kQuad), c2 = P::quad(quads + 2 * kQuad),
                   c3 = P::quad(quads + 3 * kQuad);
        const auto zp = Type::same_bytes(zps[r * zps_stride]);
#pragma GCC unroll 8
        for (int v = 0; v < kAtOnce; ++v) {
          auto words = Type::sub16(Type::words(c0, w[v][0]), Type::words(zp, of_weights[v]));
          words = Type::add16(Type::add16(Type::words(c1, w[v][1]), Type::words(c2, w[v][2])),
                              Type::add16(words, Type::words(c3, w[v][3])));
          sums[r][first + v] = P::add(sums[r][first + v], Type::sum_words(words));
        }
      }
    }
}

template <int kBits>
inline P::I zps_of(P::I zps, P::I offset) {
  return kBits == 4 ? P::low_nibbles(zps) : P::add(zps, offset);
}

// One or two rows of weights in groups, for blocks with a row of ones. The zero points of the weights are not
// subtracted from every weight, but from the sums:
//
//   exact = sum of code * weight - zp * sum of weights - (sum of codes - size * zp) * weight_zp
//
// All of these are integers below 2^24, so floats have them exactly: size is at most kLongestSummed. If weights of 8
// bits are unsigned, weight and weight_zp are both 128 larger.
template <int kBits>
constexpr int64_t kLongestSummed = kBits == 4 ? 512 : 256;
static_assert(int64_t{255} * 15 * 512 < 1 << 24 && int64_t{255} * 255 * 256 < 1 << 24, "they are below 2^24");

template <int kBits, int kRows>
void gemv_tile(const ProductBlock& block, int64_t col, int64_t gap) {
  constexpr int kBlocks = 2, kSums = kBlocks * kVectors, kOffset = kBits == 8 && P::kUnsignedWeights ? 128 : 0;
  constexpr bool kInWords = kBits == 4 && P::kSteps == 2;
  const Weights<kBlocks> weights(block, col, gap);
  const auto column = [&](int v) { return v / kVectors * gap + v % kVectors * P::kLanes; };  // of a vector, from col
  const int64_t pairs = block.depth / (2 * kQuad) / block.groups;
  const bool row_varies = block.codes.scale_groups > 1, column_varies = block.columns.scale_groups > 1;
  const int8_t* weight_zps = block.weights.zps == nullptr ? nullptr : block.weights.zps + col;
  const uint16_t* halves = block.columns.halves == nullptr ? nullptr : block.columns.halves + col;
  const float* column_scales = halves != nullptr ? nullptr : block.columns.scales + col;
  typename P::Mask masks[kSums];
  typename P::F reals[kRows][kSums], zps[kSums];
#pragma GCC unroll 8
  for (int v = 0; v < kSums; ++v) {
    masks[v] = P::first(block.cols - col - column(v));
    zps[v] = P::set1(static_cast<float>(kBits == 4 ? block.weights.zp & 15 : block.weights.zp + kOffset));
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) reals[r][v] = P::set1(-0.0f);
  }
  const bool is_fourth = col / kBlockColumns % 4 == 0;  // as in gemm_tile()
  const int64_t first_ahead = (col == 0 ? 1 : 4) * kBlockColumns, end_ahead = is_fourth ? 8 * kBlockColumns : 0;
  int64_t at = 0;
  const uint8_t* codes = block.codes.data;
  for (int64_t group = 0; group < block.groups; ++group) {
    for (int64_t ahead = first_ahead; column_varies && ahead < end_ahead && col + ahead < gap; ahead += kBlockColumns)
      for (int64_t b = 0; b < kBlocks; ++b) {
        if (halves == nullptr)
          ORT_DYNQ_PREFETCH(column_scales + b * gap + ahead);
        else
          ORT_DYNQ_PREFETCH(halves + b * gap + ahead);
      }
    for (int64_t b = 0; b < kBlocks && column_varies && group + kGroupsAhead < block.groups; ++b) {
      const int64_t ahead = b * gap + kGroupsAhead * block.columns.scales_stride;
      if (halves == nullptr)
        ORT_DYNQ_PREFETCH(column_scales + ahead);
      else
        ORT_DYNQ_PREFETCH(halves + ahead);
    }
    const int64_t parameter = row_varies ? group : 0;
    typename P::I sums[2][kRows][kSums] = {}, sums_of_weights[kSums];
    if constexpr (kInWords)
      sum_group_words(codes, block.codes.stride, weights, at, pairs, block.codes.zps + parameter,
                      block.codes.scale_groups, sums[0]);
    else
      sum_group<kBits>(codes, block.codes.stride, weights, at, pairs, sums, sums_of_weights);
    at += pairs * kBlockBytes * kBits / 4;
    codes += pairs * 2 * kQuad;
    typename P::F row_zps[kRows], bases[kRows], row_scales[kRows];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const int32_t zp = block.codes.zps[r * block.codes.scale_groups + parameter];
      const int32_t code_sum = block.codes.sums[r * block.groups + group];
      row_zps[r] = P::set1(static_cast<float>(zp));
      bases[r] = P::set1(static_cast<float>(code_sum - zp * static_cast<int32_t>(2 * kQuad * pairs)));
      row_scales[r] = P::set1(block.codes.scales[r * block.codes.scale_groups + parameter]);
    }
#pragma GCC unroll 8
    for (int v = 0; v < kSums; ++v) {
      const int64_t left = block.cols - col - column(v);
      if (weight_zps != nullptr)
        zps[v] = P::to_float(zps_of<kBits>(P::load_zps(weight_zps + column(v), left), P::set1(kOffset)));
      const auto column_sum = kInWords ? P::set1(0.0f) : P::to_float(sums_of_weights[v]);
      const auto column_scale =
          halves != nullptr ? load_halves(halves + column(v), left) : P::load_part(column_scales + column(v), masks[v]);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        auto exact = P::to_float(kInWords ? sums[0][r][v] : P::add(sums[0][r][v], sums[1][r][v]));
        if (!kInWords) exact = P::fnmadd(row_zps[r], column_sum, exact);
        exact = P::fnmadd(bases[r], zps[v], exact);
        const auto term = P::mul(exact, column_scale);
        reals[r][v] = P::add(reals[r][v], row_varies ? P::mul(term, row_scales[r]) : term);
      }
    }
    if (weight_zps != nullptr) weight_zps += block.weights.zps_stride;
    if (column_varies && halves != nullptr) halves += block.columns.scales_stride;
    if (column_varies && halves == nullptr) column_scales += block.columns.scales_stride;
  }
  float stored[kBlocks][kRows][kBlockColumns];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < kSums; ++v) P::store(stored[v / kVectors][r] + v % kVectors * P::kLanes, reals[r][v]);
  for (int b = 0; b < kBlocks; ++b) store_block(block, 0, kRows, col + b * gap, stored[b][0]);
}

template <int kBits>
void sum_columns(const ProductBlock& block, int32_t* of_columns) {
  const int64_t quads = block.depth / kQuad / block.groups;
  // Nothing checks that the weights of the padding are 0, and the codes there are. Only a single group has padding.
  const bool has_padding = kBits == 4 && block.codes.sums[0] < quads * kQuad;
  for (int64_t col = 0; col < block.cols; col += kBlockColumns) {
    const Weights<1> weights(block, col, 0);
    for (int64_t group = 0; group < block.groups; ++group) {
      typename P::I zps[kVectors], sums[1][kVectors];
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        const int64_t at = col + v * P::kLanes;
        zps[v] = block.weights.zps == nullptr
                     ? P::set1(block.weights.zp)
                     : P::load_zps(block.weights.zps + group * block.weights.zps_stride + at, block.cols - at);
        if (kBits == 4) zps[v] = P::low_nibbles(zps[v]);
        sums[0][v] = has_padding ? P::set1(0) : P::mul(P::set1(-block.codes.sums[group]), zps[v]);
      }
      if (has_padding) {
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) zps[v] = P::zps4(zps[v]);
        subtract_code_sums<4>(block.codes.data, 0, quads, zps, sums);
        dot_products_4bit<1, 1>(block.codes.data, 0, weights, 0, quads, zps, sums);
      } else if constexpr (kBits == 4) {
        NibbleSums of_weights[kVectors];
        const int64_t end = (group + 1) * quads / 2;
        for (int64_t pair = group * quads / 2; pair < end;) {
          const int64_t end_of_bytes = end - pair < kPairs ? end : pair + kPairs;
          for (; pair < end_of_bytes; ++pair)
#pragma GCC unroll 8
            for (int v = 0; v < kVectors; ++v) {
              typename P::I low, high;
              P::halves(weights.of[0] + pair * kBlockBytes + v * P::kLanes * kQuad, P::set1(0), low, high);
              of_weights[v].add(low, high);
            }
#pragma GCC unroll 8
          for (int v = 0; v < kVectors; ++v) of_weights[v].flush();
        }
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) sums[0][v] = P::add(sums[0][v], of_weights[v].sums);
      } else {
        subtract_code_sums<kBits>(block.codes.data + group * quads * kQuad, 0, quads, zps, sums);
        dot_products<false, 1, 1>(block.codes.data, 0, weights, group * quads, (group + 1) * quads, sums);
      }
      int32_t stored[kBlockColumns], *const to = of_columns + group * block.cols + col;
      const int64_t count = block.cols - col;
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v)
        P::store(static_cast<void*>((count < kBlockColumns ? stored : to) + v * P::kLanes), sums[0][v]);
      for (int64_t i = 0; i < count && count < kBlockColumns; ++i) to[i] = stored[i];
    }
  }
}
