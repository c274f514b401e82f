// Writes a row: with streaming stores, aligned to vectors, without masks.

// Streaming stores write past the caches. Every one of them must be aligned.
template <class Block>
bool can_stream(const Block& block, uintptr_t dst_size) {
  const uintptr_t row = static_cast<uintptr_t>(block.cols) * dst_size;
  const uintptr_t step = block.rows > 1 ? static_cast<uintptr_t>(block.stride) * dst_size : 0;
  return block.stream && (reinterpret_cast<uintptr_t>(block.dst) | row | step) % 64 == 0;
}

// Stores that straddle cache lines cost up to 1.5 times as much as others. A row of at least this many vectors
// therefore begins with one unaligned vector, which the first aligned one overlaps. For shorter rows the extra vector
// costs more than it saves.
constexpr int64_t kVectorsToAlign = 6;

constexpr bool is_worth_aligning(int64_t cols) { return cols >= kVectorsToAlign * V::kLanes; }

// The index of the first float at the boundary of a vector, less than kLanes. If no float is at one (an address that is
// not a multiple of 4), the result is still less than kLanes, and the stores are unaligned.
inline int64_t first_aligned(const float* dst, int64_t cols) {
  if (!is_worth_aligning(cols)) return 0;
  return static_cast<int64_t>((-reinterpret_cast<uintptr_t>(dst) & (sizeof(V::F) - 1)) / sizeof(float));
}

// Rows at this distance have the same distance to a boundary; 1 if `cols` is not worth aligning.
inline int64_t rows_to_same_alignment(int64_t stride, int64_t cols) {
  int64_t rows = 1;
  if (is_worth_aligning(cols))
    while (rows * stride % V::kLanes != 0) rows *= 2;
  return rows;
}

// Calls run(at) for parts of `width` that cover [begin, cols), where cols >= width. The last part may overlap the one
// before: this is faster than a masked vector, especially on AVX2, which has no masks for bytes. It is also why src and
// dst must not overlap.
template <class Run>
void cover(int64_t begin, int64_t cols, int64_t width, const Run& run) {
  for (int64_t i = begin; i < cols; i += width) run(i + width <= cols ? i : cols - width);
}
