// The kernels of attention over compressed keys and values. Sums of products are exact in int32, in any order.
//
// Pairs of products of int16 are added in each lane. By row, codes of two rows become pairs; by column, adjacent ones;
// panels have pairs. Few rows read codes as they are stored, many rows read panels.

#include "kernels/simd/compressed-pairs-inl.h"

// Use the file before.
#include "kernels/simd/compressed-column-inl.h"
#include "kernels/simd/compressed-panel-inl.h"
#include "kernels/simd/compressed-row-inl.h"
#include "kernels/simd/compressed-scores-inl.h"
#include "kernels/simd/compressed-weights-inl.h"

constexpr CompressedKernels compressed_kernels() {
  return {{product_by_row<kU8>, product_by_row<kS8>, product_by_row<kWords>, halves_product_by_row},
          {product_by_column<kU8>, product_by_column<kS8>, product_by_column<kWords>, halves_product_by_column},
          quantize_words,
          {scale_scores<kU8>, scale_scores<kS8>},
          powers_of_2,
          kPairColumns,
          2,
          kTileRows,
          {pack_panels<kU8>, pack_panels<kS8>, pack_panels<kWords>},
          panel_scores,
          pack_weights};
}
