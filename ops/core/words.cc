#include "core/words.h"

#include <algorithm>

#include "kernels/numbers.h"

namespace dynq {

void WordRange::check(const char* op, Context& context, size_t weight) const {
  const Tensor tensor = context.input(weight);
  if (!was_checked_) {
    const auto* const words = static_cast<const int16_t*>(tensor.data);
    const int64_t count = tensor.shape.elements();
    int16_t low = 0, high = 0;
    for (int64_t i = 0; i < count; ++i) {
      low = std::min(low, load(words + i));
      high = std::max(high, load(words + i));
    }
    if (low < -kLargestWeight || high > kLargestWeight)
      throw Error(std::string(op) + ": weight has the element " + std::to_string(low < -kLargestWeight ? low : high) +
                  ", expected " + std::to_string(-kLargestWeight) + " to " + std::to_string(kLargestWeight));
  }
  if (context.is_constant(weight)) was_checked_ = true;
}

}  // namespace dynq
