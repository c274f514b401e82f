// The keys and values of attention as codes, packed for products.
#pragma once

#include <memory>

#include "core/head_codes.h"
#include "core/scratch.h"

namespace dynq {

// Up to so many values become words: sums of kLargestCode * 128 are the same floats in one part as in two of bytes.
constexpr int64_t kMaxWordTokens = 512;

// Those of a head are adjacent. T tokens, D and E elements of a head of key and of value. Keys and
// up to kMaxWordTokens values are words in panels of C columns (compressed.h) where those are faster.
struct PackedHeads {
  PackedHeads(Context& context, const HeadCodes& key, const HeadCodes& value);

  // What weights minus kWordOffset lack in the sums of values of tokens [start, end), a column each: as
  // PanelScores::bases if it `fits`, or else ::highs. Both are multiples of token_unit, or T.
  void add_offset(int64_t head, int64_t start, int64_t end, bool fits, int32_t* numbers) const;

  const int8_t* key_codes(int64_t head) const { return reinterpret_cast<const int8_t*>(keys.get()) + head * key_size; }

  bool has_key_words, has_value_words;
  int64_t token_unit;                          // a part of the tokens that begins at its multiple begins a panel
  int64_t key_size, value_size, factors_size;  // of one head
  std::unique_ptr<uint32_t[]> keys;            // quads: [T / 16][D / 4][16], padded with 0
  std::unique_ptr<int8_t[]> values;            // [E / 16][T / 4][16][4], padded with 0
  std::unique_ptr<int16_t[]> key_words;        // [T / C][D / 2][C][2], padded with 0
  std::unique_ptr<int16_t[]> value_words;      // [E / C][T / 2][C][2], padded with 0
  std::unique_ptr<float[]> key_scales;         // [T]
  std::unique_ptr<int32_t[]> key_sums;         // [T], not for words
  std::unique_ptr<float[]> factors;            // see SoftmaxRow; a row may begin at any token
  std::unique_ptr<bool[]> is_finite;           // whether all values of a head are

 private:
  void pack_keys(const HeadCodes& codes, int64_t head) const;
  void pack_key_words(const HeadCodes& codes, int64_t head) const;
  void pack_values(const HeadCodes& codes, int64_t head) const;
  void pack_value_words(const HeadCodes& codes, int64_t head) const;
  void read_key_scales(const HeadCodes& codes, int64_t head) const;
  void read_factors(const HeadCodes& codes, int64_t head) const;

  int64_t columns_;                  // E
  int64_t sums_size_ = 0;            // of one head
  std::unique_ptr<int32_t[]> sums_;  // [units + 1][E]: of the values of the tokens before each unit
};

}  // namespace dynq
