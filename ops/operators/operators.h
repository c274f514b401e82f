#pragma once

#include "operators/operator.h"

namespace dynq {

Operator dynamic_quantize();
Operator dynamic_dequantize();

}  // namespace dynq
