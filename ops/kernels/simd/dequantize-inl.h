// dequantize: 8-bit codes with int32 zero points to float.

struct Dequantizer {
  V::F scale;
  V::I zp;
  V::F operator()(V::I code) const { return V::mul(V::to_float(V::sub(code, zp)), scale); }
};

template <CodeKind kKind, bool kStream>
void dequantize_rows(const DequantizeBlock& block) {
  constexpr int64_t L = V::kLanes;
  for (int64_t row = 0; row < block.rows; ++row) {
    const uint8_t* src = static_cast<const uint8_t*>(block.src) + row * block.stride;
    float* dst = block.dst + row * block.stride;
    const Dequantizer dequantizer{V::set1(block.scales[row]), V::set1(block.zps[row])};
    int64_t i = 0;
    for (; i + 4 * L <= block.cols; i += 4 * L)
      for (int64_t k = i; k < i + 4 * L; k += L) V::store<kStream>(dst + k, dequantizer(V::load_codes<kKind>(src + k)));
    for (; i + L <= block.cols; i += L) V::store<kStream>(dst + i, dequantizer(V::load_codes<kKind>(src + i)));
    if (const int64_t n = block.cols - i) V::store_part(dst + i, dequantizer(V::load_codes_part<kKind>(src + i, n)), n);
  }
}

template <int kRows, CodeKind kKind, bool kStream>
void dequantize_some_rows(const DequantizeBlock& block, int64_t first) {
  constexpr int64_t L = V::kLanes;
  const uint8_t* src = static_cast<const uint8_t*>(block.src) + first * block.stride;
  float* dst = block.dst + first * block.stride;
  int64_t i = 0;
  for (; i + L <= block.cols; i += L) {
    const Dequantizer dequantizer{V::load(block.scales + i), V::load(block.zps + i)};
    for (int64_t at = i; at < i + kRows * block.stride; at += block.stride)
      V::store<kStream>(dst + at, dequantizer(V::load_codes<kKind>(src + at)));
  }
  if (const int64_t n = block.cols - i) {
    const Dequantizer dequantizer{V::load_part(block.scales + i, n), V::load_part(block.zps + i, n)};
    for (int64_t at = i; at < i + kRows * block.stride; at += block.stride)
      V::store_part(dst + at, dequantizer(V::load_codes_part<kKind>(src + at, n)), n);
  }
}

template <CodeKind kKind, Parameters kParameters, bool kStream>
void dequantize_with(const DequantizeBlock& block) {
  if (kParameters == kPerRow) return dequantize_rows<kKind, kStream>(block);
  int64_t row = 0;
  for (; row + V::kRows <= block.rows; row += V::kRows) dequantize_some_rows<V::kRows, kKind, kStream>(block, row);
  for (; row < block.rows; ++row) dequantize_some_rows<1, kKind, kStream>(block, row);
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
