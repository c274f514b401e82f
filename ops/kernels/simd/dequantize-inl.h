// dequantize: 8-bit codes with int32 zero points to float.

struct Dequantizer {
  V::F scale;
  V::I zp;
  V::F operator()(V::I code) const { return V::mul(V::to_float(V::sub(code, zp)), scale); }
};

template <CodeKind kKind, bool kStream>
void dequantize_row(const uint8_t* src, float* dst, int64_t cols, const Dequantizer& dequantizer) {
  constexpr int64_t L = V::kLanes;
  if (cols < L) {
    V::store_part(dst, dequantizer(V::load_codes_part<kKind>(src, cols)), cols);
    return;
  }
  const auto vector_at = [&](int64_t i) { V::store<kStream>(dst + i, dequantizer(V::load_codes<kKind>(src + i))); };
  int64_t i = first_aligned(dst, cols);
  if (i > 0) vector_at(0);
  for (; i + 4 * L <= cols; i += 4 * L)
    for (int64_t k = i; k < i + 4 * L; k += L) vector_at(k);
  cover(i, cols, L, vector_at);
}

template <CodeKind kKind, bool kStream>
void dequantize_rows(const DequantizeBlock& block) {
  for (int64_t row = 0; row < block.rows; ++row)
    dequantize_row<kKind, kStream>(static_cast<const uint8_t*>(block.src) + row * block.stride,
                                   block.dst + row * block.stride, block.cols,
                                   {V::set1(block.scales[row]), V::set1(block.zps[row])});
}

// kRows rows at once, `stride` apart, so that the parameters of the columns are loaded once for all of them.
template <int kRows, CodeKind kKind, bool kStream>
void dequantize_some_rows(const DequantizeBlock& block, int64_t first, int64_t stride) {
  constexpr int64_t L = V::kLanes;
  const uint8_t* src = static_cast<const uint8_t*>(block.src) + first * block.stride;
  float* dst = block.dst + first * block.stride;
  const int64_t cols = block.cols;
  if (cols < L) {
    const Dequantizer dequantizer{V::load_part(block.scales, cols), V::load_part(block.zps, cols)};
    for (int64_t at = 0; at < kRows * stride; at += stride)
      V::store_part(dst + at, dequantizer(V::load_codes_part<kKind>(src + at, cols)), cols);
    return;
  }
  const auto vectors_at = [&](int64_t i) {
    const Dequantizer dequantizer{V::load(block.scales + i), V::load(block.zps + i)};
    for (int64_t at = i; at < i + kRows * stride; at += stride)
      V::store<kStream>(dst + at, dequantizer(V::load_codes<kKind>(src + at)));
  };
  const int64_t aligned = first_aligned(dst, cols);
  if (aligned > 0) vectors_at(0);
  cover(aligned, cols, L, vectors_at);
}

template <CodeKind kKind, bool kStream>
void dequantize_columns(const DequantizeBlock& block) {
  // Rows are processed together only if all of them have the same alignment.
  const int64_t step = rows_to_same_alignment(block.stride, block.cols);
  for (int64_t start = 0; start < step && start < block.rows; ++start) {
    int64_t row = start;
    for (; row + (V::kRows - 1) * step < block.rows; row += V::kRows * step)
      dequantize_some_rows<V::kRows, kKind, kStream>(block, row, step * block.stride);
    for (; row < block.rows; row += step) dequantize_some_rows<1, kKind, kStream>(block, row, step * block.stride);
  }
}

template <CodeKind kKind, Parameters kParameters, bool kStream>
void dequantize_with(const DequantizeBlock& block) {
  if (kParameters == kPerRow)
    dequantize_rows<kKind, kStream>(block);
  else
    dequantize_columns<kKind, kStream>(block);
}

template <CodeKind kKind, Parameters kParameters>
void dequantize(const DequantizeBlock& block) {
  if (can_stream(block, sizeof(float))) {
    dequantize_with<kKind, kParameters, true>(block);
    V::fence();
  } else {
    dequantize_with<kKind, kParameters, false>(block);
  }
}
