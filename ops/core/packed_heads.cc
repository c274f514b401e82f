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

// Copies the quads of up to a block of rows to [size / 4][16], the rows side by side, padded with 0.
void to_quads(const uint8_t* rows, int64_t stride, int64_t count, int64_t size, uint32_t* quads) {
  const int64_t rest = size % kQuad;
  for (int64_t i = 0; i + kQuad <= size; i += kQuad, quads += kBlockColumns) {
    if (count == kBlockColumns) {
      for (int64_t row = 0; row < kBlockColumns; ++row) std::memcpy(quads + row, rows + row * stride + i, kQuad);
      continue;
    }
    std::fill_n(quads, kBlockColumns, 0);
    for (int64_t row = 0; row < count; ++row) std::memcpy(quads + row, rows + row * stride + i, kQuad);
  }
  if (rest == 0) return;
  std::fill_n(quads, kBlockColumns, 0);
  for (int64_t row = 0; row < count; ++row)
    std::memcpy(quads + row, rows + row * stride + size - rest, static_cast<size_t>(rest));
}

// The sums of the codes of quads, one of each row. Compilers make vector instructions of these loops.
void add_quads(const uint32_t* quads, int64_t count, int32_t (&sums)[kBlockColumns]) {
  constexpr uint32_t kOffset = 0x80808080, kEven = 0x00ff00ff;
  constexpr int64_t kAtOnce = 128;  // sums of two codes each: they fit 16 bits
  std::fill_n(sums, kBlockColumns, static_cast<int32_t>(-kQuad * 128 * count));
  for (int64_t first = 0; first < count; first += kAtOnce) {
    uint32_t halves[kBlockColumns] = {};
    for (int64_t i = first, end = std::min(first + kAtOnce, count); i < end; ++i)
      for (int64_t row = 0; row < kBlockColumns; ++row) {
        const uint32_t codes = quads[i * kBlockColumns + row] ^ kOffset;
        halves[row] += (codes & kEven) + (codes >> 8 & kEven);
      }
    for (int64_t row = 0; row < kBlockColumns; ++row)
      sums[row] += static_cast<int32_t>((halves[row] & 0xffff) + (halves[row] >> 16));
  }
}

// Two codes, the low bytes, become words.
uint32_t to_words(uint32_t codes) {
  const auto first = static_cast<uint32_t>(static_cast<int32_t>(codes << 24) >> 24),
             second = static_cast<uint32_t>(static_cast<int32_t>(codes << 16) >> 8);
  return (first & 0xffff) | (second & 0xffff0000);
}

constexpr int64_t kQuadsAtOnce = 64;  // of each row: they stay in the first-level cache

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
    keys = memory<uint32_t>(heads * key_size / kQuad);
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
  const int64_t row = codes.row(head / n.heads, head % n.heads, 0), stride = codes.stride() * n.size;
  read_key_scales(codes, head);
  for (int64_t token = 0; token < round_up(n.tokens, columns); token += kBlockColumns) {
    const int64_t count = std::clamp<int64_t>(n.tokens - token, 0, kBlockColumns);
    const uint8_t* const from = codes.codes(row) + (count > 0 ? token * stride : 0);
    int16_t* to = of_head + (token / columns * pairs * columns + token % columns) * 2;
    for (int64_t first = 0; first < n.size; first += kQuadsAtOnce * kQuad) {
      const int64_t size = std::min(kQuadsAtOnce * kQuad, n.size - first);
      uint32_t quads[kQuadsAtOnce * kBlockColumns];
      to_quads(from + first, stride, count, size, quads);
      for (int64_t pair = 0; pair < divide_up(size, 2); ++pair, to += 2 * columns) {
        uint32_t words[kBlockColumns];
        for (int64_t i = 0; i < kBlockColumns; ++i)
          words[i] = to_words(quads[pair / 2 * kBlockColumns + i] >> pair % 2 * 16);
        std::memcpy(to, words, sizeof words);
      }
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
  const int64_t row = codes.row(head / n.heads, head % n.heads, 0), stride = codes.stride() * n.size;
  read_key_scales(codes, head);
  for (int64_t token = 0; token < n.tokens; token += kBlockColumns) {
    const int64_t count = std::min(kBlockColumns, n.tokens - token);
    uint32_t* const quads = keys.get() + (head * key_size + token * depth) / kQuad;
    to_quads(codes.codes(row) + token * stride, stride, count, n.size, quads);
    int32_t sums[kBlockColumns];
    add_quads(quads, depth / kQuad, sums);
    std::copy_n(sums, count, key_sums.get() + head * n.tokens + token);
  }
}

void PackedHeads::read_key_scales(const HeadCodes& codes, int64_t head) const {
  const HeadSizes& n = codes.sizes();
  const int64_t first = codes.row(head / n.heads, head % n.heads, 0);
  float* const scales = key_scales.get() + head * n.tokens;
  for (int64_t token = 0; token < n.tokens; ++token) scales[token] = codes.scale(first + token * codes.stride());
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
