// The operations of functions-inl.h on one float, for files that are not compiled for an instruction set.
#pragma once

#include <math.h>

#include "kernels/numbers.h"

namespace dynq {
namespace {

struct Scalar {
  using F = float;
  static F set1(float number) { return number; }
  static F add(F a, F b) { return a + b; }
  static F sub(F a, F b) { return a - b; }
  static F mul(F a, F b) { return a * b; }
  static F div(F a, F b) { return a / b; }
  static F min(F a, F b) { return a < b ? a : b; }
  static F max(F a, F b) { return a > b ? a : b; }
  static F abs(F a) { return fabsf(a); }
  static F round_float(F a) { return round_half_even(a); }
  static F less(F a, F b) { return a < b ? 1.0f : 0.0f; }
  static F choose(F c, F a, F b) { return c != 0 ? a : b; }
  static F times_power_of_2(F a, F n) { return n != n ? n : a * ldexpf(1.0f, static_cast<int>(n)); }
};

}  // namespace
}  // namespace dynq
