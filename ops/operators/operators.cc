// The whole table of operators. A new one is a file beside this, and a line here.
#include "operators/operators.h"

namespace dynq {

const std::vector<Operator>& operators() {
  static const std::vector<Operator> all = {
      dynamic_quantize(),       dynamic_dequantize(), dynamic_fake_quantize(), affine_quantize(),
      affine_fake_quantize(),   affine_dequantize(),  range_quantize(),        range_fake_quantize(),
      accumulator_dequantize(), range_magnitude(),    range_min_max(),         dynamic_fake_quantize_linear(),
  };
  return all;
}

}  // namespace dynq
