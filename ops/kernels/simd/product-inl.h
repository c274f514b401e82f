// Matrix products: codes of rows times packed weights, to floats, written once for any type P of products. A file of an
// instruction set defines P and includes this file in its anonymous namespace. A vector has the sums of kLanes adjacent
// columns.

// clang-format off: the order of the files matters
#include "kernels/simd/product-members-inl.h"
#include "kernels/simd/product-steps-inl.h"
#include "kernels/simd/product-pairs-inl.h"
#include "kernels/simd/product-dot-inl.h"
#include "kernels/simd/product-store-inl.h"
#include "kernels/simd/product-tile-inl.h"
#include "kernels/simd/product-whole-inl.h"
#include "kernels/simd/product-sums-inl.h"
#include "kernels/simd/product-gemv-inl.h"
#include "kernels/simd/product-column-sums-inl.h"
#include "kernels/simd/product-wide-inl.h"
#include "kernels/simd/product-words-inl.h"
#include "kernels/simd/product-words-unpacked-inl.h"
// clang-format on

using TileKernel = void (*)(const ProductBlock&, int64_t row, int64_t col, int64_t gap);

// Covers the block with tiles. `kernels` has one for each number of rows from 1 to kMaxRows. The loop over columns is
// outside: weights stay in the caches for all rows.
inline void gemm_row_tiles(const ProductBlock& block, int64_t width, const TileKernel (&kernels)[kMaxRows]) {
  for (int64_t col = 0; col < block.cols; col += width)
    for (int64_t row = 0; row < block.rows;) {
      const int64_t left = block.rows - row;
      const int64_t half = block.joins_terms ? (left + 3) / 4 * 2 : (left + 1) / 2;
      const int64_t count = left >= 2 * kMaxRows ? kMaxRows : left > kMaxRows ? half : left;
      kernels[count - 1](block, row, col, kBlockColumns);
      row += count;
    }
}

// One or two rows are memory-bound. Two sequential streams of weights are fastest: one through the first half of the
// columns, one through the second.
template <int kBits, bool kOneGroup, int kRows>
void gemm_few_rows(const ProductBlock& block) {
  const int64_t blocks = (block.cols + kBlockColumns - 1) / kBlockColumns, half = (blocks + 1) / 2 * kBlockColumns;
  if constexpr (!kOneGroup && kRows > 1 && (kBits == 4 || P::kSteps == 1))
    if (block.codes.has_ones && block.depth <= block.groups * kMaxSummedLength<kBits>)
      return gemv<kBits, kRows - 1>(block);
  for (int64_t col = 0; col < half; col += kBlockColumns) gemm_tile<kBits, kOneGroup, 2, kRows>(block, 0, col, half);
}

// 2-bit weights have no other kernel of their own: for all other blocks they become 4-bit weights first.
inline void gemm_2bit(const ProductBlock& block) { (block.rows == 2 ? gemv<2, 1> : gemv<2, 2>)(block); }

// gemm_row_tiles() has no tiles of kFewRows rows or fewer.
static_assert(kFewRows == 2, "gemm_few_rows() is called for 1 and 2");
template <int kBits, bool kOneGroup, int kBlocks>
void gemm_direct(const ProductBlock& block) {
  if (block.rows == 1)
    gemm_few_rows<kBits, kOneGroup, 1>(block);
  else if (block.rows == 2)
    gemm_few_rows<kBits, kOneGroup, 2>(block);
  else if (!kOneGroup && block.rows == 3 && block.codes.has_ones)
    gemm_few_rows<kBits, kOneGroup, 3>(block);
  else if (kBlocks > 2 && kBits == 8 && kOneGroup && block.cols <= 2 * kBlockColumns)  // such as a head of attention
    gemm_row_tiles(block, 2 * kBlockColumns,
                   {nullptr, nullptr, gemm_tile<kBits, kOneGroup, 2, 3>, gemm_tile<kBits, kOneGroup, 2, 4>,
                    gemm_tile<kBits, kOneGroup, 2, 5>, gemm_tile<kBits, kOneGroup, 2, 6>});
  else if constexpr (!kOneGroup)
    gemm_row_tiles(
        block, kBlocks * kBlockColumns,
        {nullptr, nullptr, gemm_groups<kBits, 3>, gemm_groups<kBits, 4>, gemm_groups<kBits, 5>, gemm_groups<kBits, 6>});
  else
    gemm_row_tiles(block, kBlocks * kBlockColumns,
                   {nullptr, nullptr, gemm_tile<kBits, kOneGroup, kBlocks, 3>, gemm_tile<kBits, kOneGroup, kBlocks, 4>,
                    gemm_tile<kBits, kOneGroup, kBlocks, 5>, gemm_tile<kBits, kOneGroup, kBlocks, 6>});
}

// The forms of an instruction set, best first; the last one takes all blocks.
struct Forms {
  ProductForm list[3];

  ORT_DYNQ_INLINE const ProductForm& of(const ProductBlock& block) const {
    const ProductForm* form = list;
    while (form->takes != nullptr && !form->takes(block)) ++form;
    return *form;
  }
};

inline bool fits_wide(const ProductBlock& block) { return block.rows > kRowsInPlace; }
inline bool fits_tiles_of_words(const ProductBlock& block) { return block.rows > kFewRows && fits_words(block); }

template <int kBits, bool kOneGroup, int kBlocks>
constexpr Forms make_forms() {
  Forms forms = {};
  ProductForm* form = forms.list;
  if constexpr (kBits == 8 && kOneGroup && P::kSteps == 2) *form++ = {"wide", fits_wide, gemm_wide<>};
  if constexpr (kBits == 4 && P::kSteps == 2) {
    *form++ = {"unpacked words", fits_unpacked, gemm_unpacked<gemm_direct<kBits, kOneGroup, kBlocks>>};
    *form++ = {"words", fits_tiles_of_words, gemm_words<>};
  }
  *form = {"direct", nullptr, gemm_direct<kBits, kOneGroup, kBlocks>};
  return forms;
}

template <int kBits, bool kOneGroup, int kBlocks>
constexpr Forms kForms = make_forms<kBits, kOneGroup, kBlocks>();

template <int kBits, bool kOneGroup, int kBlocks>
void gemm(const ProductBlock& block) {
  kForms<kBits, kOneGroup, kBlocks>.of(block).run(block);
}

// The name of the form that a block takes.
inline const char* name_of_form(const ProductBlock& block, int64_t bits) {
  if (bits < 8) return kForms<4, false, P::kGroupBlocks>.of(block).name;
  const bool is_in_groups = block.groups > 1 || block.joins_terms;
  return (is_in_groups ? kForms<8, false, P::kGroupBlocks> : kForms<8, true, P::kBlocks>).of(block).name;
}
