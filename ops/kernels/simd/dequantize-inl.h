// dequantize: codes with int32 zero points to floats.

// The first element with an address that is aligned to a vector, if its code begins at a byte; otherwise 0.
template <class Floats, class Codes>
int64_t first_aligned(const typename Floats::Element* dst, int64_t cols) {
  const int64_t first = Floats::first_aligned(dst, cols);
  return Codes::kBits == 8 || first % 2 == 0 ? first : 0;
}

template <class Codes>
struct Dequantizer {
  V::F scale;
  V::I zp;
  V::F value(V::I code) const { return V::mul(V::to_float(V::sub(code, zp)), scale); }
  V::F at(const uint8_t* p) const { return value(Codes::load(p)); }
  V::F part_at(const uint8_t* p, int64_t n) const { return value(Codes::load_part(p, n)); }
};

// A lookup table: with sixteen lanes, a vector holds a float for each code of 4 bits. For the parameters of a row this
// is the dequantized value, for the parameters of columns the code itself. `Vector` is V: only a template may call a
// function that V does not have.
template <class Codes, class Vector>
struct RowTable {
  V::F values;
  RowTable(V::F scale, V::I zp) : values(V::mul(V::sub(V::load(Codes::kFloats), V::to_float(zp)), scale)) {}
  V::F at(const uint8_t* p) const { return Vector::look_up_codes_of_4_bits(values, p); }
};

template <class Codes, class Vector>
struct ColumnTable {
  V::F scale, zp;
  ColumnTable(V::F scale_, V::I zp_) : scale(scale_), zp(V::to_float(zp_)) {}
  V::F at(const uint8_t* p) const {
    return V::mul(V::sub(Vector::look_up_codes_of_4_bits(V::load(Codes::kFloats), p), zp), scale);
  }
};

template <class Codes, bool kHasTable = Codes::kBits == 4 && V::kLanes == 16>
struct Dequantizers {
  using Row = Dequantizer<Codes>;
  using Column = Dequantizer<Codes>;
};
template <class Codes>
struct Dequantizers<Codes, true> {
  using Row = RowTable<Codes, V>;
  using Column = ColumnTable<Codes, V>;
};

template <class Floats, class Codes, bool kStream>
void dequantize_row(const uint8_t* src, typename Floats::Element* dst, int64_t cols,
                    const typename Dequantizers<Codes>::Row& dequantizer) {
  constexpr int64_t L = V::kLanes;
  if constexpr (Codes::kBits == 8)
    if (cols < L) return Floats::store_part(dst, dequantizer.part_at(src, cols), cols);
  const auto vector_at = [&](int64_t i) {
    Floats::template store<kStream>(dst + i, dequantizer.at(Codes::at(src, i)));
  };
  if (cols == 2 * L) {  // groups of 32 with AVX-512: a loop would double the time
    vector_at(0);
    vector_at(L);
    return;
  }
  int64_t i = first_aligned<Floats, Codes>(dst, cols);
  if (i > 0) vector_at(0);
  for (; i + 4 * L <= cols; i += 4 * L)
    for (int64_t k = i; k < i + 4 * L; k += L) vector_at(k);
  cover(i, cols, L, vector_at);
}

template <class Floats, class Codes, bool kStream>
void dequantize_rows(const DequantizeBlock& original) {
  const DequantizeBlock block = original;  // the compiler sees that stores do not change it
  for (int64_t row = 0; row < block.rows; ++row)
    dequantize_row<Floats, Codes, kStream>(Codes::at(block.src, row * block.stride),
                                           static_cast<typename Floats::Element*>(block.dst) + row * block.stride,
                                           block.cols, {V::set1(block.scales[row]), V::set1(block.zps[row])});
}

// Rows of float16 from codes of 4 bits: the sixteen values of a row are converted once and looked up.
template <class Codes, class Vector>
void choose_rows_of_f16(const DequantizeBlock& original) {
  constexpr int64_t L = V::kLanes;
  const DequantizeBlock block = original;  // the compiler sees that stores do not change it
  for (int64_t row = 0; row < block.rows; ++row) {
    const RowTable<Codes, Vector> table(V::set1(block.scales[row]), V::set1(block.zps[row]));
    const V::I values = Vector::f16_twice(table.values);
    const uint8_t* src = Codes::at(block.src, row * block.stride);
    uint16_t* dst = static_cast<uint16_t*>(block.dst) + row * block.stride;
    const auto store_at = [&](int64_t i) { Vector::store_chosen_words(dst + i, values, Codes::at(src, i)); };
    if (block.cols == 2 * L)  // groups of 32: a loop would double the time
      store_at(0);
    else
      cover(0, block.cols, 2 * L, store_at);
  }
}

// kRows rows, `stride` apart: they share the loads of the columns' parameters.
template <class Floats, int kRows, class Codes, bool kStream>
void dequantize_tile(const DequantizeBlock& block, int64_t first, int64_t stride) {
  constexpr int64_t L = V::kLanes;
  const uint8_t* src = Codes::at(block.src, first * block.stride);
  auto* dst = static_cast<typename Floats::Element*>(block.dst) + first * block.stride;
  const int64_t cols = block.cols;
  if constexpr (Codes::kBits == 8) {
    if (cols < L) {
      const Dequantizer<Codes> dequantizer{V::load_part(block.scales, cols), V::load_part(block.zps, cols)};
      for (int64_t at = 0; at < kRows * stride; at += stride)
        Floats::store_part(dst + at, dequantizer.part_at(src + at, cols), cols);
      return;
    }
  }
  const auto vectors_at = [&](int64_t i) {
    const typename Dequantizers<Codes>::Column dequantizer{V::load(block.scales + i), V::load(block.zps + i)};
    for (int64_t at = i; at < i + kRows * stride; at += stride)
      Floats::template store<kStream>(dst + at, dequantizer.at(Codes::at(src, at)));
  };
  const int64_t aligned = first_aligned<Floats, Codes>(dst, cols);
  if (aligned > 0) vectors_at(0);
  cover(aligned, cols, L, vectors_at);
}

template <class Floats, class Codes, bool kStream>
void dequantize_columns(const DequantizeBlock& block) {
  // Rows are processed together only if all of them have the same alignment. Streaming stores to one row at a time are
  // up to twice as fast.
  const int64_t step = Floats::rows_to_same_alignment(block.stride, block.cols);
  for (int64_t start = 0; start < step && start < block.rows; ++start) {
    int64_t row = start;
    for (; !kStream && row + (V::kRows - 1) * step < block.rows; row += V::kRows * step)
      dequantize_tile<Floats, V::kRows, Codes, kStream>(block, row, step * block.stride);
    for (; row < block.rows; row += step) dequantize_tile<Floats, 1, Codes, kStream>(block, row, step * block.stride);
  }
}

template <class Codes, Parameters kParameters, bool kStream, class Floats = Float32>
void dequantize_with(const DequantizeBlock& block) {
  if (kParameters == kPerRow)
    dequantize_rows<Floats, Codes, kStream>(block);
  else
    dequantize_columns<Floats, Codes, kStream>(block);
}

template <class Codes, Parameters kParameters>
void dequantize_to_float(const DequantizeBlock& block) {
  if (can_stream(block, sizeof(float))) {
    dequantize_with<Codes, kParameters, true>(block);
    V::fence();
  } else {
    dequantize_with<Codes, kParameters, false>(block);
  }
}

template <CodeKind kKind, Parameters kParameters>
void dequantize(const DequantizeBlock& block) {
  dequantize_to_float<Codes8<kKind>, kParameters>(block);
}

template <CodeKind kKind, Parameters kParameters>
void dequantize_f16(const DequantizeBlock& block) {
  dequantize_with<Codes8<kKind>, kParameters, false, NumericFloat16>(block);
}

template <CodeKind kKind, Parameters kParameters>
void dequantize_4bits(const DequantizeBlock& block) {
  dequantize_to_float<Codes4<kKind>, kParameters>(block);
}

template <CodeKind kKind, Parameters kParameters>
void dequantize_4bits_f16(const DequantizeBlock& block) {
  if constexpr (kParameters == kPerRow && V::kLanes == 16)
    choose_rows_of_f16<Codes4<kKind>, V>(block);
  else
    dequantize_with<Codes4<kKind>, kParameters, false, NumericFloat16>(block);
}
