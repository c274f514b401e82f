#include "core/operator.h"

namespace dynq {

const char* name_of(Type type) {
  switch (type) {
    case kFloat:
      return "float32";
    case kUint8:
      return "uint8";
    case kInt8:
      return "int8";
    case kInt32:
      return "int32";
    default:
      return "an unsupported type";
  }
}

size_t size_of(Type type) { return type == kUint8 || type == kInt8 ? 1 : 4; }

int64_t Shape::elements() const {
  int64_t count = 1;
  for (size_t i = 0; i < rank; ++i) count *= dims[i];
  return count;
}

std::string Shape::text() const {
  if (rank == 0) return "scalar";
  std::string result = std::to_string(dims[0]);
  for (size_t i = 1; i < rank; ++i) result += "x" + std::to_string(dims[i]);
  return result;
}

bool Shape::operator==(const Shape& other) const {
  if (rank != other.rank) return false;
  for (size_t i = 0; i < rank; ++i)
    if (dims[i] != other.dims[i]) return false;
  return true;
}

}  // namespace dynq
