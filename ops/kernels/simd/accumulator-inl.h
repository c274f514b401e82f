// accumulators: int32 sums of an integer matrix product to float.

template <ScaleOrder kOrder>
struct AccumulatorDequantizer {
  V::F scale;
  V::I sum;
  V::F bias;
  V::F operator()(V::I acc, V::F row_scale, V::I row_zp) const {
    const V::F real = V::to_float(V::sub(acc, V::mul(row_zp, sum)));
    return V::add(kOrder == kScalesFirst ? V::mul(real, V::mul(row_scale, scale))
                  : kOrder == kRowFirst  ? V::mul(V::mul(real, row_scale), scale)
                                         : V::mul(V::mul(real, scale), row_scale),
                  bias);
  }
};

// kRows rows at once, so that the parameters of the columns are loaded once for all of them.
template <int kRows, ScaleOrder kOrder>
void some_accumulators(const AccumulatorBlock& block, int64_t first) {
  constexpr int64_t L = V::kLanes;
  const int32_t* src = block.src + first * block.stride;
  float* dst = block.dst + first * block.stride;
  V::F scales[kRows];
  V::I zps[kRows];
  for (int row = 0; row < kRows; ++row) {
    scales[row] = V::set1(block.scales[first + row]);
    zps[row] = V::set1(block.zps[first + row]);
  }
  int64_t i = 0;
  for (; i + L <= block.cols; i += L) {
    const AccumulatorDequantizer<kOrder> dequantizer{V::load(block.column_scales + i), V::load(block.column_sums + i),
                                                     V::load(block.bias + i)};
    for (int row = 0; row < kRows; ++row) {
      const int64_t at = row * block.stride + i;
      V::store<false>(dst + at, dequantizer(V::load(src + at), scales[row], zps[row]));
    }
  }
  if (const int64_t n = block.cols - i) {
    const AccumulatorDequantizer<kOrder> dequantizer{V::load_part(block.column_scales + i, n),
                                                     V::load_part(block.column_sums + i, n),
                                                     V::load_part(block.bias + i, n)};
    for (int row = 0; row < kRows; ++row) {
      const int64_t at = row * block.stride + i;
      V::store_part(dst + at, dequantizer(V::load_part(src + at, n), scales[row], zps[row]), n);
    }
  }
}

template <ScaleOrder kOrder>
void accumulators(const AccumulatorBlock& block) {
  int64_t row = 0;
  for (; row + V::kRows <= block.rows; row += V::kRows) some_accumulators<V::kRows, kOrder>(block, row);
  for (; row < block.rows; ++row) some_accumulators<1, kOrder>(block, row);
}
