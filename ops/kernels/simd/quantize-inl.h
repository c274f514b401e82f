// quantize: floats to codes with int32 zero points.
//
// There is no lower clamp: NaN, -inf and everything far below the lowest code round to the lowest int32 (V::round),
// which saturates to the lowest code. The upper clamp keeps NaN. kWrapping has no clamp.

// float to int32, without the zero point, which the caller adds.
template <class Quotient>
struct OnnxQuantizer {
  static constexpr bool kNeedsReciprocal = Quotient::kNeedsReciprocal, kNeedsBound = false;
  Quotient quotient;
  V::I zp;
  OnnxQuantizer(V::F scale, V::F reciprocal, V::I zp_) : quotient(scale, reciprocal), zp(zp_) {}
  V::I operator()(V::F x) const { return V::round(quotient(x)); }
};

// To codes of 4 bits: as OnnxQuantizer, but an upper bound of x clips the codes. The bound and its quotient are
// rounded; for narrow zero points both errors are far below one half.
template <CodeKind kKind, template <bool> class Quotient>
struct BoundedQuantizer4 {
  static constexpr bool kNeedsReciprocal = true, kNeedsBound = true;
  Quotient<false> quotient;
  V::I zp;
  V::F bound;
  BoundedQuantizer4(V::F scale, V::F reciprocal, V::I zp_, V::F bound_)
      : quotient(scale, reciprocal), zp(zp_), bound(bound_) {}
  static float bound_of(float scale, int32_t zp) { return scale * static_cast<float>((kKind == kU8 ? 15 : 7) - zp); }
  V::I operator()(V::F x) const { return V::round(quotient(V::min(bound, x))); }
};

template <class Quotient>
struct WrappingQuantizer {
  static constexpr bool kNeedsReciprocal = Quotient::kNeedsReciprocal, kNeedsBound = false;
  Quotient quotient;
  V::I zp_int32;
  V::I zp;  // 0: operator() adds the zero point
  WrappingQuantizer(V::F scale, V::F reciprocal, V::I zp_)
      : quotient(scale, reciprocal), zp_int32(zp_), zp(V::set1(int32_t{0})) {}
  V::I operator()(V::F x) const { return V::add(V::round_wrapping(quotient(x)), zp_int32); }
};

struct OneDnnQuantizer {
  static constexpr bool kNeedsReciprocal = true, kNeedsBound = false;
  V::F reciprocal, zp_f32;
  V::I zp;  // 0: operator() adds the zero point before rounding
  OneDnnQuantizer(V::F, V::F reciprocal_, V::I zp_)
      : reciprocal(reciprocal_), zp_f32(V::to_float(zp_)), zp(V::set1(int32_t{0})) {}
  V::I operator()(V::F x) const {
    return V::round(V::min(V::set1(kQuotientBound), V::add(V::mul(x, reciprocal), zp_f32)));
  }
};

// The parameters of a block, per row or per column, and the values that the quantizer derives from them.
template <class Quantizer>
class Quantizers {
 public:
  Quantizers(const float* scales, const int32_t* zps, int64_t count, const float* reciprocals = nullptr)
      : scales_(scales),
        zps_(zps),
        reciprocals_(!Quantizer::kNeedsReciprocal ? scales
                     : reciprocals                ? reciprocals
                                                  : storage_) {
    if (reciprocals_ == storage_)
      for (int64_t i = 0; i < count; ++i) storage_[i] = 1.0f / scales[i];
    if constexpr (Quantizer::kNeedsBound)
      for (int64_t i = 0; i < count; ++i) bounds_[i] = Quantizer::bound_of(scales[i], zps[i]);
  }
  Quantizer of_row(int64_t i) const {
    return quantizer([i](const auto* values) { return V::set1(values[i]); });
  }
  Quantizer of_columns(int64_t i) const {
    return quantizer([i](const auto* values) { return V::load(values + i); });
  }
  Quantizer of_first_columns(int64_t n) const {
    return quantizer([n](const auto* values) { return V::load_part(values, n); });
  }

 private:
  template <class Read>
  Quantizer quantizer(const Read& read) const {
    if constexpr (Quantizer::kNeedsBound)
      return {read(scales_), read(reciprocals_), read(zps_), read(bounds_)};
    else
      return {read(scales_), read(reciprocals_), read(zps_)};
  }

  const float* scales_;
  const int32_t* zps_;
  const float* reciprocals_;
  alignas(64) float storage_[Quantizer::kNeedsReciprocal ? kMaxParameters : 1];
  alignas(64) float bounds_[Quantizer::kNeedsBound ? kMaxParameters : 1];
};

// Stores Codes::kWhole elements of a row; pair(i) computes the i-th pair of vectors. The last pair is computed first:
// rows of 4-bit codes take up to 10 % less time than in ascending order (AMD Zen 5).
template <bool kStream, class Codes, class Pair>
void store_whole(const Codes& codes, uint8_t* dst, const Pair& pair) {
  const auto packed = [&](int64_t i) {
    const V::I second = pair(2 * i + 1), first = pair(2 * i);
    return codes.pack(first, second);
  };
  if constexpr (Codes::kBits == 8) {
    Codes::template store<kStream>(dst, packed(0));
  } else {
    const auto second = packed(1), first = packed(0);
    Codes::store(dst, first, second);
  }
}

// The number of adjacent short rows that store_whole stores at once, or 1.
template <class Codes>
int64_t rows_per_store(const QuantizeBlock& block) {
  constexpr int64_t kPair = 2 * V::kLanes;
  const bool is_short = block.cols == kPair || (block.cols == 2 * kPair && block.cols < Codes::kWhole);
  return is_short && block.stride == block.cols ? Codes::kWhole / block.cols : 1;
}

template <class Floats, class Quantizer, class Codes, bool kStream>
void quantize_rows_with(const QuantizeBlock& block, Codes codes) {
  constexpr int64_t L = V::kLanes;
  const Quantizers<Quantizer> quantizers(block.scales, block.zps, block.rows);
  const auto* floats = static_cast<const typename Floats::Element*>(block.src);
  const auto pair_at = [](const typename Floats::Element* src, const Quantizer& quantizer) {
    const V::I zp = Codes::zero_points(V::pack16(quantizer.zp, quantizer.zp));
    const V::I high = quantizer(Floats::load(src + L)), low = quantizer(Floats::load(src));
    return V::add16(V::pack16(low, high), zp);
  };
  int64_t row = 0;
  if (const int64_t together = kStream ? 1 : rows_per_store<Codes>(block); together > 1) {
    const int shift = block.cols == 2 * L ? 0 : 1;  // a row has one pair, or two
    for (; row + together <= block.rows; row += together)
      store_whole<kStream>(codes, Codes::at(block.dst, row * block.stride), [&](int64_t i) {
        return pair_at(floats + row * block.stride + i * 2 * L, quantizers.of_row(row + (i >> shift)));
      });
  }
  for (; row < block.rows; ++row) {
    const auto* src = floats + row * block.stride;
    const Quantizer quantizer = quantizers.of_row(row);
    const auto dst = [&](int64_t i) { return Codes::at(block.dst, row * block.stride + i); };
    const auto pair = [&](int64_t i) { return pair_at(src + i, quantizer); };
    if (block.cols >= Codes::kWhole) {
      cover(0, block.cols, Codes::kWhole, [&](int64_t first) {
        store_whole<kStream>(codes, dst(first), [&](int64_t i) { return pair(first + i * 2 * L); });
      });
    } else if constexpr (Codes::kBits == 4) {
      if constexpr (Codes::kHasShortRows)
        cover(0, block.cols, kMinColumnsOf4Bits, [&](int64_t i) {
          Codes::store_least(dst(i), Codes::pack(pair(i), pair(i + kMinColumnsOf4Bits - 2 * L)));
        });
    } else if (block.cols >= L) {
      cover(0, block.cols, L, [&](int64_t i) { codes.store1(dst(i), quantizer(Floats::load(src + i)), quantizer.zp); });
    } else {
      codes.store_part(dst(0), quantizer(Floats::load_part(src, block.cols)), quantizer.zp, block.cols);
    }
  }
}

// kRows rows: they share the loads of the columns' parameters.
template <class Floats, int kRows, class Codes, bool kStream, class Quantizer>
void quantize_tile(const Quantizers<Quantizer>& quantizers, const QuantizeBlock& block, Codes codes,
                   int64_t first_row) {
  const int64_t cols = block.cols, stride = block.stride;
  const auto* src = static_cast<const typename Floats::Element*>(block.src) + first_row * stride;
  constexpr int64_t L = V::kLanes;
  const auto dst = [&](int64_t row, int64_t i) { return Codes::at(block.dst, (first_row + row) * stride + i); };
  const auto pairs_at = [&](int64_t i, V::I(&rows)[kRows]) {
    const Quantizer low = quantizers.of_columns(i), high = quantizers.of_columns(i + L);
    const V::I zp = Codes::zero_points(V::pack16(low.zp, high.zp));
    for (int64_t row = 0; row < kRows; ++row) {
      const auto* from = src + row * stride + i;
      rows[row] = V::add16(V::pack16(low(Floats::load(from)), high(Floats::load(from + L))), zp);
    }
  };
  using Packed = typename Codes::Packed;
  // The pairs at columns i and k of every row; use(row, packed) takes them.
  const auto pack_pairs = [&](int64_t i, int64_t k, const auto& use) {
    V::I first[kRows], second[kRows];
    pairs_at(i, first);
    pairs_at(k, second);
    for (int64_t row = 0; row < kRows; ++row) use(row, codes.pack(first[row], second[row]));
  };
  const auto whole = [&](int64_t i) {
    if constexpr (Codes::kBits == 8) {
      pack_pairs(i, i + 2 * L,
                 [&](int64_t row, Packed packed) { Codes::template store<kStream>(dst(row, i), packed); });
    } else {
      Packed first[kRows] = {}, second[kRows] = {};
#pragma GCC unroll 1  // hardware prefetches less well for twice as many load instructions
      for (int64_t half = 0; half < 2; ++half)
        pack_pairs(i + 4 * half * L, i + (4 * half + 2) * L, [&](int64_t row, Packed packed) {
          first[row] = second[row];
          second[row] = packed;
        });
      for (int64_t row = 0; row < kRows; ++row) Codes::store(dst(row, i), first[row], second[row]);
    }
  };
  if (cols >= Codes::kWhole) return cover(0, cols, Codes::kWhole, whole);
  if constexpr (Codes::kBits == 4) {
    if constexpr (Codes::kHasShortRows)
      cover(0, cols, kMinColumnsOf4Bits, [&](int64_t i) {
        pack_pairs(i, i + kMinColumnsOf4Bits - 2 * L,
                   [&](int64_t row, Packed packed) { Codes::store_least(dst(row, i), packed); });
      });
  } else {
    const auto one = [&](int64_t i) {
      const Quantizer quantizer = quantizers.of_columns(i);
      for (int64_t row = 0; row < kRows; ++row)
        codes.store1(dst(row, i), quantizer(Floats::load(src + row * stride + i)), quantizer.zp);
    };
    if (cols >= L) return cover(0, cols, L, one);
    const Quantizer quantizer = quantizers.of_first_columns(cols);
    for (int64_t row = 0; row < kRows; ++row)
      codes.store_part(dst(row, 0), quantizer(Floats::load_part(src + row * stride, cols)), quantizer.zp, cols);
  }
}

template <class Floats, class Quantizer, class Codes, bool kStream>
void quantize_columns_with(const QuantizeBlock& block, Codes codes) {
  const Quantizers<Quantizer> quantizers(block.scales, block.zps, block.cols, block.reciprocals);
  int64_t row = 0;
  if constexpr (Quantizer::kNeedsReciprocal)  // divisions take so long that shared loads save nothing
    for (; row + V::kRows <= block.rows; row += V::kRows)
      quantize_tile<Floats, V::kRows, Codes, kStream>(quantizers, block, codes, row);
  for (; row < block.rows; ++row) quantize_tile<Floats, 1, Codes, kStream>(quantizers, block, codes, row);
}

template <class Quantizer, class Codes, Parameters kParameters, bool kStream, class Floats = Float32>
void quantize_with(const QuantizeBlock& block, Codes codes = {}) {
  if (kParameters == kPerRow)
    quantize_rows_with<Floats, Quantizer, Codes, kStream>(block, codes);
  else
    quantize_columns_with<Floats, Quantizer, Codes, kStream>(block, codes);
}

template <Arithmetic kArithmetic, CodeKind kKind, Parameters kParameters>
void quantize(const QuantizeBlock& block) {
  using Codes = Codes8<kKind>;
  if constexpr (kArithmetic == kOneDnn) {
    quantize_with<OneDnnQuantizer, Codes, kParameters, false>(block);
  } else if constexpr (kArithmetic == kProduct) {
    quantize_with<OnnxQuantizer<BoundedProduct>, Codes, kParameters, false>(block);
  } else if constexpr (kArithmetic == kRoundedQuotient) {
    quantize_with<OnnxQuantizer<Rounded<Markstein<false>>>, Codes, kParameters, false>(block);
  } else {
    constexpr bool kWraps = kArithmetic == kWrapping;
    using Dividing = std::conditional_t<kWraps, WrappingQuantizer<Division<false>>, OnnxQuantizer<Division<>>>;
    using Correcting = std::conditional_t<kWraps, WrappingQuantizer<Markstein<false>>, OnnxQuantizer<Markstein<>>>;
    const int64_t count = kParameters == kPerRow ? block.rows : block.cols;
    // For one row, dividing is faster than computing reciprocals.
    if ((kParameters == kPerColumn && block.rows == 1) || !are_safe(block.scales, count))
      return quantize_with<Dividing, AnyCodes8, kParameters, false>(block, AnyCodes8(kKind));
    if constexpr (kWraps) {
      quantize_with<Correcting, AnyCodes8, kParameters, false>(block, AnyCodes8(kKind));
    } else {
      if (!can_stream(block, 1)) return quantize_with<Correcting, Codes, kParameters, false>(block);
      quantize_with<Correcting, Codes, kParameters, true>(block);
      V::fence();
    }
  }
}

template <Arithmetic kArithmetic, CodeKind kKind, Parameters kParameters>
void quantize_f16(const QuantizeBlock& block) {
  if constexpr (kArithmetic == kRoundedQuotient)
    quantize_with<OnnxQuantizer<RoundedProduct>, Codes8<kKind>, kParameters, false, Float16>(block);
  else if constexpr (kArithmetic == kProduct)
    quantize_with<OnnxQuantizer<BoundedProduct>, Codes8<kKind>, kParameters, false, Float16>(block);
  else
    quantize_with<OnnxQuantizer<Float16Quotient<>>, Codes8<kKind>, kParameters, false, Float16>(block);
}

template <CodeKind kKind, Parameters kParameters>
void quantize_4bits(const QuantizeBlock& block) {
  quantize_with<BoundedQuantizer4<kKind, Markstein>, Codes4<kKind>, kParameters, false>(block);
}

template <CodeKind kKind, Parameters kParameters>
void quantize_4bits_f16(const QuantizeBlock& block) {
  quantize_with<BoundedQuantizer4<kKind, Float16Quotient>, Codes4<kKind>, kParameters, false, Float16>(block);
}
