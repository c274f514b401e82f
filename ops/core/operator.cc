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
    case kInt16:
      return "int16";
    case kInt32:
      return "int32";
    case kInt64:
      return "int64";
    case kFloat16:
      return "float16";
    case kBfloat16:
      return "bfloat16";
    case kUint4:
      return "uint4";
    case kInt4:
      return "int4";
    default:
      return "an unsupported type";
  }
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
