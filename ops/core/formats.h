// How the elements of each type are stored, and as what the kernels take them: float32, or codes of 8 bits.
#pragma once

#include "core/operator.h"
#include "kernels/kernels.h"

namespace dynq {

struct Storage {
  int64_t bits;         // of an element in a tensor
  int64_t wide_bytes;   // of an element as kernels take it
  ConvertKernel widen;  // null if kernels take elements as they are stored
  ConvertKernel narrow;
};

// How a type of floats or codes is stored, with the conversions of the instruction set in use.
Storage storage_of(Type type);

// The address of element `index`: the byte that it begins in.
inline const void* element(const void* data, const Storage& storage, int64_t index) {
  return static_cast<const char*>(data) + index * storage.bits / 8;
}
inline void* element(void* data, const Storage& storage, int64_t index) {
  return static_cast<char*>(data) + index * storage.bits / 8;
}

// Code or zero point number `index` of a tensor of 4-bit codes.
inline int32_t code_of_4_bits(const Tensor& tensor, int64_t index) {
  const int32_t byte = static_cast<const uint8_t*>(tensor.data)[index / 2], half = byte >> (index % 2 * 4) & 15;
  return tensor.type == kInt4 ? (half ^ 8) - 8 : half;
}

}  // namespace dynq
