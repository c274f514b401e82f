// Convolutions on tiles: a part of amx.cc, which includes this file.
//
// Convolutions read codes from tiles of 16 adjacent positions and 16 quads of a run. pack_conv_tiles() makes them from
// the image so that the tile of a kernel position can begin at any position.

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

// Tiles are [run / 16][positions of a quad in the image][16 quads].
void pack_conv_tiles(const ConvBlock& block) {
  uint8_t* to = block.scratch.tiles;
  const int64_t tiles_bytes = kTileRows * block.input.run_bytes, slack = 2 * kTile;
  __builtin_memset(to + conv_tiles_bytes(block.input.run, block.input.run_bytes) - slack, 0, slack);
  for (int64_t first = 0; first < block.input.run; first += kTileRows, to += tiles_bytes) {
    const uint8_t* from = block.input.image + first * block.input.run_bytes;
    const int64_t rows = block.input.run - first < kTileRows ? block.input.run - first : kTileRows;
    // The last transpositions also write where the next iteration writes, or to the slack.
    for (int64_t at = 0; at < block.input.run_bytes; at += kTileBytes)
      transpose(from + at, block.input.run_bytes, rows, to + at * kTileRows);
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

// Writes the sums of products of up to 32 positions and up to 32 channels to sums[32][32]. The loop over runs is
// inside: they read the same codes, which stay in the first-level cache.
template <int kRowTiles, int kColumnTiles>
void conv_multiply_tiles(const ConvBlock& block, const LastQuads& last, int64_t position, uint32_t* sums) {
  zero_sums();
  const uint8_t* codes = block.scratch.tiles + position * kTileBytes;
  for (int64_t i = 0; i < block.input.run; i += kTileRows, codes += kTileRows * block.input.run_bytes)
    for (int64_t quad = i; quad < block.input.quads; quad += block.input.run) {
      const bool is_last = quad >= last.first;
      const int64_t at = (is_last ? quad - last.first : quad) * kTileBytes;
      const int8_t* first = (is_last ? last.weights[0] : block.weights.packed) + at;
      const int8_t* second = (is_last ? last.weights[1] : block.weights.packed + block.weights.stride) + at;
      multiply_step<kRowTiles, kColumnTiles>(codes + block.input.offsets[quad - i] * kTileRows, kTile, first, second);
    }
  store_sums<kRowTiles, kColumnTiles>(sums);
}

// Converts sums[32][32] to floats, scales and stores them: all channels, up to 32 positions of a row.
void conv_scale_and_store(const ConvBlock& block, const uint32_t* sums, int64_t row, int64_t col) {
  const bool has_weight_zps = has_zero_points(block.weights);
  // And kConvSlack elements more. Null without zero points.
  const int32_t* code_sums = has_weight_zps ? block.scratch.code_sums + row * block.input.row_stride + col : nullptr;
  for (int64_t i = 0; i < kPair && col + i < block.cols; i += kTileRows)
    for (int64_t first = 0; first < block.channels; first += kBlockColumns) {
      alignas(64) uint32_t channels[kTileRows][kBlockColumns];
      transpose(sums + i * kPair + first, kSumsStride, kTileRows, channels);
      const int64_t end = block.channels - first < kBlockColumns ? block.channels - first : kBlockColumns;
      for (int64_t c = 0; c < end; ++c) {
        const int64_t channel = first + c;
        const float channel_scale = load(block.scaling.channel_scales + channel),
                    bias = load(block.scaling.bias + channel);
        const float scale1 = block.scaling.order == kScalesFirst ? block.scaling.scale * channel_scale
                             : block.scaling.order == kRowFirst  ? block.scaling.scale
                                                                 : channel_scale;
        const float scale2 = block.scaling.order == kScalesFirst ? 1.0f
                             : block.scaling.order == kRowFirst  ? channel_scale
                                                                 : block.scaling.scale;
        Sums exact =
            load_columns<Sums, kWhole>(channels[c], kBlockColumns) -
            static_cast<uint32_t>(block.scaling.zp) * static_cast<uint32_t>(load(block.scaling.channel_sums + channel));
        if (has_weight_zps)
          exact -= static_cast<uint32_t>(block.weights.zps == nullptr ? block.weights.zp : block.weights.zps[channel]) *
                   load_columns<Sums, kWhole>(reinterpret_cast<const uint32_t*>(code_sums) + i, kTileRows);
        Floats real = __builtin_convertvector(reinterpret_cast<Ints>(exact), Floats) * scale1 * scale2 + bias;
        // Minus 0, which leaves every number as it is: -0 + 0 is 0.
        real = real < block.scaling.lowest ? block.scaling.lowest - Floats{} : real;
        real = real > block.scaling.highest ? block.scaling.highest - Floats{} : real;
        float* dst = block.output.dst + channel * block.output.channel_stride + row * block.output.row_stride + col + i;
        if (const int64_t count = block.cols - col - i; count < kTileRows)
          store_columns<kPart>(dst, real, count);
        else
          store_columns<kWhole>(dst, real, kTileRows);
      }
    }
}

using ConvMultiply = void (*)(const ConvBlock&, const LastQuads&, int64_t, uint32_t*);
constexpr ConvMultiply kConvMultiply[2][2] = {{conv_multiply_tiles<1, 1>, conv_multiply_tiles<1, 2>},
                                              {conv_multiply_tiles<2, 1>, conv_multiply_tiles<2, 2>}};

void conv_tiles(const ConvBlock& block) {
  const bool is_pair = block.channels > kBlockColumns;
  const LastQuads last(block);
  use_memory(block.scratch.tiles);
  alignas(64) uint32_t sums[kPair * kPair];
  const TileConfiguration before = configure_tiles();
  for (int64_t row = 0; row < block.rows; ++row)
    for (int64_t col = 0; col < block.cols; col += kPair) {
      kConvMultiply[block.cols - col > kTileRows][is_pair](block, last, row * block.input.row_stride + col, sums);
      conv_scale_and_store(block, sums, row, col);
    }
  restore_tiles(before);
}
