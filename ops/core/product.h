// A matrix product of QuantizedMatMul: what its plan needs is prepared, then its tasks run.
#pragma once

#include "core/formats.h"
#include "core/product_plan.h"
#include "core/program.h"
#include "core/scratch.h"
#include "core/tiles.h"

namespace dynq {

class Product {
 public:
  // `dst` is the result of type float32 or float16, or float32 if there is a tail. The arguments outlive the product.
  Product(const MatMulShape& shape, const MatMulInputs& inputs, const MatMulAttributes& attributes,
          const ProductPlan& plan, void* dst, const Tail* tail, const ProgramTensors& tail_tensors);

  // Prepares codes, scales and zero points of rows.
  void prepare(Context& context);
  void run(Context& context) const;

 private:
  struct Strip;
  struct Cut;

  void set_columns();
  void separate_bias();
  void prepare_codes(Context& context);
  void prepare_words(Context& context);
  void set_ones(uint8_t* row, int32_t* sums);
  void pack_tiles(Context& context, uint8_t flip);
  void prepare_rows();
  void turn_scales();
  bool has_bounded_groups() const;

  // Writes which implementation and form of it run, for ORT_DYNQ_VERBOSE.
  void report(const ProductBlock& first) const;
  TileUse use_tiles() const;
  void run_strips(Context& context) const;
  Cut cut() const;
  void run_strassen(Context& context) const;
  void form_operands(Context& context, const ProductBlock& block, int64_t first, int64_t count, int64_t part_rows,
                     int16_t* operands) const;
  int64_t task_count() const;
  void run_block(ProductKernel kernel, const ProductBlock& block, int64_t row, int64_t col) const;
  void run_strip(ProductKernel kernel, ProductBlock block, int64_t row, int64_t col, Strip& strip) const;
  void run_words(const ProductBlock& block, int64_t row, int64_t col) const;
  void run_task(ProductKernel kernel, const ProductBlock& block, int64_t row, int64_t col) const;
  void run_in_pieces(ProductKernel kernel, const ProductBlock& task, int64_t row, int64_t col) const;
  void store_piece(float* piece, int64_t columns, const ProductBlock& block, int64_t row, int64_t col) const;

  int64_t row_tiles() const;
  ProductBlock matrix(const MatrixPair& pair) const;
  ProductBlock part_of(const ProductBlock& from, int64_t row, int64_t rows, int64_t col, int64_t cols) const;

  const MatMulShape& shape_;
  const ProductShape& product_;
  const MatMulInputs& in_;
  const MatMulAttributes& attributes_;
  const ProductPlan& plan_;
  const Tail* tail_;  // or null
  const ProgramTensors& tail_tensors_;
  void* dst_;
  Storage dst_storage_;
  // The whole output as one block, or of stacked weights the first matrix of each input and of the output. With two
  // terms, it has two rows for each row of the output. all_.output.dst is null if the output is float16.
  ProductBlock all_ = {};
  int64_t code_rows_;                     // of all matrices of codes
  const float* bias_of_terms_ = nullptr;  // which is added to their sum; all_.columns.bias has no effect then
  ProductCodes codes_of_ones_;            // a row for plan_.sum_columns
  MatrixPair* pairs_;                     // of matrices of codes and weights
  Scratch<MatrixPair, 32> pair_memory_;
  Scratch<uint8_t, 4096> codes_, ones_;
  Scratch<int16_t, 2048> words_;
  const float* steps_ = nullptr;  // of words, [groups][rows]
  Scratch<float, 64> step_memory_;
  Scratch<int32_t, 64> row_sums_, zps_, sums_of_ones_;
  Scratch<float, 64> scales_, bias_, no_bias_;
};

}  // namespace dynq
