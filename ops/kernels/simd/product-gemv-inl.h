// Which kernel of product-sums-inl.h multiplies one or two rows with a row of ones.

template <int kBits, int kRows>
void gemv(const ProductBlock& block) {
  const int64_t half = ((block.cols + kBlockColumns - 1) / kBlockColumns + 1) / 2 * kBlockColumns;
  const bool is_plain = block.columns.halves != nullptr && block.columns.scale_groups > 1;
  if constexpr (kIsBlock) {
    constexpr int64_t kMaxGroups = 512;
    // A row that has one scale takes it after the last group.
    if (is_plain && block.codes.scale_groups > 1 && block.groups <= kMaxGroups) {
      RowTerms terms[kRows * kMaxGroups];
      for (int64_t group = 0; group < block.groups; ++group)
        for (int64_t r = 0; r < kRows; ++r) {
          const int64_t at = r * block.groups + group;
          const int32_t zp = block.codes.zps[at];
          const auto base =
              static_cast<float>(block.codes.sums[at] - zp * static_cast<int32_t>(block.depth / block.groups));
          terms[group * kRows + r] = {static_cast<float>(zp), base, block.codes.scales[at]};
        }
      for (int64_t col = 0; col < half; col += kBlockColumns) {
        if (block.cols - col - half < kBlockColumns)
          gemv_tile<kBits, kRows, false>(block, col, half);
        else if (block.weights.zps == nullptr)
          gemv_whole<kBits, kRows, false>(block, col, half, terms);
        else
          gemv_whole<kBits, kRows, true>(block, col, half, terms);
      }
      return;
    }
  }
  for (int64_t col = 0; col < half; col += kBlockColumns)
    (is_plain && block.cols - col - half >= kBlockColumns ? gemv_tile<kBits, kRows, true>
                                                          : gemv_tile<kBits, kRows, false>)(block, col, half);
}
