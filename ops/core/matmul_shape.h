// QuantizedMatMul's attributes and inputs, checked: what a product is, before anything is prepared or computed.
#pragma once

#include "core/encodings.h"
#include "core/matrices.h"
#include "core/operator.h"

namespace dynq {

struct MatMulAttributes {
  MatMulAttributes(const char* op_name, const Attributes& attributes);

  const char* op;  // in messages
  int64_t bits;    // of a weight: 8, 4 or 2
  int64_t unit;    // the k of the quads that share bytes
  int64_t group_size;
  int64_t terms;  // codes of an element: 1 or 2
  ScaleOrder order;
};

struct MatMulInputs {
  static constexpr size_t kCount = 8, kDynamicCount = 6;

  explicit MatMulInputs(Context& context);

  // Those of DynamicQuantizedMatMul: input 0 are floats. Their codes are set later, their scale and zero point written.
  MatMulInputs(Context& context, const float* scale, const uint8_t* zero_point);

  Tensor src, scale, zero_point, weight, weight_zp, column_scale, column_sum, bias;
};

// A product of codes of rows and packed weights, as the choice of its implementation sees it.
struct ProductShape {
  int64_t rows;          // of a matrix of codes: `terms` for each row of the result
  int64_t depth;         // k of a row
  int64_t padded_depth;  // as the weights are packed
  int64_t columns, groups, bits, terms;
  int64_t stack;      // matrices of weights
  bool scales_vary;   // with the group: of rows or of columns
  bool has_sums;      // the model has the sums of columns
  bool joins_terms;   // their sums are added as integers
  bool fits_words;    // joined terms can be one word of 16 bits, of one matrix
  bool is_symmetric;  // all zero points of weights are 0; of 4 and 2 bits, 8

  int64_t group_size() const { return groups == 1 ? depth : depth / groups; }
};

// How many adjacent rows share a scale, and how many scales a row has.
struct RowScales {
  int64_t rows_per_scale, groups;
};

struct MatMulShape {
  ProductShape product;
  RowScales row_scales;
  int64_t column_scale_groups;
  MatrixPairs pairs;
  Shape result;
};

// Throws Error if the inputs do not fit each other.
MatMulShape check_matmul(const MatMulAttributes& attributes, const MatMulInputs& inputs);

}  // namespace dynq
