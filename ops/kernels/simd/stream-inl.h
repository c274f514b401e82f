// Streaming stores write past the caches. They must be aligned in every row.

template <class Block>
bool can_stream(const Block& block, uintptr_t dst_size) {
  const uintptr_t step = block.rows > 1 ? static_cast<uintptr_t>(block.stride) * dst_size : 0;
  return block.stream && (reinterpret_cast<uintptr_t>(block.dst) | step) % 64 == 0;
}
