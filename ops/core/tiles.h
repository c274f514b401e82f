// The tiles of AMX: their configuration for kernels that run one after the other in a task, and rows of codes in tiles.
#pragma once

#include <algorithm>
#include <cstring>

#include "core/rounding.h"
#include "kernels/dispatch.h"
#include "kernels/products.h"

namespace dynq {

class TileUse {
 public:
  explicit TileUse(bool is_used, int64_t tile_bytes = kTileBytes)
      : kernels_(is_used ? active_isa().products : nullptr) {
    if (kernels_ != nullptr) kernels_->begin_tiles(state_, tile_bytes);
  }
  ~TileUse() {
    if (kernels_ != nullptr) kernels_->end_tiles(state_);
  }
  TileUse(const TileUse&) = delete;
  TileUse& operator=(const TileUse&) = delete;

 private:
  const ProductKernels* kernels_;
  TileState state_ = {};
};

inline bool uses_tiles(int64_t rows) { return active_isa().products->gemm_qc8w_tiles != nullptr && rows >= kTileRows; }

inline int64_t tiled_bytes(int64_t rows, int64_t depth) {
  return round_up(rows, kTileRows) * round_up(depth, kTileBytes);
}

// Codes of rows for a product.
struct CodeAddress {
  const uint8_t* data;
  int64_t stride;
};

// `row(i)` is the address of `depth` codes, and `rows` of them become tiles: [rows / 16][depth / 64][16][64].
template <class Row>
CodeAddress in_tiles(int64_t rows, int64_t depth, uint8_t* to, const Row& row) {
  const int64_t stride = round_up(depth, kTileBytes) * kTileRows;
  if (depth % kTileBytes != 0 || rows % kTileRows != 0)
    std::memset(to, 0, static_cast<size_t>(tiled_bytes(rows, depth)));
  for (int64_t i = 0; i < rows; ++i) {
    const uint8_t* const from = row(i);
    uint8_t* const first = to + i / kTileRows * stride + i % kTileRows * kTileBytes;
    for (int64_t at = 0; at < depth; at += kTileBytes)
      std::memcpy(first + at * kTileRows, from + at, static_cast<size_t>(std::min(kTileBytes, depth - at)));
  }
  return {to, stride};
}

}  // namespace dynq
