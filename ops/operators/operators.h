#pragma once

#include "operators/operator.h"

namespace dynq {

Operator dynamic_quantize();
Operator dynamic_dequantize();
Operator dynamic_fake_quantize();
Operator affine_quantize();
Operator affine_fake_quantize();
Operator affine_dequantize();
Operator range_quantize();
Operator range_fake_quantize();
Operator accumulator_dequantize();
Operator dynamic_fake_quantize_linear();
Operator range_magnitude();
Operator range_min_max();

}  // namespace dynq
