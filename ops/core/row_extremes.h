// The largest or the smallest element of a row where it depends on the order of the elements: of two zeros the first
// one, and a NaN as ONNX Runtime treats it.
#pragma once

#include <cstdint>

#include "kernels/elementwise.h"

namespace dynq {

// The largest or the smallest of `cols` > 0 adjacent elements of a tensor, of which `first` stand before them, as
// ONNX Runtime's ReduceMax and ReduceMin compute it on x86-64. If no NaN is among the first kHeadElements elements, it
// is the largest or the smallest number; of two zeros, either.
float extreme_of_row(bool is_max, const float* row, int64_t cols, int64_t first);

// The smallest and the largest of `count` > 0 elements, as ONNX Runtime's DynamicQuantizeLinear finds them on x86-64
// with AVX, on one thread. If no element is NaN, they are the smallest and the largest number; of two zeros, either.
void extremes_of_tensor(const float* x, int64_t count, float& low, float& high);

// The reductions of one row of a pass, after its kernel: it returns any zero, and NaN if one is among the first
// kHeadElements numbers. `tile` has room for kTileElements numbers.
class ReducedRow {
 public:
  ReducedRow(const ElementwiseKernels& table, const Pass& pass, int64_t row, float* tile)
      : table_(table), pass_(pass), row_(row), tile_(tile) {}

  // The first zero that step number `reduction` reduces.
  float first_zero(int64_t reduction) const;

  // The result of the step, a maximum or minimum, for row number `tensor_row` of its tensor.
  float extreme(int64_t reduction, int64_t tensor_row) const;

 private:
  template <class Visit>
  void visit(int64_t reduction, const Visit& visit) const;

  const ElementwiseKernels& table_;
  const Pass& pass_;
  const int64_t row_;
  float* const tile_;
};

}  // namespace dynq
