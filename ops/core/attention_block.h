// A block of rows of QuantizedAttention, of all heads that share a head of key: their scores, the codes of softmax, and
// the sums of the values.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "core/attention_bias.h"
#include "core/formats.h"
#include "core/head_codes.h"
#include "core/packed_heads.h"

namespace dynq {

constexpr int32_t kAttentionZeroPoint = 128;  // of query, if products are of bytes

// One run: B batches; H heads of query, K of key and value; S rows of query, T rows of key and value; D and E elements
// of a head.
struct AttentionSizes {
  int64_t b, h, k, s, t, d, e;

  int64_t rows() const { return h / k * s; }  // of query for one head of key
};

// The keys that each row of query sees.
struct AttentionWindow {
  int64_t before, after;   // keys before and after the position of a row; -1: all
  int64_t first_position;  // of row 0

  int64_t first(int64_t row) const { return before < 0 ? 0 : std::max<int64_t>(row + first_position - before, 0); }
  int64_t end(int64_t row, int64_t keys) const {
    return after < 0 ? keys : std::clamp<int64_t>(row + first_position + after + 1, 0, keys);
  }
};

// Scales and zero points that are the same for all rows or columns: all tasks of a run share them.
struct AttentionConstants {
  explicit AttentionConstants(int64_t count)
      : zeros(static_cast<size_t>(count), 0.0f),
        ones(static_cast<size_t>(count), 1.0f),
        zero_points(static_cast<size_t>(count), kAttentionZeroPoint),
        no_zero_points(static_cast<size_t>(count), 0) {}

  const std::vector<float> zeros, ones;
  const std::vector<int32_t> zero_points, no_zero_points;
};

// What all tasks of a run share.
struct AttentionRun {
  AttentionSizes n;
  const HeadCodes& query;
  const PackedHeads& packed;
  const AttentionConstants& constants;
  AttentionBias bias;
  float scale, cap, least_added;
  AttentionWindow window;
  bool zero_rows;
  void* dst;
  Storage storage;
  HeadStrides of_dst;
};

// The memory of a block of rows: those of a task use the same.
struct AttentionMemory {
  AttentionMemory(const AttentionRun& run, int64_t rows);

  int64_t stride;
  std::unique_ptr<float[]> scores, factors;  // [rows, stride], [rows]
  std::unique_ptr<float[]> sums;             // [2, rows, E], of words [rows, E]
  std::unique_ptr<uint8_t[]> bytes;          // [2, rows, stride]
  std::unique_ptr<uint8_t[]> codes;          // of query, then of tiles
  std::unique_ptr<int16_t[]> words;          // in place of bytes: [rows, stride]
  std::unique_ptr<int16_t[]> query;          // in place of codes: [rows, D + D % 2]
  std::unique_ptr<int32_t[]> offsets;        // [E], of words
};

// Computes rows [first, first + rows) of the query of one head of key: those of the heads that share it stand together.
void attend(const AttentionRun& run, AttentionMemory& memory, int64_t head, int64_t first, int64_t rows);

}  // namespace dynq
