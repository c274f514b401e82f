// two_terms: floats to codes and to codes of what these leave.

struct TwoTerms {
  V::I code, remainder;
};

// The clip before rounding equals the clip after it: its bounds are integers.
ORT_DYNQ_INLINE inline TwoTerms two_terms_of(V::F x, V::F inverse) {
  const auto clip = [](V::F a) { return V::max(V::min(a, V::set1(127.0f)), V::set1(-127.0f)); };
  const V::F t = V::replace_nan(V::mul(x, inverse), V::set1(0.0f)), code = V::round_float(clip(t));
  const V::F rest = V::mul(V::sub(t, code), V::set1(254.0f));
  return {V::round(code), V::round(clip(rest))};
}

// Stores four vectors of codes and of remainders; terms(k) computes those of vector k.
template <class Terms>
void store_two_terms(uint8_t* codes, uint8_t* remainders, const Terms& terms) {
  const TwoTerms a = terms(0), b = terms(1), c = terms(2), d = terms(3);
  const V::I code_ab = V::pack16(a.code, b.code), code_cd = V::pack16(c.code, d.code);
  const V::I remainder_ab = V::pack16(a.remainder, b.remainder), remainder_cd = V::pack16(c.remainder, d.remainder);
  V::store_codes8<false>(codes, V::pack8<kS8>(code_ab, code_cd));
  V::store_codes8<false>(remainders, V::pack8<kS8>(remainder_ab, remainder_cd));
}

inline void two_terms(const TwoTermBlock& block) {
  constexpr int64_t L = V::kLanes, kWhole = 4 * L;
  const float* src = block.src;
  auto* codes = reinterpret_cast<uint8_t*>(block.codes);
  auto* remainders = reinterpret_cast<uint8_t*>(block.remainders);
  const int64_t cols = block.cols;
  const auto terms_at = [&](int64_t at, int64_t row) {
    return two_terms_of(V::load(src + at), V::set1(block.inverses[row]));
  };
  int64_t row = 0;
  if (cols == L || cols == 2 * L) {  // several rows at once
    const int shift = cols == L ? 0 : 1;
    for (const int64_t together = kWhole / cols; row + together <= block.rows; row += together)
      store_two_terms(codes + row * cols, remainders + row * cols,
                      [&](int64_t k) { return terms_at(row * cols + k * L, row + (k >> shift)); });
  }
  const V::I zero = V::set1(int32_t{0});
  for (; row < block.rows; ++row) {
    const int64_t first = row * cols;
    if (cols >= kWhole) {
      cover(first, first + cols, kWhole, [&](int64_t at) {
        store_two_terms(codes + at, remainders + at, [&](int64_t k) { return terms_at(at + k * L, row); });
      });
    } else if (cols >= L) {
      cover(first, first + cols, L, [&](int64_t at) {
        const TwoTerms terms = terms_at(at, row);
        V::store1<kS8>(codes + at, terms.code, zero);
        V::store1<kS8>(remainders + at, terms.remainder, zero);
      });
    } else {
      const TwoTerms terms = two_terms_of(V::load_part(src + first, cols), V::set1(block.inverses[row]));
      V::store_part<kS8>(codes + first, terms.code, zero, cols);
      V::store_part<kS8>(remainders + first, terms.remainder, zero, cols);
    }
  }
}
