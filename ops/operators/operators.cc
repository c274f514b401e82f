// The whole table of operators. A new one is a file beside this, and a line here.
#include "operators/operators.h"

namespace dynq {

const std::vector<Operator>& operators() {
  static const std::vector<Operator> all = {
      dynamic_quantize(),       dynamic_dequantize(), dynamic_fake_quantize(), affine_quantize(),
      affine_fake_quantize(),   affine_dequantize(),  dynamic_range_quantize(),        dynamic_range_fake_quantize(),
      accumulator_dequantize(), reduce_abs_max(),    reduce_min_max(),         dynamic_quantize_dequantize_linear(),
  };
  return all;
}

}  // namespace dynq
