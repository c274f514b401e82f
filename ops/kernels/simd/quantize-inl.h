// quantize: floats to codes with int32 zero points.
//
// There is no lower clamp: NaN, -inf and everything far below the lowest code round to the lowest int32 (V::round),
// which saturates to the lowest code. NaN passes the upper clamp. kWrapping has no clamp at all.

// float to int32, without the zero point, which the caller adds.
template <class Quotient>
struct OnnxQuantizer {
  static constexpr bool kNeedsReciprocal = Quotient::kNeedsReciprocal;
  Quotient quotient;
  V::I zp;
  OnnxQuantizer(V::F scale, V::F reciprocal, V::I zp_) : quotient(scale, reciprocal), zp(zp_) {}
  V::I operator()(V::F x) const { return V::round(quotient(x)); }
};

// To codes of 4 bits: as OnnxQuantizer, but a bound of x clips the codes from above. The bound and its quotient are
// rounded; for narrow zero points both errors are far less than a half.
template <CodeKind kKind>
struct BoundedQuantizer4 {
  static constexpr bool kNeedsReciprocal = true;
  Markstein<false> quotient;
  V::I zp;
  V::F bound;
  BoundedQuantizer4(V::F scale, V::F reciprocal, V::I zp_)
      : quotient(scale, reciprocal),
        zp(zp_),
        bound(V::mul(scale, V::to_float(V::sub(V::set1(int32_t{kKind == kU8 ? 15 : 7}), zp_)))) {}
  V::I operator()(V::F x) const { return V::round(quotient(V::min(bound, x))); }
};

template <class Quotient>
struct RoundedQuotient {
  static constexpr bool kNeedsReciprocal = Quotient::kNeedsReciprocal;
  Quotient quotient;
  RoundedQuotient(V::F scale, V::F reciprocal) : quotient(scale, reciprocal) {}
  V::F operator()(V::F x) const { return V::min(V::set1(kQuotientBound), V::rounded_to_f16(quotient(x))); }
};

template <class Quotient>
struct WrappingQuantizer {
  static constexpr bool kNeedsReciprocal = Quotient::kNeedsReciprocal;
  Quotient quotient;
  V::I zp_int32;
  V::I zp;  // 0: operator() adds the zero point
  WrappingQuantizer(V::F scale, V::F reciprocal, V::I zp_)
      : quotient(scale, reciprocal), zp_int32(zp_), zp(V::set1(int32_t{0})) {}
  V::I operator()(V::F x) const { return V::add(V::round_wrapping(quotient(x)), zp_int32); }
};

struct OneDnnQuantizer {
  static constexpr bool kNeedsReciprocal = true;
  V::F reciprocal, zp_f32;
  V::I zp;  // 0: operator() adds the zero point before rounding
  OneDnnQuantizer(V::F, V::F reciprocal_, V::I zp_)
      : reciprocal(reciprocal_), zp_f32(V::to_float(zp_)), zp(V::set1(int32_t{0})) {}
  V::I operator()(V::F x) const {
    return V::round(V::min(V::set1(kQuotientBound), V::add(V::mul(x, reciprocal), zp_f32)));
  }
};

// The parameters of a block, per row or per column, with the reciprocals of the scales if the quantizer needs them.
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
  }
  Quantizer of_row(int64_t i) const { return {V::set1(scales_[i]), V::set1(reciprocals_[i]), V::set1(zps_[i])}; }
  Quantizer of_columns(int64_t i) const { return {V::load(scales_ + i), V::load(reciprocals_ + i), V::load(zps_ + i)}; }
  Quantizer of_first_columns(int64_t n) const {
    return {V::load_part(scales_, n), V::load_part(reciprocals_, n), V::load_part(zps_, n)};
  }

 private:
  const float* scales_;
  const int32_t* zps_;
  const float* reciprocals_;
  alignas(64) float storage_[Quantizer::kNeedsReciprocal ? kMaxParameters : 1];
};

template <class Floats, class Quantizer, class Codes, bool kStream>
void quantize_rows_with(const QuantizeBlock& block) {
  constexpr int64_t L = V::kLanes;
  const Quantizers<Quantizer> quantizers(block.scales, block.zps, block.rows);
  for (int64_t row = 0; row < block.rows; ++row) {
    const auto* src = static_cast<const typename Floats::Element*>(block.src) + row * block.stride;
    const Quantizer quantizer = quantizers.of_row(row);
    const V::I zp = Codes::zero_points(V::pack16(quantizer.zp, quantizer.zp));
    const auto dst = [&](int64_t i) { return Codes::at(block.dst, row * block.stride + i); };
    const auto two = [&](int64_t i) {
      return V::add16(V::pack16(quantizer(Floats::load(src + i)), quantizer(Floats::load(src + i + L))), zp);
    };
    if (block.cols >= 4 * L) {
      cover(0, block.cols, 4 * L, [&](int64_t i) { Codes::template store4<kStream>(dst(i), two(i), two(i + 2 * L)); });
    } else if constexpr (Codes::kBits == 4) {
      if constexpr (Codes::kHasRowsOfTwo)
        cover(0, block.cols, 2 * L, [&](int64_t i) { Codes::store2(dst(i), two(i)); });
    } else if (block.cols >= L) {
      cover(0, block.cols, L,
            [&](int64_t i) { Codes::store1(dst(i), quantizer(Floats::load(src + i)), quantizer.zp); });
    } else {
      Codes::store_part(dst(0), quantizer(Floats::load_part(src, block.cols)), quantizer.zp, block.cols);
    }
  }
}

// kRows rows at once, so that the parameters of the columns are loaded once for all of them.
template <class Floats, int kRows, class Codes, bool kStream, class Quantizer>
void quantize_some_rows(const Quantizers<Quantizer>& quantizers, const QuantizeBlock& block, int64_t first_row) {
  const int64_t cols = block.cols, stride = block.stride;
  const auto* src = static_cast<const typename Floats::Element*>(block.src) + first_row * stride;
  constexpr int64_t L = V::kLanes;
  const auto dst = [&](int64_t row, int64_t i) { return Codes::at(block.dst, (first_row + row) * stride + i); };
  const auto two = [&](int64_t i, V::I(&rows)[kRows]) {
    const Quantizer low = quantizers.of_columns(i), high = quantizers.of_columns(i + L);
    const V::I zp = Codes::zero_points(V::pack16(low.zp, high.zp));
    for (int64_t row = 0; row < kRows; ++row) {
      const auto* from = src + row * stride + i;
      rows[row] = V::add16(V::pack16(low(Floats::load(from)), high(Floats::load(from + L))), zp);
    }
  };
  const auto four = [&](int64_t i) {
    V::I halves[2][kRows];
    two(i, halves[0]);
    two(i + 2 * L, halves[1]);
    for (int64_t row = 0; row < kRows; ++row)
      Codes::template store4<kStream>(dst(row, i), halves[0][row], halves[1][row]);
  };
  if (cols >= 4 * L) return cover(0, cols, 4 * L, four);
  if constexpr (Codes::kBits == 4) {
    if constexpr (Codes::kHasRowsOfTwo)
      cover(0, cols, 2 * L, [&](int64_t i) {
        V::I pairs[kRows];
        two(i, pairs);
        for (int64_t row = 0; row < kRows; ++row) Codes::store2(dst(row, i), pairs[row]);
      });
  } else {
    const auto one = [&](int64_t i) {
      const Quantizer quantizer = quantizers.of_columns(i);
      for (int64_t row = 0; row < kRows; ++row)
        Codes::store1(dst(row, i), quantizer(Floats::load(src + row * stride + i)), quantizer.zp);
    };
    if (cols >= L) return cover(0, cols, L, one);
    const Quantizer quantizer = quantizers.of_first_columns(cols);
    for (int64_t row = 0; row < kRows; ++row)
      Codes::store_part(dst(row, 0), quantizer(Floats::load_part(src + row * stride, cols)), quantizer.zp, cols);
  }
}

template <class Floats, class Quantizer, class Codes, bool kStream>
void quantize_columns_with(const QuantizeBlock& block) {
  const Quantizers<Quantizer> quantizers(block.scales, block.zps, block.cols, block.reciprocals);
  int64_t row = 0;
  for (; row + V::kRows <= block.rows; row += V::kRows)
    quantize_some_rows<Floats, V::kRows, Codes, kStream>(quantizers, block, row);
  for (; row < block.rows; ++row) quantize_some_rows<Floats, 1, Codes, kStream>(quantizers, block, row);
}

template <class Quantizer, class Codes, Parameters kParameters, bool kStream, class Floats = Float32>
void quantize_with(const QuantizeBlock& block) {
  if (kParameters == kPerRow)
    quantize_rows_with<Floats, Quantizer, Codes, kStream>(block);
  else
    quantize_columns_with<Floats, Quantizer, Codes, kStream>(block);
}

template <Arithmetic kArithmetic, template <bool> class Quotient>
struct QuantizerWith {
  using Type = OnnxQuantizer<Quotient<true>>;
};
template <template <bool> class Quotient>
struct QuantizerWith<kWrapping, Quotient> {
  using Type = WrappingQuantizer<Quotient<false>>;
};
template <template <bool> class Quotient>
struct QuantizerWith<kRoundedQuotient, Quotient> {
  using Type = OnnxQuantizer<RoundedQuotient<Quotient<true>>>;
};
template <Arithmetic kArithmetic, template <bool> class Quotient>
using QuantizerOf = typename QuantizerWith<kArithmetic, Quotient>::Type;

template <Arithmetic kArithmetic, CodeKind kKind, Parameters kParameters>
void quantize(const QuantizeBlock& block) {
  using Codes = Codes8<kKind>;
  const int64_t count = kParameters == kPerRow ? block.rows : block.cols;
  if (kArithmetic == kOneDnn) {
    quantize_with<OneDnnQuantizer, Codes, kParameters, false>(block);
  } else if (kArithmetic == kRoundedQuotient) {
    quantize_with<QuantizerOf<kRoundedQuotient, Markstein>, Codes, kParameters, false>(block);
  } else if ((kParameters == kPerColumn && block.rows == 1) || !are_safe(block.scales, count)) {
    // For one row, dividing is faster than computing reciprocals.
    quantize_with<QuantizerOf<kArithmetic, Division>, Codes, kParameters, false>(block);
  } else if (kArithmetic == kOnnx && can_stream(block, 1)) {
    quantize_with<QuantizerOf<kOnnx, Markstein>, Codes, kParameters, true>(block);
    V::fence();
  } else {
    quantize_with<QuantizerOf<kArithmetic, Markstein>, Codes, kParameters, false>(block);
  }
}

template <Arithmetic kArithmetic, CodeKind kKind, Parameters kParameters>
void quantize_f16(const QuantizeBlock& block) {
  quantize_with<QuantizerOf<kArithmetic, Markstein>, Codes8<kKind>, kParameters, false, Float16>(block);
}

// The bounds of columns would take longer to compute than clips.
template <class Floats, CodeKind kKind, Parameters kParameters>
void quantize_4bits_of(const QuantizeBlock& block) {
  if (kParameters == kPerRow)
    quantize_with<BoundedQuantizer4<kKind>, Codes4<kKind, false>, kParameters, false, Floats>(block);
  else
    quantize_with<QuantizerOf<kOnnx, Markstein>, Codes4<kKind, true>, kParameters, false, Floats>(block);
}

template <CodeKind kKind, Parameters kParameters>
void quantize_4bits(const QuantizeBlock& block) {
  quantize_4bits_of<Float32, kKind, kParameters>(block);
}

template <CodeKind kKind, Parameters kParameters>
void quantize_4bits_f16(const QuantizeBlock& block) {
  quantize_4bits_of<Float16, kKind, kParameters>(block);
}
