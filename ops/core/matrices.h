// Stacks of matrices: which pairs of them a product multiplies. Leading dimensions broadcast as in ONNX's MatMul.
#pragma once

#include "core/operator.h"

namespace dynq {

// One matrix of the result, and the matrices that it is the product of.
struct MatrixPair {
  int64_t left, right, result;
};

struct MatrixPairs {
  int64_t rows;   // of each matrix on the left
  int64_t count;  // of matrices of the result

  // The leading dimensions of the result that no matrix on the right merges with its rows.
  size_t rank;
  int64_t lengths[kMaxRank], left_strides[kMaxRank], right_strides[kMaxRank];

  // Writes the pairs, those with one matrix on the right one after the other.
  void write(MatrixPair* pairs) const;
};

// Finds the pairs for a left factor of shape [..., M, K] and right factors with the leading dimensions `stack`, which
// are none for a single matrix; the left factor may then be [K]. Returns false if the shapes do not fit. `result` gets
// the leading dimensions of the result, and M.
bool find_pairs(const Shape& left, const Shape& stack, Shape& result, MatrixPairs& pairs);

}  // namespace dynq
