#include "core/product_plan.h"

#include "core/strassen.h"

namespace dynq {
namespace {

// Kernels of up to so many rows subtract the zero points of 4-bit weights from the weights.
constexpr int64_t kFewRows = 2;

ProductKernel kernel_of_rows(const ProductShape& shape, const ProductKernels& kernels) {
  return shape.bits < 8                          ? kernels.gemm_qb4w
         : shape.groups > 1 || shape.joins_terms ? kernels.gemm_qb8w
                                                 : kernels.gemm_qc8w;
}

// Sums of columns by a row of ones take as long as one more row, and no pass over the weights.
bool sums_with_ones(const ProductShape& shape, const ProductKernels&) {
  return !shape.has_sums && shape.scales_vary && shape.rows <= kMaxSummedRows && shape.stack == 1;
}

bool takes_tiles(const ProductShape& shape) {
  return shape.rows >= kTileRows && shape.stack * shape.rows * shape.depth * shape.columns >= kMinTileProducts;
}

bool takes_words(const ProductShape& shape, const ProductKernels& kernels) {
  const int64_t fewest = shape.bits == 8 ? kernels.words.min_rows_8bit : kernels.words.min_rows_4bit;
  return shape.fits_words && !shape.has_sums && fewest > 0 && shape.rows >= shape.terms * fewest &&
         shape.group_size() <= kernels.words.max_group;
}

struct Implementation {
  const char* name;
  bool (*takes)(const ProductShape&, const ProductKernels&);
  ProductKernel (*kernel)(const ProductShape&, const ProductKernels&);
  CodeRows code_rows = CodeRows::kPlain;
  ColumnSums column_sums = ColumnSums::kPrepared;
  bool reads_2bit = false, is_strassen = false;
};

// Best first; the last one takes every product.
constexpr Implementation kImplementations[] = {
    {"tiles",
     [](const ProductShape& shape, const ProductKernels& kernels) {
       return kernels.gemm_qc8w_tiles != nullptr && shape.groups == 1 && !shape.joins_terms && shape.bits == 8 &&
              takes_tiles(shape);
     },
     [](const ProductShape&, const ProductKernels& kernels) { return kernels.gemm_qc8w_tiles; }, CodeRows::kInTiles},
    {"tiles, groups",
     [](const ProductShape& shape, const ProductKernels& kernels) {
       return kernels.gemm_qb8w_tiles != nullptr && shape.groups > 1 && shape.group_size() <= kMaxTileGroup &&
              takes_tiles(shape);
     },
     [](const ProductShape& shape, const ProductKernels& kernels) {
       return shape.bits == 8 ? kernels.gemm_qb8w_tiles : kernels.gemm_qb4w_tiles;
     },
     CodeRows::kInTiles},
    {"Strassen",
     [](const ProductShape& shape, const ProductKernels&) {
       return shape.bits == 8 && shape.groups == 1 && !shape.joins_terms &&
              takes_strassen({shape.rows, shape.padded_depth, shape.columns});
     },
     kernel_of_rows, CodeRows::kPlain, ColumnSums::kPrepared, false, true},
    {"words", takes_words, [](const ProductShape&, const ProductKernels&) { return ProductKernel{}; }, CodeRows::kWords,
     ColumnSums::kInKernel},
    {"few rows, ones, 2 bits",
     [](const ProductShape& shape, const ProductKernels& kernels) {
       return sums_with_ones(shape, kernels) && shape.bits == 2 && shape.rows <= kMax2BitRows &&
              shape.group_size() <= kMax2BitGroup;
     },
     [](const ProductShape&, const ProductKernels& kernels) { return kernels.gemm_qb2w; }, CodeRows::kWithOnes,
     ColumnSums::kInKernel, true},
    {"few rows, ones", sums_with_ones, kernel_of_rows, CodeRows::kWithOnes, ColumnSums::kInKernel},
    {"rows, sums in the kernel",
     [](const ProductShape& shape, const ProductKernels& kernels) {
       return kernels.makes_sums_4bit && !shape.has_sums && !shape.joins_terms && shape.bits < 8 &&
              shape.rows >= kMinSummingRows && shape.depth > 0 && shape.depth == shape.padded_depth &&
              shape.group_size() <= kMaxSummedGroup;
     },
     kernel_of_rows, CodeRows::kPlain, ColumnSums::kInKernel},
    {"rows", [](const ProductShape&, const ProductKernels&) { return true; }, kernel_of_rows},
};

const Implementation& choose(const ProductShape& shape, const ProductKernels& kernels) {
  const Implementation* each = kImplementations;
  while (!each->takes(shape, kernels)) ++each;
  return *each;
}

}  // namespace

ProductPlan plan_product(const ProductShape& shape, const ProductKernels& kernels) {
  const Implementation& chosen = choose(shape, kernels);
  ProductPlan plan = {};
  plan.name = chosen.name;
  plan.kernel = chosen.kernel(shape, kernels);
  plan.code_rows = chosen.code_rows;
  plan.is_strassen = chosen.is_strassen;
  plan.widens_2bit = shape.bits == 2 && !chosen.reads_2bit;
  if (!shape.has_sums && chosen.column_sums == ColumnSums::kPrepared)
    plan.sum_columns = shape.bits == 8 ? kernels.sum_columns_8bit : kernels.sum_columns_4bit;
  const bool needs_code_sums =
      !shape.is_symmetric && (shape.bits == 8 || (kernels.sums_codes_4bit && shape.rows > kFewRows));
  plan.sums_codes = plan.has_ones() || (needs_code_sums && !plan.has_words());
  return plan;
}

}  // namespace dynq
