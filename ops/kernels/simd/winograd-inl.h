// Winograd convolutions, written once for any type W of vectors.
//
// With the matrices of Lavin and Gray (2015), a 6x6 tile d of codes, 3x3 weights g and its 4x4 outputs y:
//
//   y = A^T [(G g G^T) . (B^T d B)] A
//
// G has fractions. Its rows are multiplied by 24, and the last one by 12: then 24 * 24 * y is a sum of integers, which
// may wrap. Two rows of G have the opposite sign, which saves instructions; A^T makes up for it.
//
// With tiles of one row, y = A^T [(G g) . (B^T d)], times 24.

// The members of W. Nothing uses this struct, but the compiler checks that every member exists with its type.
struct WinogradMembers {
  using Words = W::Words;  // kWords int16
  using Ints = W::Ints;    // kLanes int32
  using Floats = W::Floats;
  static constexpr int64_t kWords = W::kWords, kLanes = W::kLanes;
  static constexpr int kRows = W::kRows;  // tiles with sums that fit the registers

  Words (*add_words)(Words, Words) = W::add;  // they wrap
  Words (*sub_words)(Words, Words) = W::sub;
  Words (*shift_words)(Words) = W::shift<2>;  // to the left
  Words (*set1_word)(int16_t) = W::set1_word;
  Words (*widen)(const uint8_t*) = W::widen;
  void (*store_words)(int16_t*, Words) = W::store;
  Ints (*add_ints)(Ints, Ints) = W::add;
  Ints (*sub_ints)(Ints, Ints) = W::sub;
  Ints (*mul_ints)(Ints, Ints) = W::mul;
  Ints (*shift_ints)(Ints) = W::shift<2>;         // to the left
  Ints (*shift_right)(Ints) = W::shift_right<6>;  // of signed numbers
  Ints (*set1_int)(int32_t) = W::set1;
  Ints (*load_ints)(const int32_t*) = W::load;
  void (*store_ints)(int32_t*, Ints) = W::store;
  Floats (*set1_float)(float) = W::set1;
  Floats (*load_floats)(const float*) = W::load;
  void (*store_floats)(float*, Floats) = W::store;
  Floats (*to_float)(Ints) = W::to_float;
  Floats (*add_floats)(Floats, Floats) = W::add;
  Floats (*mul_floats)(Floats, Floats) = W::mul;
  Floats (*min)(Floats, Floats) = W::min;  // the second argument if either is NaN, or if both are zeros
  Floats (*max)(Floats, Floats) = W::max;  // likewise

  // Part `i` of the weights of a quad as the products take them: kQuad * 16 int16 are kQuad * 16 / kWords parts.
  Words (*weights)(const int8_t*, int64_t i) = W::weights;
  // Adds the weights of a quad, and their magnitudes, for each of 16 output channels.
  void (*add_weights)(const int8_t*, Ints (&)[kBlockColumns / kLanes]) = W::add_weights;
  void (*add_magnitudes)(const int8_t*, Ints (&)[kBlockColumns / kLanes]) = W::add_magnitudes;
  // Products of two input channels, with W::Sums of 16 / kSumVectors output channels.
  W::Pair (*pair)(const int16_t*) = W::pair;
  W::Sums (*dot)(W::Sums, W::Pair, W::Weights) = W::dot;
  // Stores kLanes channels of four adjacent positions.
  void (*store_columns)(const Floats (&)[kWinogradOut], float*, int64_t channel_stride) = W::store_columns;
  void (*interleave)(const uint8_t* const (&)[kWinogradUnit], int64_t i, uint8_t flip, uint8_t* to) = W::interleave;
};

constexpr int64_t kInterleaved = 8;  // positions of W::interleave

// The last positions overlap those before, so that they end with the row.
inline void winograd_interleave(const uint8_t* const (&rows)[kWinogradUnit], int64_t count, uint8_t flip, uint8_t* to) {
  if (count < kInterleaved) {
    uint8_t some[kWinogradUnit][kInterleaved], interleaved[kInterleaved * kWinogradUnit];
    const uint8_t* some_rows[kWinogradUnit];
    for (int64_t j = 0; j < kWinogradUnit; ++j) {
      some_rows[j] = some[j];
      for (int64_t i = 0; i < kInterleaved; ++i) some[j][i] = i < count ? rows[j][i] : 0;
    }
    W::interleave(some_rows, 0, flip, interleaved);
    memcpy(to, interleaved, static_cast<size_t>(count * kWinogradUnit));
    return;
  }
  for (int64_t i = 0; i < count; i += kInterleaved)
    W::interleave(rows, i + kInterleaved <= count ? i : count - kInterleaved, flip, to);
}

// B^T d.
inline void transform_six(const W::Words (&d)[kWinogradIn], W::Words (&t)[kWinogradIn]) {
  const auto a = W::sub(d[4], W::template shift<2>(d[2])), b = W::sub(d[3], W::template shift<2>(d[1]));
  const auto c = W::sub(d[4], d[2]), e = W::sub(d[3], d[1]), twice = W::add(e, e);
  t[0] = W::add(W::template shift<2>(W::sub(d[0], d[2])), c);
  t[1] = W::add(a, b);
  t[2] = W::sub(a, b);
  t[3] = W::add(c, twice);
  t[4] = W::sub(c, twice);
  t[5] = W::sub(W::sub(d[5], d[3]), W::add(twice, twice));
}

// G g, with the rows multiplied.
inline void transform_three(const W::Words (&g)[3], W::Words (&t)[kWinogradIn]) {
  const auto ends = W::add(g[0], g[2]), middle = W::add(g[1], g[1]), twice = W::add(g[0], g[0]);
  const auto last = W::template shift<2>(g[2]), both = W::add(g[0], last);
  t[0] = W::add(twice, W::template shift<2>(g[0]));
  t[1] = W::template shift<2>(W::add(ends, g[1]));
  t[2] = W::template shift<2>(W::sub(ends, g[1]));
  t[3] = W::add(both, middle);
  t[4] = W::sub(both, middle);
  t[5] = W::add(last, W::add(last, last));
}

// A^T m, with what the factors of G need.
inline void transform_sums(const W::Ints (&m)[kWinogradIn], W::Ints (&y)[kWinogradOut]) {
  const auto sum1 = W::add(m[1], m[2]), difference1 = W::sub(m[1], m[2]);
  const auto sum2 = W::add(m[3], m[4]), difference2 = W::sub(m[3], m[4]), twice = W::add(difference2, difference2);
  y[0] = W::add(m[0], W::sub(sum2, sum1));
  y[1] = W::sub(twice, difference1);
  y[2] = W::sub(W::template shift<2>(sum2), sum1);
  y[3] = W::add(W::sub(W::add(m[5], m[5]), difference1), W::template shift<2>(twice));
}

// Tiles of 4x4 positions, or of 1x4.
template <bool kHasRows>
struct WinogradForm {
  static constexpr int kOut = kHasRows ? kWinogradOut : 1, kIn = kHasRows ? kWinogradIn : 1;
  static constexpr int kTaps = kHasRows ? kWinogradTaps : 1;
  static constexpr int kElements = kIn * kWinogradIn;
  // The codes lose 128, so that the sums are small. B^T of 128 is -6 * 128 in row 1, and else 0.
  static constexpr int kOffsetRow = kHasRows ? 1 : 0;
  static constexpr int16_t kOffset = kHasRows ? 36 * 128 : -6 * 128;
  // The factor of the sums is 576 = 9 * 2^6 or 24 = 3 * 2^3. The inverses of 9 and 3 modulo 2^32:
  static constexpr int32_t kInverse = kHasRows ? 0x38e38e39 : -0x55555555;
  static constexpr int kShift = kHasRows ? 6 : 3;
};

// Transforms columns, then rows: [kRowsIn][kIn] vectors that `get` returns become up to `rows` of [kRowsOut][kOut],
// which `put` takes row by row. A single row has no columns to transform.
template <class T, int kRowsIn, int kIn, int kRowsOut, int kOut, class Get, class Put>
ORT_DYNQ_INLINE inline void transform_both(void (*transform)(const T (&)[kIn], T (&)[kOut]), int64_t rows,
                                           const Get& get, const Put& put) {
  T t[kRowsOut][kIn];
#pragma GCC unroll 8
  for (int j = 0; j < kIn; ++j) {
    if constexpr (kRowsIn == 1) {
      t[0][j] = get(0, j);
    } else {
      T from[kRowsIn], to[kRowsOut];
#pragma GCC unroll 8
      for (int i = 0; i < kRowsIn; ++i) from[i] = get(i, j);
      transform(from, to);
#pragma GCC unroll 8
      for (int i = 0; i < kRowsOut; ++i) t[i][j] = to[i];
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kRowsOut; ++i) {
    if (i >= rows) break;
    T to[kOut];
    transform(t[i], to);
    put(i, to);
  }
}

// [elements][tiles][pieces][units][16]
template <class Form>
void winograd_transform_codes(const WinogradBlock& block) {
  const WinogradInput& input = block.input;
  const int64_t step = winograd_codes_step(input), row_bytes = input.row_bytes, col_bytes = input.col_bytes;
  int16_t* to = block.scratch.codes;
  const auto transform_unit = [&](const uint8_t* codes) ORT_DYNQ_INLINE_LAMBDA {
    transform_both<W::Words, Form::kIn, kWinogradIn, Form::kIn>(
        transform_six, Form::kIn,
        [&](int i, int j) ORT_DYNQ_INLINE_LAMBDA { return W::widen(codes + i * row_bytes + j * col_bytes); },
        [&](int i, W::Words(&row)[kWinogradIn]) ORT_DYNQ_INLINE_LAMBDA {
          if (i == Form::kOffsetRow) row[1] = W::sub(row[1], W::set1_word(Form::kOffset));
#pragma GCC unroll 8
          for (int j = 0; j < kWinogradIn; ++j) W::store(to + (i * kWinogradIn + j) * step, row[j]);
        });
  };
  for (int64_t tile = 0; tile < input.tile_count; ++tile)
    for (int64_t row = 0; row < input.kernel.rows; row += kWinogradTaps)
      for (int64_t col = 0; col < input.kernel.cols; col += kWinogradTaps) {
        const uint8_t* codes = input.image + input.tiles[tile].image + row * row_bytes + col * col_bytes;
        for (int64_t unit = 0; unit < input.units; ++unit, codes += input.unit_bytes)
#pragma GCC unroll 2
          for (int64_t i = 0; i < kWinogradUnit; i += W::kWords, to += W::kWords) transform_unit(codes + i);
      }
}

constexpr int64_t kWinogradQuadBytes = kBlockColumns * kQuad;
constexpr int8_t kNoWinogradWeights[kWinogradQuadBytes] = {};

// Some of the weights of a block: the first quad of each row and column of a piece, and zeros beyond the kernel.
template <class Form>
struct WinogradPiece {
  const int8_t* taps[Form::kTaps][kWinogradTaps];
  int64_t steps[Form::kTaps][kWinogradTaps];  // to the next quad

  WinogradPiece(const WinogradBlock& block, int64_t row, int64_t col, int64_t quad) {
    const WinogradKernelSize& kernel = block.input.kernel;
    for (int64_t i = 0; i < Form::kTaps; ++i)
      for (int64_t j = 0; j < kWinogradTaps; ++j) {
        const bool is_weight = row + i < kernel.rows && col + j < kernel.cols;
        const int64_t position = (row + i) * kernel.cols + col + j;
        taps[i][j] =
            is_weight ? block.packed + (position * block.quads + quad) * kWinogradQuadBytes : kNoWinogradWeights;
        steps[i][j] = is_weight ? kWinogradQuadBytes : 0;
      }
  }
};

// [elements][count][parts]
template <class Form>
void transform_weights(const WinogradPiece<Form>& piece, int64_t count, int16_t* to) {
  for (int64_t quad = 0; quad < count; ++quad) {
    const int8_t* taps[Form::kTaps][kWinogradTaps];
#pragma GCC unroll 8
    for (int i = 0; i < Form::kTaps; ++i)
#pragma GCC unroll 8
      for (int j = 0; j < kWinogradTaps; ++j) taps[i][j] = piece.taps[i][j] + quad * piece.steps[i][j];
    for (int64_t part = 0; part < kWinogradQuadBytes / W::kWords; ++part, to += W::kWords)
      transform_both<W::Words, Form::kTaps, kWinogradTaps, Form::kIn>(
          transform_three, Form::kIn, [&](int i, int j) ORT_DYNQ_INLINE_LAMBDA { return W::weights(taps[i][j], part); },
          [&](int i, W::Words(&row)[kWinogradIn]) ORT_DYNQ_INLINE_LAMBDA {
#pragma GCC unroll 8
            for (int j = 0; j < kWinogradIn; ++j) W::store(to + (i * kWinogradIn + j) * kWinogradWeightsStep, row[j]);
          });
  }
}

constexpr int kWinogradVectors = kBlockColumns / W::kLanes;

// Adds the sums of the weights of `count` quads, and if `has_limit` the sums of their magnitudes.
template <class Form>
void sum_winograd_weights(const WinogradPiece<Form>& piece, int64_t count, bool has_limit,
                          W::Ints (&sums)[kWinogradVectors], W::Ints (&magnitudes)[kWinogradVectors]) {
  for (int64_t i = 0; i < Form::kTaps; ++i)
    for (int64_t j = 0; j < kWinogradTaps; ++j)
      for (int64_t quad = 0; quad < count && piece.steps[i][j] > 0; ++quad) {
        W::add_weights(piece.taps[i][j] + quad * kWinogradQuadBytes, sums);
        if (has_limit) W::add_magnitudes(piece.taps[i][j] + quad * kWinogradQuadBytes, magnitudes);
      }
}

// The products of kRows tiles with 16 output channels, summed over 2 * pairs input channels: sums [kRows][16].
template <int kRows>
void multiply_tiles(const int16_t* codes, int64_t stride, const int16_t* weights, int64_t pairs, bool adds,
                    int32_t* to) {
  constexpr int kVectors = W::kSumVectors;
  constexpr int64_t kLanes = kBlockColumns / kVectors;
  typename W::Sums sums[kRows][kVectors];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v)
      sums[r][v] = adds ? W::load_sums(to + r * kBlockColumns + v * kLanes) : W::no_sums();
  for (int64_t pair = 0; pair < pairs; ++pair, weights += 2 * kBlockColumns, codes += 2) {
    typename W::Weights w[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) w[v] = W::load_weights(weights, v);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const auto x = W::pair(codes + r * stride);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) sums[r][v] = W::dot(sums[r][v], x, w[v]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) W::store_sums(to + r * kBlockColumns + v * kLanes, sums[r][v]);
}

template <int kRows = W::kRows>
void multiply_some_tiles(int64_t count, const int16_t* codes, int64_t stride, const int16_t* weights, int64_t pairs,
                         bool adds, int32_t* to) {
  if (count == kRows)
    multiply_tiles<kRows>(codes, stride, weights, pairs, adds, to);
  else if constexpr (kRows > 1)
    multiply_some_tiles<kRows - 1>(count, codes, stride, weights, pairs, adds, to);
}

// All tiles. One or two remaining tiles would take as long as three: they share the work with those before.
inline void multiply_all_tiles(int64_t count, const int16_t* codes, int64_t stride, const int16_t* weights,
                               int64_t pairs, bool adds, int32_t* to) {
  while (count > 0) {
    const int64_t rows = count >= int64_t{2} * W::kRows ? W::kRows : count > W::kRows ? (count + 1) / 2 : count;
    multiply_some_tiles(rows, codes, stride, weights, pairs, adds, to);
    count -= rows;
    codes += rows * stride;
    to += rows * kBlockColumns;
  }
}

// Arrays of the 16 output channels of a block; those that are not computed have 0.
struct WinogradChannels {
  int32_t corrections[kBlockColumns] = {}, zps[kBlockColumns] = {};
  float first[kBlockColumns] = {}, second[kBlockColumns] = {}, bias[kBlockColumns] = {};
  bool has_zps;

  // `weight_sums`: what the codes lack by 128.
  WinogradChannels(const WinogradBlock& block, const int32_t* weight_sums)
      : has_zps(block.zps != nullptr || block.zp != 0) {
    const ConvScaling& scaling = block.scaling;
    for (int64_t c = 0; c < block.channels; ++c) {
      const int64_t at = block.first + c;
      const auto channel_sum = static_cast<uint32_t>(load(scaling.channel_sums + c));
      corrections[at] = static_cast<int32_t>(128u * static_cast<uint32_t>(weight_sums[at]) -
                                             static_cast<uint32_t>(scaling.zp) * channel_sum);
      zps[at] = block.zps == nullptr ? block.zp : block.zps[c];
      const ConvFactors factors = factors_of(scaling, c);
      first[at] = factors.first;
      second[at] = factors.second;
      bias[at] = load(scaling.bias + c);
    }
  }
};

// The sums of kLanes channels from `lane` on of row `i` of a tile become floats.
inline void store_winograd_row(const WinogradBlock& block, const WinogradChannels& channels, const WinogradTile& tile,
                               int64_t lane, int64_t i, W::Ints (&sums)[kWinogradOut]) {
  typename W::Floats reals[kWinogradOut];
  const auto correction = W::load(channels.corrections + lane);
  const auto first = W::load(channels.first + lane), second = W::load(channels.second + lane);
  const auto bias = W::load(channels.bias + lane);
  const auto lowest = W::set1(block.scaling.lowest), highest = W::set1(block.scaling.highest);
  const int64_t row = tile.row + i * block.output.row_step;
#pragma GCC unroll 8
  for (int j = 0; j < kWinogradOut; ++j) {
    sums[j] = W::add(sums[j], correction);
    if (channels.has_zps && j < tile.cols) {
      const int64_t at =
          tile.plane * block.code_plane_stride + row * block.code_row_stride + tile.col + j * block.output.col_step;
      sums[j] = W::sub(sums[j], W::mul(W::load(channels.zps + lane), W::set1(block.code_sums[at])));
    }
    const auto real = W::add(W::mul(W::mul(W::to_float(sums[j]), first), second), bias);
    reals[j] = W::min(highest, W::max(lowest, real));
  }
  float* dst = block.output.dst + tile.plane * block.output.plane_stride + row * block.output.row_stride + tile.col;
  const int64_t stride = block.output.channel_stride, col_step = block.output.col_step;
  const int64_t begin = block.first - lane, end = begin + block.channels;  // lanes that are stored
  if (begin <= 0 && end >= W::kLanes && tile.cols == kWinogradOut && col_step == 1)
    return W::store_columns(reals, dst - begin * stride, stride);
  float stored[kWinogradOut][W::kLanes];
#pragma GCC unroll 8
  for (int j = 0; j < kWinogradOut; ++j) W::store(stored[j], reals[j]);
  for (int64_t c = begin > 0 ? begin : 0; c < W::kLanes && c < end; ++c)
    for (int64_t j = 0; j < tile.cols; ++j) store(dst + (c - begin) * stride + j * col_step, stored[j][c]);
}

// What becomes of the sums of products: they start the parts of sums, are added to them, or are the last ones.
struct WinogradParts {
  bool is_first, is_last;
  bool is_whole() const { return is_first && is_last; }  // without memory for parts
};

// Channels from `lane` on of a tile.
template <class Form>
void transform_tile(const WinogradBlock& block, const WinogradChannels& channels, WinogradParts part, int64_t tile,
                    int64_t lane) {
  const int64_t step = block.input.tile_count * kBlockColumns;
  const int32_t* from = block.scratch.sums + tile * kBlockColumns + lane;
  const int64_t of_tile = tile * kWinogradOut * kWinogradOut * kBlockColumns + lane;
  const WinogradTile& at = block.input.tiles[tile];
  transform_both<W::Ints, Form::kIn, kWinogradIn, Form::kOut>(
      transform_sums, at.rows,
      [&](int i, int j) ORT_DYNQ_INLINE_LAMBDA { return W::load(from + (i * kWinogradIn + j) * step); },
      [&](int i, W::Ints(&y)[kWinogradOut]) ORT_DYNQ_INLINE_LAMBDA {
#pragma GCC unroll 8
        for (int j = 0; j < kWinogradOut; ++j) {
          y[j] = W::template shift_right<Form::kShift>(W::mul(y[j], W::set1(Form::kInverse)));
          if (part.is_whole()) continue;
          int32_t* sum = block.scratch.parts + of_tile + (i * kWinogradOut + j) * kBlockColumns;
          if (!part.is_first) y[j] = W::add(y[j], W::load(sum));
          if (!part.is_last) W::store(sum, y[j]);
        }
        if (part.is_last) store_winograd_row(block, channels, at, lane, i, y);
      });
}

template <class Form>
void transform_tiles(const WinogradBlock& block, const WinogradChannels& channels, WinogradParts part) {
  for (int64_t tile = 0; tile < block.input.tile_count; ++tile)
    for (int64_t lane = 0; lane < kBlockColumns; lane += W::kLanes)
      if (lane < block.first + block.channels && lane + W::kLanes > block.first)
        transform_tile<Form>(block, channels, part, tile, lane);
}

inline int32_t largest_sum(const W::Ints (&a)[kWinogradVectors], const W::Ints (&b)[kWinogradVectors]) {
  int32_t largest = 0;
  for (int v = 0; v < kWinogradVectors; ++v) {
    int32_t sums[W::kLanes];
    W::store(sums, W::add(a[v], b[v]));
    for (const int32_t sum : sums) largest = sum > largest ? sum : largest;
  }
  return largest;
}

// Pieces of the kernel, and input channels in groups of kWinogradQuads quads. Their products are added as long as the
// sum can be recovered: see WinogradKernelSize::most_magnitude(). Then they are transformed back, and the next ones
// begin a new part of the sum.
template <class Form>
void winograd_convolve(const WinogradBlock& block) {
  const WinogradInput& input = block.input;
  const int64_t tiles = input.tile_count, step = winograd_codes_step(input);
  const bool has_limit = input.kernel.has_limit(block.quads * kQuad);
  typename W::Ints weight_sums[kWinogradVectors], magnitudes[kWinogradVectors];
#pragma GCC unroll 8
  for (int v = 0; v < kWinogradVectors; ++v) weight_sums[v] = magnitudes[v] = W::set1(0);
  bool is_first = true, adds = false;
  const int32_t no_sums[kBlockColumns] = {};
  const auto add_products = [&](const WinogradPiece<Form>& piece, int64_t count, const int16_t* codes) {
    typename W::Ints added[kWinogradVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kWinogradVectors; ++v) added[v] = W::set1(0);
    sum_winograd_weights(piece, count, has_limit, weight_sums, added);
    if (has_limit && largest_sum(magnitudes, added) > input.kernel.most_magnitude()) {
      transform_tiles<Form>(block, WinogradChannels(block, no_sums), {is_first, false});
      is_first = adds = false;
#pragma GCC unroll 8
      for (int v = 0; v < kWinogradVectors; ++v) magnitudes[v] = W::set1(0);
    }
#pragma GCC unroll 8
    for (int v = 0; v < kWinogradVectors; ++v) magnitudes[v] = W::add(magnitudes[v], added[v]);
    transform_weights(piece, count, block.scratch.weights);
    for (int64_t i = 0; i < Form::kElements; ++i)
      multiply_all_tiles(tiles, codes + i * step, input.channels(), block.scratch.weights + i * kWinogradWeightsStep,
                         count * kQuad / 2, adds, block.scratch.sums + i * tiles * kBlockColumns);
    adds = true;
  };
  const int16_t* codes = block.scratch.codes;
  for (int64_t row = 0; row < input.kernel.rows; row += kWinogradTaps)
    for (int64_t col = 0; col < input.kernel.cols; col += kWinogradTaps, codes += input.units * kWinogradUnit)
      for (int64_t quad = 0; quad < block.quads; quad += kWinogradQuads) {
        const int64_t count = block.quads - quad < kWinogradQuads ? block.quads - quad : kWinogradQuads;
        add_products({block, row, col, quad}, count, codes + quad * kQuad);
      }
  int32_t stored[kBlockColumns];
#pragma GCC unroll 8
  for (int v = 0; v < kWinogradVectors; ++v) W::store(stored + v * W::kLanes, weight_sums[v]);
  transform_tiles<Form>(block, WinogradChannels(block, stored), {is_first, true});
}

inline void winograd_transform_all_codes(const WinogradBlock& block) {
  block.input.kernel.has_tile_rows() ? winograd_transform_codes<WinogradForm<true>>(block)
                                     : winograd_transform_codes<WinogradForm<false>>(block);
}

inline void winograd_convolve_all(const WinogradBlock& block) {
  block.input.kernel.has_tile_rows() ? winograd_convolve<WinogradForm<true>>(block)
                                     : winograd_convolve<WinogradForm<false>>(block);
}

constexpr WinogradKernels kWinograd = {winograd_interleave, winograd_transform_all_codes, winograd_convolve_all};
