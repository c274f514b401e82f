#include "core/formats.h"

#include "kernels/dispatch.h"

namespace dynq {

Storage storage_of(Type type) {
  const auto converted = [=](int64_t wide_bytes, Format format) -> Storage {
    const ElementwiseKernels& kernels = active_kernels();
    return {bits_of(type), wide_bytes, kernels.widen[format], kernels.narrow[format]};
  };
  switch (type) {
    case kFloat16:
      return converted(4, kF16);
    case kBfloat16:
      return converted(4, kBf16);
    case kUint4:
      return converted(1, kU4);
    case kInt4:
      return converted(1, kS4);
    default:
      return {bits_of(type), bits_of(type) / 8, nullptr, nullptr};
  }
}

}  // namespace dynq
