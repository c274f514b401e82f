#include "core/packed_heads.h"

#include <algorithm>
#include <cstring>

#include "core/parallel.h"
#include "core/rounding.h"
#include "core/scratch.h"
#include "kernels/compressed.h"
#include "kernels/dispatch.h"
#include "kernels/products.h"

namespace dynq {
namespace {

// Up to four rows of bytes become quads.
void interleave(const uint8_t* rows, int64_t stride, int64_t count, int64_t columns, uint8_t* quads) {
  if (count < kQuad || columns < kBlockColumns) {
    for (int64_t row = 0; row < count; ++row)
      for (int64_t i = 0; i < columns; ++i) quads[i * kQuad + row] = rows[row * stride + i];
    return;
  }
  uint8_t bytes[kQuad][kBlockColumns];
  for (int64_t row = 0; row < kQuad; ++row) std::memcpy(bytes[row], rows + row * stride, kBlockColumns);
  for (int64_t i = 0; i < kBlockColumns; ++i)  // compilers make vector instructions of this loop
    for (int64_t row = 0; row < kQuad; ++row) quads[i * kQuad + row] = bytes[row][i];
}

// Copies a row of codes to its places in quads, which are a block of columns apart; returns the sum of the codes.
int32_t to_quads(const int8_t* row, int64_t size, int8_t* quads) {
  const int64_t whole = size / kQuad * kQuad;
  for (int64_t i = 0; i < whole; i += kQuad) std::memcpy(quads + i * kBlockColumns, row + i, kQuad);
  for (int64_t i = whole; i < size; ++i) quads[whole * kBlockColumns + i - whole] = row[i];
  int32_t sum = 0;
  for (int64_t i = 0; i < size; ++i) sum += row[i];
  return sum;
}

constexpr int64_t kWidenedAtOnce = 128;  // even

// sums[size + i] = sums[i] + code i of each row, of up to 256 rows.
void add_rows(const int8_t* rows, int64_t stride, int64_t count, int64_t size, int32_t* sums) {
  constexpr int64_t kAtOnce = 64;
  for (int64_t first = 0; first < size; first += kAtOnce) {
    const int64_t some = std::min(kAtOnce, size - first);
    int16_t part[kAtOnce] = {};
    for (int64_t row = 0; row < count; ++row)
      for (int64_t i = 0; i < some; ++i) part[i] = static_cast<int16_t>(part[i] + rows[row * stride + first + i]);
    for (int64_t i = 0; i < some; ++i) sums[size + first + i] = sums[first + i] + part[i];
  }
}

}  // namespace

PackedHeads::PackedHeads(Context& context, const HeadCodes& key, const HeadCodes& value)
    : has_key_words(active_compressed().panels_of_keys),
      has_value_words(active_compressed().panels_of_values && value.sizes().tokens <= kMaxWordTokens),
      token_unit(has_key_words || has_value_words ? std::max(kBlockColumns, active_compressed().panel_columns)
                                                  : kBlockColumns),
      factors_size(round_up(value.sizes().tokens, kSoftmaxUnit) + kSoftmaxUnit),
      columns_(value.sizes().size) {
  const int64_t heads = key.sizes().batches * key.sizes().heads, tokens = key.sizes().tokens;
  const int64_t columns = active_compressed().panel_columns, depth = key.sizes().size, size = value.sizes().size;
  if (has_key_words) {
    key_size = round_up(tokens, columns) * round_up(depth, 2);
    key_words = memory<int16_t>(heads * key_size);
  } else {
    key_size = round_up(tokens, kBlockColumns) * round_up(depth, kQuad);
    keys = memory<int8_t>(heads * key_size);
    key_sums = memory<int32_t>(heads * tokens);
  }
  if (has_value_words) {
    value_size = round_up(size, columns) * round_up(tokens, 2);
    value_words = memory<int16_t>(heads * value_size);
    sums_size_ = (divide_up(tokens, token_unit) + 1) * size;
    sums_ = memory<int32_t>(heads * sums_size_);
  } else {
    value_size = round_up(size, kBlockColumns) * round_up(tokens, kQuad);
    values = memory<int8_t>(heads * value_size);
  }
  key_scales = memory<float>(heads * tokens);
  factors = memory<float>(heads * factors_size);
  is_finite = memory<bool>(heads);
  const int64_t heads_at_once = std::max<int64_t>(kTaskElements / std::max<int64_t>(tokens * (depth + size), 1), 1);
  run_tasks(context, divide_up(heads, heads_at_once), [&](int64_t task) {
    for (int64_t head = task * heads_at_once, end = std::min(head + heads_at_once, heads); head < end; ++head) {
      has_key_words ? pack_key_words(key, head) : pack_keys(key, head);
      read_factors(value, head);
      has_value_words ? pack_value_words(value, head) : pack_values(value, head);
    }
  });
}

void PackedHeads::add_offset(int64_t head, int64_t start, int64_t end, bool fits, int32_t* numbers) const {
  const int32_t* const of_head = sums_.get() + head * sums_size_;
  const int32_t* const before = of_head + start / token_unit * columns_;
  const int32_t* const all = of_head + divide_up(end, token_unit) * columns_;
  const int32_t factor = fits ? kWordOffset : kWordOffset / kHighByte, more = fits ? 0 : 1;
  for (int64_t i = 0; i < columns_; ++i) numbers[i] = (all[i] - before[i]) * factor + more;
}

void PackedHeads::pack_key_words(const HeadCodes& codes, int64_t head) const {
  const HeadSizes& n = codes.sizes();
  const int64_t columns = active_compressed().panel_columns, pairs = divide_up(n.size, 2);
  int16_t* const of_head = key_words.get() + head * key_size;
  if (n.tokens % columns != 0) std::memset(of_head, 0, static_cast<size_t>(key_size) * sizeof *of_head);
  for (int64_t token = 0; token < n.tokens; ++token) {
    const int64_t row = codes.row(head / n.heads, head % n.heads, token);
    const auto* from = reinterpret_cast<const int8_t*>(codes.codes(row));
    int16_t* to = of_head + (token / columns * pairs * columns + token % columns) * 2;
    key_scales[static_cast<size_t>(head * n.tokens + token)] = codes.scale(row);
    for (int64_t first = 0; first < n.size; first += kWidenedAtOnce) {
      const int64_t count = std::min(kWidenedAtOnce, n.size - first);
      int16_t words[kWidenedAtOnce];
      words[count - 1 + count % 2] = 0;
      for (int64_t i = 0; i < count; ++i) words[i] = from[first + i];  // compilers make vector instructions of it
      for (int64_t i = 0; i < count; i += 2, to += 2 * columns) std::memcpy(to, words + i, 2 * sizeof *to);
    }
  }
}

void PackedHeads::pack_value_words(const HeadCodes& codes, int64_t head) const {
  const HeadSizes& n = codes.sizes();
  PanelPack pack = {};
  pack.codes = codes.codes(codes.row(head / n.heads, head % n.heads, 0));
  pack.code_stride = codes.stride() * n.size;
  pack.depth = n.tokens;
  pack.cols = n.size;
  pack.panels = value_words.get() + head * value_size;
  pack.panel_stride = round_up(n.tokens, 2) * active_compressed().panel_columns;
  pack.fits_int8 = true;
  active_compressed().pack[kS8](pack);
  int32_t* sums = sums_.get() + head * sums_size_;
  std::fill_n(sums, n.size, 0);
  for (int64_t token = 0; token < n.tokens; token += token_unit, sums += n.size)
    add_rows(static_cast<const int8_t*>(pack.codes) + token * pack.code_stride, pack.code_stride,
             std::min(token_unit, n.tokens - token), n.size, sums);
}

void PackedHeads::pack_keys(const HeadCodes& codes, int64_t head) const {
  const HeadSizes& n = codes.sizes();
  const int64_t depth = round_up(n.size, kQuad);
  int8_t* const of_head = keys.get() + head * key_size;
  if (depth != n.size || n.tokens % kBlockColumns != 0) std::memset(of_head, 0, static_cast<size_t>(key_size));
  for (int64_t token = 0; token < n.tokens; ++token) {
    const int64_t row = codes.row(head / n.heads, head % n.heads, token);
    const auto* from = reinterpret_cast<const int8_t*>(codes.codes(row));
    int8_t* const quads = of_head + token / kBlockColumns * kBlockColumns * depth + token % kBlockColumns * kQuad;
    key_scales[static_cast<size_t>(head * n.tokens + token)] = codes.scale(row);
    key_sums[static_cast<size_t>(head * n.tokens + token)] = to_quads(from, n.size, quads);
  }
}

void PackedHeads::read_factors(const HeadCodes& codes, int64_t head) const {
  const HeadSizes& n = codes.sizes();
  const int64_t first = codes.row(head / n.heads, head % n.heads, 0);
  float* const of_tokens = factors.get() + head * factors_size;
  bool all_finite = true;
  for (int64_t token = 0; token < factors_size; ++token) {
    of_tokens[token] = token < n.tokens ? codes.scale(first + token * codes.stride()) * kUnitOfCodes : 0.0f;
    all_finite = all_finite && of_tokens[token] < kInfinity;
  }
  is_finite[static_cast<size_t>(head)] = all_finite;
}

void PackedHeads::pack_values(const HeadCodes& codes, int64_t head) const {
  const HeadSizes& n = codes.sizes();
  const int64_t stride = codes.stride() * n.size, length = round_up(n.tokens, kQuad);
  const uint8_t* const bytes = codes.codes(codes.row(head / n.heads, head % n.heads, 0));
  auto* const of_head = reinterpret_cast<uint8_t*>(values.get() + head * value_size);
  if (length != n.tokens || n.size % kBlockColumns != 0) std::memset(of_head, 0, static_cast<size_t>(value_size));
  for (int64_t block = 0; block < n.size; block += kBlockColumns) {
    const int64_t columns = std::min(kBlockColumns, n.size - block);
    uint8_t* quads = of_head + block * length;
    for (int64_t token = 0; token < n.tokens; token += kQuad, quads += kBlockColumns * kQuad)
      interleave(bytes + token * stride + block, stride, std::min(kQuad, n.tokens - token), columns, quads);
  }
}

}  // namespace dynq
