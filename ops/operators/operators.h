#pragma once

#include "operators/operator.h"

namespace dynq {

Operator dynamic_quantize();
Operator dynamic_dequantize();
Operator dynamic_fake_quantize();
Operator affine_quantize();
Operator affine_fake_quantize();
Operator affine_dequantize();
Operator dynamic_range_quantize();
Operator dynamic_range_fake_quantize();
Operator accumulator_dequantize();
Operator dynamic_quantize_dequantize_linear();
Operator reduce_abs_max();
Operator reduce_min_max();

}  // namespace dynq
