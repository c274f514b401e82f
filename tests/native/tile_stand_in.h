// The tile instructions of AMX-int8 as functions in plain C++, under the names of their intrinsics. amx.cc includes
// this file instead of <immintrin.h> if ORT_DYNQ_TILE_STAND_IN names it, so that its code runs on every machine.
//
// A program ends where a CPU would fault: a tile instruction without a configuration, an invalid configuration, a
// product of tiles of shapes that do not fit. Intel's manual lists these conditions for each instruction.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#undef _tile_loadd
#undef _tile_release
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbusd
#undef _tile_dpbssd
#endif

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

namespace tile_stand_in {

struct Configuration {
  uint8_t palette, start_row, reserved[14];
  uint16_t row_bytes[16];  // of 8 tiles
  uint8_t rows[16];        // of 8 tiles
};
static_assert(sizeof(Configuration) == 64, "the size that LDTILECFG reads");

struct Unit {
  Configuration configuration = {};
  uint8_t tiles[8][16][64] = {};
  uint64_t products = 0;  // how many were computed
};
inline thread_local Unit unit;

inline void require(bool is_valid, const char* condition) {
  if (is_valid) return;
  std::fprintf(stderr, "tile_stand_in: a CPU would raise an exception here; required: %s\n", condition);
  std::abort();
}

inline int64_t rows(int tile) { return unit.configuration.rows[tile]; }
inline int64_t row_bytes(int tile) { return unit.configuration.row_bytes[tile]; }

inline void require_tile(int tile) {
  require(unit.configuration.palette == 1, "tiles are configured");
  require(tile >= 0 && tile < 8, "a tile from 0 to 7");
  require(rows(tile) > 0, "the configuration has this tile");
}

inline void load_configuration(const void* from) {
  Configuration given;
  std::memcpy(&given, from, sizeof given);
  std::memset(unit.tiles, 0, sizeof unit.tiles);
  unit.configuration = {};
  if (given.palette == 0) return;
  require(given.palette == 1 && given.start_row == 0, "palette 1 from row 0");
  for (const uint8_t byte : given.reserved) require(byte == 0, "reserved bytes of 0");
  for (int i = 0; i < 16; ++i) {
    require(given.rows[i] <= 16 && given.row_bytes[i] <= 64, "at most 16 rows of 64 bytes");
    require((given.rows[i] == 0) == (given.row_bytes[i] == 0), "rows and bytes, or none of both");
    require(i < 8 || given.rows[i] == 0, "8 tiles");
  }
  unit.configuration = given;
}

inline void release() {
  unit.configuration = {};
  std::memset(unit.tiles, 0, sizeof unit.tiles);
}

inline void store_configuration(void* to) { std::memcpy(to, &unit.configuration, sizeof unit.configuration); }

inline void zero(int tile) {
  require_tile(tile);
  std::memset(unit.tiles[tile], 0, sizeof unit.tiles[tile]);
}

inline void load(int tile, const void* from, int64_t stride) {
  zero(tile);
  for (int64_t row = 0; row < rows(tile); ++row)
    std::memcpy(unit.tiles[tile][row], static_cast<const char*>(from) + row * stride,
                static_cast<size_t>(row_bytes(tile)));
}

inline void store(int tile, void* to, int64_t stride) {
  require_tile(tile);
  for (int64_t row = 0; row < rows(tile); ++row)
    std::memcpy(static_cast<char*>(to) + row * stride, unit.tiles[tile][row], static_cast<size_t>(row_bytes(tile)));
}

// sums[m][n] += the sum over i < 4 and each quad k of codes[m][4k + i] * weights[k][4n + i]. Codes are bytes with or
// without a sign.
template <class Code>
inline void add_product(int sums, int codes, int weights) {
  for (const int tile : {sums, codes, weights}) require_tile(tile);
  require(sums != codes && sums != weights && codes != weights, "three different tiles");
  require(row_bytes(sums) % 4 == 0 && row_bytes(codes) % 4 == 0, "rows of whole quads and sums");
  require(rows(sums) == rows(codes), "as many rows of sums as of codes");
  require(row_bytes(sums) == row_bytes(weights), "as many columns of sums as of weights");
  require(row_bytes(codes) == 4 * rows(weights), "as many quads of codes as of weights");
  for (int64_t m = 0; m < rows(sums); ++m)
    for (int64_t n = 0; n < row_bytes(sums) / 4; ++n) {
      uint32_t sum;
      std::memcpy(&sum, unit.tiles[sums][m] + 4 * n, sizeof sum);
      for (int64_t k = 0; k < rows(weights); ++k)
        for (int64_t i = 0; i < 4; ++i)
          sum += static_cast<uint32_t>(static_cast<Code>(unit.tiles[codes][m][4 * k + i]) *
                                       static_cast<int8_t>(unit.tiles[weights][k][4 * n + i]));
      std::memcpy(unit.tiles[sums][m] + 4 * n, &sum, sizeof sum);
    }
  ++unit.products;
}

}  // namespace tile_stand_in

#define _tile_loadconfig tile_stand_in::load_configuration
#define _tile_storeconfig tile_stand_in::store_configuration
#define _tile_release tile_stand_in::release
#define _tile_loadd tile_stand_in::load
#define _tile_stored tile_stand_in::store
#define _tile_zero tile_stand_in::zero
#define _tile_dpbusd tile_stand_in::add_product<uint8_t>
#define _tile_dpbssd tile_stand_in::add_product<int8_t>
