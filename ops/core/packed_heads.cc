#include "core/packed_heads.h"

#include <algorithm>
#include <cstring>

#include "core/parallel.h"
#include "core/rounding.h"
#include "core/scratch.h"
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

}  // namespace

PackedHeads::PackedHeads(Context& context, const HeadCodes& key, const HeadCodes& value)
    : key_size(round_up(key.sizes().tokens, kBlockColumns) * round_up(key.sizes().size, kQuad)),
      value_size(round_up(value.sizes().size, kBlockColumns) * round_up(value.sizes().tokens, kQuad)),
      factors_size(round_up(value.sizes().tokens, kSoftmaxUnit) + kSoftmaxUnit) {
  const int64_t heads = key.sizes().batches * key.sizes().heads, tokens = key.sizes().tokens;
  keys = memory<int8_t>(heads * key_size);
  values = memory<int8_t>(heads * value_size);
  key_scales = memory<float>(heads * tokens);
  key_sums = memory<int32_t>(heads * tokens);
  factors = memory<float>(heads * factors_size);
  is_finite = memory<bool>(heads);
  const int64_t elements = tokens * (key.sizes().size + value.sizes().size);
  const int64_t heads_at_once = std::max<int64_t>(kTaskElements / std::max<int64_t>(elements, 1), 1);
  run_tasks(context, divide_up(heads, heads_at_once), [&](int64_t task) {
    for (int64_t head = task * heads_at_once, end = std::min(head + heads_at_once, heads); head < end; ++head) {
      pack_keys(key, head);
      pack_values(value, head);
    }
  });
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

void PackedHeads::pack_values(const HeadCodes& codes, int64_t head) const {
  const HeadSizes& n = codes.sizes();
  const int64_t first = codes.row(head / n.heads, head % n.heads, 0), stride = codes.stride() * n.size;
  const int64_t length = round_up(n.tokens, kQuad);
  const uint8_t* const bytes = codes.codes(first);
  float* const of_tokens = factors.get() + head * factors_size;
  bool all_finite = true;
  for (int64_t token = 0; token < factors_size; ++token) {
    of_tokens[token] = token < n.tokens ? codes.scale(first + token * codes.stride()) * kUnitOfCodes : 0.0f;
    all_finite = all_finite && of_tokens[token] < kInfinity;
  }
  is_finite[static_cast<size_t>(head)] = all_finite;
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
