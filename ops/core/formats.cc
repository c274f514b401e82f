#include "core/formats.h"

#include <algorithm>

#include "core/parallel.h"
#include "core/rounding.h"
#include "core/scratch.h"
#include "kernels/dispatch.h"

namespace dynq {
namespace {

template <class Part>
void in_parts(Context& context, int64_t count, const Part& part) {
  run_tasks(context, divide_up(count, kTaskElements),
            [&](int64_t i) { part(i * kTaskElements, std::min(kTaskElements, count - i * kTaskElements)); });
}

}  // namespace

Storage converted_storage_of(Type type) {
  const bool is_float = type == kFloat16 || type == kBfloat16;
  const Format format = type == kFloat16 ? kF16 : type == kBfloat16 ? kBf16 : type == kUint4 ? kU4 : kS4;
  const ElementwiseKernels& kernels = active_kernels();
  return {bits_of(type), is_float ? 4 : 1, kernels.widen[format], kernels.narrow[format]};
}

void widen_codes(const Storage& storage, Type type, const void* data, int64_t first, int64_t count, uint8_t* to) {
  const auto* bytes = static_cast<const uint8_t*>(data);
  if (first % 2 != 0 && count > 0) {
    const int code = bytes[first / 2] >> 4;
    *to++ = static_cast<uint8_t>(type == kInt4 && code > 7 ? code - 16 : code);
    ++first;
    --count;
  }
  if (count > 0) storage.widen(bytes + first / 2, to, count);
}

const void* widened(Context& context, const Tensor& tensor, std::unique_ptr<char[]>& holder) {
  const Storage storage = storage_of(tensor.type);
  if (storage.widen == nullptr) return tensor.data;
  const int64_t count = tensor.shape.elements();
  holder = memory<char>(count * storage.wide_bytes);
  in_parts(context, count, [&](int64_t first, int64_t length) {
    storage.widen(element(tensor.data, storage, first), holder.get() + first * storage.wide_bytes, length);
  });
  return holder.get();
}

void narrow(Context& context, const Storage& storage, const float* from, int64_t count, void* to) {
  in_parts(context, count,
           [&](int64_t first, int64_t length) { storage.narrow(from + first, element(to, storage, first), length); });
}

}  // namespace dynq
