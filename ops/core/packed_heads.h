// The keys and values of attention as codes, packed for products.
#pragma once

#include <memory>

#include "core/head_codes.h"

namespace dynq {

// Those of a head are adjacent. T tokens, D and E elements of a head of key and of value.
struct PackedHeads {
  PackedHeads(Context& context, const HeadCodes& key, const HeadCodes& value);

  int64_t key_size, value_size, factors_size;  // of one head
  std::unique_ptr<int8_t[]> keys;              // [T / 16][D / 4][16][4], padded with 0
  std::unique_ptr<int8_t[]> values;            // [E / 16][T / 4][16][4], padded with 0
  std::unique_ptr<float[]> key_scales;         // [T]
  std::unique_ptr<int32_t[]> key_sums;         // [T]
  std::unique_ptr<float[]> factors;            // see SoftmaxRow; a row may begin at any token
  std::unique_ptr<bool[]> is_finite;           // whether all values of a head are

 private:
  void pack_keys(const HeadCodes& codes, int64_t head) const;
  void pack_values(const HeadCodes& codes, int64_t head) const;
};

}  // namespace dynq
