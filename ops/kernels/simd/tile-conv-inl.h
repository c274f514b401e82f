// Convolutions on tiles: a part of amx.cc, which includes this file.
//
// Convolutions read codes from tiles of 16 adjacent positions and 16 quads of a run. pack_conv_tiles() makes them from
// the image so that the tile of a kernel position can begin at any position. Runs of few quads would leave most of a
// tile empty: then the quads are gathered, and all quads of a position are one run.

// to[i][j] = from[j][i] for 16 x 16 values of 4 bytes; the rows from `rows` on are 0. Rows of `from` are
// `stride` bytes apart.
void transpose(const void* from, int64_t stride, int64_t rows, void* to) {
  const auto* bytes = static_cast<const uint8_t*>(from);
  auto* result = static_cast<uint8_t*>(to);
  alignas(64) uint8_t padded[kTile];
  if (rows < kTileRows) {
    __builtin_memset(padded, 0, sizeof padded);
    for (int64_t row = 0; row < rows; ++row)
      __builtin_memcpy(padded + row * kTileBytes, bytes + row * stride, kTileBytes);
    bytes = padded;
    stride = kTileBytes;
  }
#ifdef __AVX512F__
  for (int64_t i = 0; i < 4; ++i, bytes += 16, result += 4 * kTileBytes) {  // 4 columns
    __m512i row[4];                                                         // rows j, 4 + j, 8 + j, 12 + j
#pragma GCC unroll 4
    for (int64_t j = 0; j < 4; ++j) {
      const auto part = [&](int64_t lane) {
        return _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes + (4 * lane + j) * stride));
      };
      row[j] = _mm512_inserti32x4(_mm512_castsi128_si512(part(0)), part(1), 1);
      row[j] = _mm512_inserti32x4(_mm512_inserti32x4(row[j], part(2), 2), part(3), 3);
    }
    const __m512i low01 = _mm512_unpacklo_epi32(row[0], row[1]), low23 = _mm512_unpacklo_epi32(row[2], row[3]);
    const __m512i high01 = _mm512_unpackhi_epi32(row[0], row[1]), high23 = _mm512_unpackhi_epi32(row[2], row[3]);
    _mm512_storeu_si512(result, _mm512_unpacklo_epi64(low01, low23));
    _mm512_storeu_si512(result + kTileBytes, _mm512_unpackhi_epi64(low01, low23));
    _mm512_storeu_si512(result + 2 * kTileBytes, _mm512_unpacklo_epi64(high01, high23));
    _mm512_storeu_si512(result + 3 * kTileBytes, _mm512_unpackhi_epi64(high01, high23));
  }
#else
  for (int64_t row = 0; row < kTileRows; ++row)
    for (int64_t col = 0; col < kTileRows; ++col)
      __builtin_memcpy(result + col * kTileBytes + row * kQuad, bytes + row * stride + col * kQuad, kQuad);
#endif
}

// Codes of 16 adjacent positions and of up to 16 quads at any offsets of the image.
void transpose_gathered(const uint8_t* image, const int64_t* offsets, int64_t rows, void* to) {
  alignas(64) uint8_t quads[kTile];
  for (int64_t row = rows; row < kTileRows; ++row) __builtin_memset(quads + row * kTileBytes, 0, kTileBytes);
  for (int64_t row = 0; row < rows; ++row) __builtin_memcpy(quads + row * kTileBytes, image + offsets[row], kTileBytes);
  transpose(quads, kTileBytes, kTileRows, to);
}

// Tiles are [run / 16][positions of a quad in the image][16 quads].
void pack_conv_tiles(const ConvBlock& block) {
  uint8_t* to = block.scratch.tiles;
  const ConvInput& input = block.input;
  const int64_t tiles_bytes = kTileRows * input.run_bytes, slack = 2 * kTile;
  __builtin_memset(to + conv_tiles_bytes(input.run, input.run_bytes) - slack, 0, slack);
  for (int64_t first = 0; first < input.run; first += kTileRows, to += tiles_bytes) {
    const uint8_t* from = input.image + (input.gathers ? 0 : first * input.run_bytes);
    const int64_t rows = input.run - first < kTileRows ? input.run - first : kTileRows;
    // The last transpositions also write where the next iteration writes, or to the slack.
    for (int64_t at = 0; at < input.run_bytes; at += kTileBytes)
      if (input.gathers)
        transpose_gathered(from + at, input.offsets + first, rows, to + at * kTileRows);
      else
        transpose(from + at, input.run_bytes, rows, to + at * kTileRows);
  }
}

// A copy of the last quads of the weights of one or two blocks of channels, from quad `first` on, padded with zeros to
// whole tiles.
struct LastQuads {
  int64_t first;
  alignas(64) int8_t weights[2][2 * kTile] = {};

  explicit LastQuads(const ConvBlock& block)
      : first(block.input.quads < kTileRows ? 0 : block.input.quads - kTileRows + 1) {
    for (int64_t i = 0; i * kBlockColumns < block.channels; ++i)
      __builtin_memcpy(weights[i], block.weights.packed + i * block.weights.stride + first * kTileBytes,
                       static_cast<size_t>((block.input.quads - first) * kTileBytes));
    use_memory(weights);
  }
};

// What is computed once for up to 32 channels of a block: a sum becomes
// (sum - of_zp - weight_zp * code sum) * first * second + bias.
struct ConvChannels {
  float first[kPair], second[kPair], bias[kPair];
  uint32_t of_zp[kPair], weight_zp[kPair];
  bool has_weight_zps;

  explicit ConvChannels(const ConvBlock& block) : has_weight_zps(has_zero_points(block.weights)) {
    const ConvScaling& scaling = block.scaling;
    for (int64_t c = 0; c < block.channels; ++c) {
      const ConvFactors factors = factors_of(scaling, c);
      first[c] = factors.first;
      second[c] = factors.second;
      bias[c] = load(scaling.bias + c);
      of_zp[c] = static_cast<uint32_t>(scaling.zp) * static_cast<uint32_t>(load(scaling.channel_sums + c));
      weight_zp[c] = static_cast<uint32_t>(block.weights.zps == nullptr ? block.weights.zp : block.weights.zps[c]);
    }
  }
};

// Converts the sums of 16 positions of a row, from `col` on, and of up to 16 channels, from `first` on, and stores
// them.
void conv_scale_and_store(const ConvBlock& block, const ConvChannels& of, const uint32_t* sums, int64_t row,
                          int64_t col, int64_t first) {
  alignas(64) uint32_t channels[kTileRows][kBlockColumns];
  transpose(sums, kSumsStride, kTileRows, channels);
  Sums code_sums = {};
  if (of.has_weight_zps)  // the array has kConvSlack elements more
    code_sums = load_columns<Sums, kWhole>(
        reinterpret_cast<const uint32_t*>(block.scratch.code_sums + row * block.input.row_stride + col), kTileRows);
  // Minus 0, which leaves every number as it is: -0 + 0 is 0.
  const Floats lowest = block.scaling.lowest - Floats{}, highest = block.scaling.highest - Floats{};
  const int64_t end = block.channels - first < kBlockColumns ? block.channels : first + kBlockColumns;
  const int64_t count = block.cols - col, stride = block.output.channel_stride;
  float* dst = block.output.dst + first * stride + row * block.output.row_stride + col;
  for (int64_t channel = first; channel < end; ++channel, dst += stride) {
    Sums exact = load_columns<Sums, kWhole>(channels[channel - first], kBlockColumns) - of.of_zp[channel];
    if (of.has_weight_zps) exact -= of.weight_zp[channel] * code_sums;
    Floats real =
        __builtin_convertvector(reinterpret_cast<Ints>(exact), Floats) * of.first[channel] * of.second[channel] +
        of.bias[channel];
    real = real < lowest ? lowest : real;
    real = real > highest ? highest : real;
    if (count < kTileRows)
      store_columns<kPart>(dst, real, count);
    else
      store_columns<kWhole>(dst, real, kTileRows);
  }
}

// Converts the sums of up to 32 positions of a row and up to 32 channels between the products of the next ones, as
// Conversion does: square by square of 16 x 16.
class ConvConversion {
 public:
  explicit ConvConversion(const ConvBlock& block) : block_(block), channels_(block) {}

  // sums[32][32] of the positions and channels from these on.
  void begin(const uint32_t* sums, int64_t row, int64_t col) {
    sums_ = sums;
    row_ = row;
    col_ = col;
    square_ = 0;
    const int64_t in_row = block_.channels > kBlockColumns ? 2 : 1;
    squares_ = block_.cols - col > kTileRows ? 2 * in_row : in_row;
  }

  // Up to `most` squares.
  void run(int64_t most) {
    for (; most > 0 && square_ < squares_; --most, ++square_) {
      const int64_t in_row = block_.channels > kBlockColumns ? 2 : 1;
      const int64_t i = square_ / in_row * kTileRows, first = square_ % in_row * kBlockColumns;
      conv_scale_and_store(block_, channels_, sums_ + i * kPair + first, row_, col_ + i, first);
    }
  }

 private:
  const ConvBlock& block_;
  const ConvChannels channels_;
  const uint32_t* sums_ = nullptr;
  int64_t row_ = 0, col_ = 0, square_ = 0, squares_ = 0;
};

// Writes the sums of products of up to 32 positions and up to 32 channels to sums[32][32], and converts `other` ones.
// The loop over runs is inside: they read the same codes, which stay in the first-level cache.
template <int kRowTiles, int kColumnTiles>
void conv_multiply_tiles(const ConvBlock& block, const LastQuads& last, int64_t position, ConvConversion& other,
                         uint32_t* sums) {
  zero_sums();
  const ConvInput& input = block.input;
  const uint8_t* codes = block.scratch.tiles + position * kTileBytes;
  const int64_t squares_of_step = 4 * kTileRows / (input.quads + 1) + 1;
  for (int64_t i = 0; i < input.run; i += kTileRows, codes += kTileRows * input.run_bytes)
    for (int64_t quad = i; quad < input.quads; quad += input.run) {
      const bool is_last = quad >= last.first;
      const int64_t at = (is_last ? quad - last.first : quad) * kTileBytes;
      const int8_t* first = (is_last ? last.weights[0] : block.weights.packed) + at;
      const int8_t* second = (is_last ? last.weights[1] : block.weights.packed + block.weights.stride) + at;
      const int64_t shift = input.gathers ? 0 : input.offsets[quad - i] * kTileRows;
      multiply_step<kRowTiles, kColumnTiles>(codes + shift, kTile, first, second);
      other.run(squares_of_step);
    }
  other.run(4);
  store_sums<kRowTiles, kColumnTiles>(sums);
  use_memory(sums);
}

using ConvMultiply = void (*)(const ConvBlock&, const LastQuads&, int64_t, ConvConversion&, uint32_t*);
constexpr ConvMultiply kConvMultiply[2][2] = {{conv_multiply_tiles<1, 1>, conv_multiply_tiles<1, 2>},
                                              {conv_multiply_tiles<2, 1>, conv_multiply_tiles<2, 2>}};

void conv_tiles(const ConvBlock& block) {
  const bool is_pair = block.channels > kBlockColumns;
  const LastQuads last(block);
  use_memory(block.scratch.tiles);
  alignas(64) uint32_t sums[2][kPair * kPair];
  ConvConversion conversion(block);
  const TileConfiguration before = configure_tiles();
  int64_t count = 0;
  for (int64_t row = 0; row < block.rows; ++row)
    for (int64_t col = 0; col < block.cols; col += kPair, ++count) {
      kConvMultiply[block.cols - col > kTileRows][is_pair](block, last, row * block.input.row_stride + col, conversion,
                                                           sums[count % 2]);
      conversion.begin(sums[count % 2], row, col);
    }
  conversion.run(4);
  restore_tiles(before);
}
