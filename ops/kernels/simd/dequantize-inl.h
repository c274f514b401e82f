// dequantize: 8-bit codes with int32 zero points to float.

struct Dequantizer {
  V::F scale;
  V::I zp;
  V::F operator()(V::I code) const { return V::mul(V::to_float(V::sub(code, zp)), scale); }
};

template <class Floats, CodeKind kKind, bool kStream>
void dequantize_row(const uint8_t* src, typename Floats::Element* dst, int64_t cols, const Dequantizer& dequantizer) {
  constexpr int64_t L = V::kLanes;
  if (cols < L) {
    Floats::store_part(dst, dequantizer(V::load_codes_part<kKind>(src, cols)), cols);
    return;
  }
  const auto vector_at = [&](int64_t i) {
    Floats::template store<kStream>(dst + i, dequantizer(V::load_codes<kKind>(src + i)));
  };
  int64_t i = Floats::first_aligned(dst, cols);
  if (i > 0) vector_at(0);
  for (; i + 4 * L <= cols; i += 4 * L)
    for (int64_t k = i; k < i + 4 * L; k += L) vector_at(k);
  cover(i, cols, L, vector_at);
}

template <class Floats, CodeKind kKind, bool kStream>
void dequantize_rows(const DequantizeBlock& block) {
  for (int64_t row = 0; row < block.rows; ++row)
    dequantize_row<Floats, kKind, kStream>(static_cast<const uint8_t*>(block.src) + row * block.stride,
                                           static_cast<typename Floats::Element*>(block.dst) + row * block.stride,
                                           block.cols, {V::set1(block.scales[row]), V::set1(block.zps[row])});
}

// kRows rows at once, `stride` apart, so that the parameters of the columns are loaded once for all of them.
template <class Floats, int kRows, CodeKind kKind, bool kStream>
void dequantize_some_rows(const DequantizeBlock& block, int64_t first, int64_t stride) {
  constexpr int64_t L = V::kLanes;
  const uint8_t* src = static_cast<const uint8_t*>(block.src) + first * block.stride;
  auto* dst = static_cast<typename Floats::Element*>(block.dst) + first * block.stride;
  const int64_t cols = block.cols;
  if (cols < L) {
    const Dequantizer dequantizer{V::load_part(block.scales, cols), V::load_part(block.zps, cols)};
    for (int64_t at = 0; at < kRows * stride; at += stride)
      Floats::store_part(dst + at, dequantizer(V::load_codes_part<kKind>(src + at, cols)), cols);
    return;
  }
  const auto vectors_at = [&](int64_t i) {
    const Dequantizer dequantizer{V::load(block.scales + i), V::load(block.zps + i)};
    for (int64_t at = i; at < i + kRows * stride; at += stride)
      Floats::template store<kStream>(dst + at, dequantizer(V::load_codes<kKind>(src + at)));
  };
  const int64_t aligned = Floats::first_aligned(dst, cols);
  if (aligned > 0) vectors_at(0);
  cover(aligned, cols, L, vectors_at);
}

template <class Floats, CodeKind kKind, bool kStream>
void dequantize_columns(const DequantizeBlock& block) {
  // Rows are processed together only if all of them have the same alignment.
  const int64_t step = Floats::rows_to_same_alignment(block.stride, block.cols);
  for (int64_t start = 0; start < step && start < block.rows; ++start) {
    int64_t row = start;
    for (; row + (V::kRows - 1) * step < block.rows; row += V::kRows * step)
      dequantize_some_rows<Floats, V::kRows, kKind, kStream>(block, row, step * block.stride);
    for (; row < block.rows; row += step)
      dequantize_some_rows<Floats, 1, kKind, kStream>(block, row, step * block.stride);
  }
}

template <CodeKind kKind, Parameters kParameters, bool kStream, class Floats = Float32>
void dequantize_with(const DequantizeBlock& block) {
  if (kParameters == kPerRow)
    dequantize_rows<Floats, kKind, kStream>(block);
  else
    dequantize_columns<Floats, kKind, kStream>(block);
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

template <CodeKind kKind, Parameters kParameters>
void dequantize_f16(const DequantizeBlock& block) {
  dequantize_with<kKind, kParameters, false, Float16>(block);
}
