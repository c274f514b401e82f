// How kernels cover a row: with streaming stores, without masks.

// Whether all stores are aligned, as streaming stores must be, which write past the caches.
template <class Block>
bool can_stream(const Block& block, uintptr_t dst_size) {
  const uintptr_t row = static_cast<uintptr_t>(block.cols) * dst_size;
  const uintptr_t step = block.rows > 1 ? static_cast<uintptr_t>(block.stride) * dst_size : 0;
  return V::kStreams && block.stream && (reinterpret_cast<uintptr_t>(block.dst) | row | step) % 64 == 0;
}

// Calls run(at) for parts of `width` that cover [begin, cols), where cols >= width. The last part may overlap the one
// before: this is faster than a masked vector, especially on AVX2, which has no masks for bytes. It is also why src and
// dst must not overlap.
template <class Run>
void cover(int64_t begin, int64_t cols, int64_t width, const Run& run) {
  for (int64_t i = begin; i < cols; i += width) run(i + width <= cols ? i : cols - width);
}
