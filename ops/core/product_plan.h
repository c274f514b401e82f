// Which implementation computes a matrix product, and what it needs prepared.
#pragma once

#include "core/matmul_shape.h"
#include "kernels/products.h"

namespace dynq {

// The form of the rows of codes.
enum class CodeRows { kPlain, kWithOnes, kInTiles, kWords };  // kWithOnes: a row of ones is the last one

// Where sums of columns come from, if the model does not have them.
enum class ColumnSums { kPrepared, kInKernel };

struct ProductPlan {
  const char* name;      // of the implementation
  ProductKernel kernel;  // null: words have kernels of their own
  CodeRows code_rows;
  ColumnSumKernel sum_columns;  // prepares the sums of columns; null: they are there, or the kernel makes them
  bool sums_codes;              // of each row and group
  bool widens_2bit;             // the kernel takes 4-bit weights
  bool is_strassen;             // its kernels have operands of their own; `kernel` computes the other columns

  bool has_ones() const { return code_rows == CodeRows::kWithOnes; }
  bool has_words() const { return code_rows == CodeRows::kWords; }
  bool in_tiles() const { return code_rows == CodeRows::kInTiles; }
};

// The plan for the instruction set in use; its kernels are `kernels`.
ProductPlan plan_product(const ProductShape& shape, const ProductKernels& kernels);

}  // namespace dynq
