// How the elements of each type are stored, and how kernels take them: as float32, or as codes of 8 bits.
#pragma once

#include <memory>

#include "core/operator.h"
#include "kernels/elementwise.h"

namespace dynq {

struct Storage {
  int64_t bits;         // of an element in a tensor
  int64_t wide_bytes;   // of an element as kernels take it
  ConvertKernel widen;  // null if kernels take elements as they are stored
  ConvertKernel narrow;
};

// The storage of a 16-bit float or a code of 4 bits.
Storage converted_storage_of(Type type);

// How a type of floats or codes is stored, with the conversions of the instruction set in use.
inline Storage storage_of(Type type) {
  const bool is_converted = type == kFloat16 || type == kBfloat16 || type == kUint4 || type == kInt4;
  return is_converted ? converted_storage_of(type) : Storage{bits_of(type), bits_of(type) / 8, nullptr, nullptr};
}

// The address of element `index`: the byte that it begins in.
inline const void* element(const void* data, const Storage& storage, int64_t index) {
  return static_cast<const char*>(data) + index * storage.bits / 8;
}
inline void* element(void* data, const Storage& storage, int64_t index) {
  return static_cast<char*>(data) + index * storage.bits / 8;
}

// Codes of 4 bits [first, first + count), which may begin in the middle of a byte, as codes of 8 bits.
void widen_codes(const Storage& storage, Type type, const void* data, int64_t first, int64_t count, uint8_t* to);

// All elements as kernels take them: as they are stored, or converted into the memory of `holder`.
const void* widened(Context& context, const Tensor& tensor, std::unique_ptr<char[]>& holder);

// Converts float32 to a 16-bit float.
void narrow(Context& context, const Storage& storage, const float* from, int64_t count, void* to);

// A tensor of float32 or of a 16-bit float: its elements are read as float32.
class FloatReader {
 public:
  explicit FloatReader(const Tensor& tensor) : data_(tensor.data), storage_(storage_of(tensor.type)) {}

  // The address of element number `first`, as it is stored.
  const void* at(int64_t first) const { return element(data_, storage_, first); }

  // `count` elements from number `first` on: as they are stored, or converted into the memory of `buffer`.
  template <class Buffer>
  const float* read(int64_t first, int64_t count, Buffer& buffer) const {
    const void* from = at(first);
    if (storage_.widen == nullptr) return static_cast<const float*>(from);
    float* to = buffer.allocate(count);
    storage_.widen(from, to, count);
    return to;
  }

 private:
  const void* data_;
  Storage storage_;
};

}  // namespace dynq
