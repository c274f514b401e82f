// The interface of the kernels of attention over compressed keys and values. portable_compressed.cc defines the correct
// results; every other kernel returns the same bits.
#pragma once

#include <stdint.h>

namespace dynq {

constexpr float kLargestWord = 32512;       // 127 * 256: the largest magnitude of a code of 16 bits
constexpr float kSmallestStep = 0x1p-126f;  // so that quotients by steps are at most kLargestWord
constexpr int64_t kMaxProducts = 256;       // in a sum of int32: 32512 * 255 * 256 < 2^31
constexpr int64_t kWordUnit = 32;           // rows of words are padded with zeros to a multiple of it

// What words, codes of 16 bits, are multiplied by: codes of 8 bits, a CodeKind; words of floats; or codes of 4 bits
// without a sign, two in a byte. Products with words have two rows for each row of words, their high bytes with a sign,
// and their low bytes.
constexpr int kWords = 2, kHalves = 3, kFactorKinds = 4;
constexpr int kHighByte = 256;  // the weight of high bytes

// Sums of products of words with codes:
//   sums[r][c] = sum over d < depth of words[r][d] * code(c, d), where depth <= kMaxProducts and, of halves by column,
//   even
// By column, this is done for `groups` of codes, one behind the other in each column.
struct WordProduct {
  const int16_t* words;  // rows of `word_stride`; kernels by column read zeros up to a multiple of kWordUnit
  int64_t word_stride, rows, depth, cols;
  const void* codes;    // code(c, d) is at d * code_stride + c by row, at c * code_stride + d by column
  int64_t code_stride;  // of halves by column even; by row, each second row may begin within a byte
  uint8_t flipped;      // bits of each byte of halves that are flipped
  int32_t* sums;
  int64_t sum_stride;
  int64_t groups, group_words, group_sums;  // by column: their number, and the strides of their words and sums
};
using WordProductKernel = void (*)(const WordProduct&);

// Codes minus their zero points, or words, for products with many rows. A panel has `panel_columns` columns and two
// bytes for each element. Of each two rows of codes, it has the pairs of int16 of all columns; the last row of an odd
// depth and columns from `cols` on are 0. An instruction set may have a form of its own, if each `panel_rows` rows take
// the same bytes. Products are of all rows of panels, or of some from a multiple of `panel_rows` on.
struct PanelPack {
  const void* codes;  // code(d, c) is at d * code_stride + c
  int64_t code_stride, depth, cols;
  const uint8_t* zero_points;  // null: 0; of words
  int64_t of_row, of_column;   // their strides, one of them 0 and of_column at most 1
  int16_t* panels;
  int64_t panel_stride;
  bool fits_int8;  // so does each element
};
using PanelPackKernel = void (*)(const PanelPack&);

// Weights of matrix products, of 8 or 4 bits (products.h), minus their zero points, as a stored panel: of each quad,
// the pairs of k 0 and 2, then 1 and 3. Words have their elements in that order.
struct WeightPack {
  const int8_t* packed;
  int64_t stride;                          // from a block of 16 columns to the next
  int64_t bits, groups, group_size, cols;  // up to kMaxPanelColumns columns; those behind the last one may be anything
  const int8_t* zps;                       // [groups][columns]; null: every zero point is `zp`
  int64_t zps_stride;
  int32_t zp;
  int16_t* panel;
};
using WeightPackKernel = void (*)(const WeightPack&);

// Sums of products of words with panels, where depth <= kMaxProducts. The panels of a model are stored for every
// instruction set: they are of pairs of int16 and kMaxPanelColumns columns.
struct PanelProduct {
  const int16_t* words;  // rows of `word_stride`, with a 0 behind an odd depth
  int64_t word_stride, rows, depth, cols;
  const int16_t* panels;
  int64_t panel_stride;
  bool fits_int8;
  bool is_stored = false;
};

// scores[r][c] = float(sum) * steps[r] * scales[c], or float(sum) * scales[c] * steps[r] with `scales_first`, added to
// scores[r][c] if `adds`; then the same of other groups is added, one after the other.
struct PanelScores {
  PanelProduct product;                                                  // of the first group
  int64_t groups, group_words, group_panels, group_steps, group_scales;  // their number, and strides
  bool is_split;  // words have two rows: a sum is kHighByte * that of row 2 * r, and that of the next row
  // [columns] or null: a sum is kHighByte * highs[c] + (sum - kHighByte) as int32, where the difference fits. For one
  // group; kernels on tiles do not have it.
  const int32_t* highs;
  const int32_t* bases;  // likewise: what is added to the sums as int32, where the result fits
  const float* steps;
  const float* scales;  // null: 1
  bool scales_first;
  bool adds;
  float* scores;
  int64_t score_stride;
};
using PanelScoresKernel = void (*)(const PanelScores&);

// Of each row, words[i] = round(x[i] * factors[i] * (1 / step)), where step = max(the largest magnitude / largest_word,
// kSmallestStep). If a number is NaN or infinite, the step is NaN, and the words are 0. `factors` may be null: 1. With
// `has_steps`, the steps are given, as those of rows that are parts of a longer one.
struct WordRows {
  const float* x;
  int64_t stride;
  const float* factors;
  int64_t rows, count;
  int16_t* words;
  int64_t word_stride;
  float* steps;
  float largest_word = kLargestWord;
  bool has_steps = false;
};
using QuantizeWordsKernel = void (*)(const WordRows&);

// scores[i] = float(sums[i] - offset - zero_points[i] * word_sum) * step * scales[i], added to scores[i] if `adds`.
struct ScoreBlock {
  const int32_t* sums;
  const int32_t* low_sums;     // not null: the sum is kHighByte * sums[i] + low_sums[i]
  int32_t offset;              // not read with low_sums
  const uint8_t* zero_points;  // codes of 8 bits, or null: 0
  int32_t word_sum;
  float step;
  const float* scales;  // null: 1
  int64_t count;
  bool adds;
  float* scores;
};
using ScoreKernel = void (*)(const ScoreBlock&);

// score = score * factor + bias, or without the second term if bias is null or one 0
// y = max((score - the largest score) * log2(e), -126)
// power = 2^y by kPowerOf2 of programs.h, or 0 if y is -126; it replaces the score
//
// The result is 1 / (the sum of round(power * 2^23), exact, as float * 2^-23). It is NaN if a score is NaN, or if the
// largest one is infinite.
struct PowerRow {
  float* scores;
  int64_t count;
  float factor;
  const float* bias;
  bool bias_is_vector;
};
using PowersKernel = float (*)(const PowerRow&);

constexpr int kPowerTerms = 7;
constexpr float kMinPower = -126.0f;
constexpr float kPowerUnit = 8388608.0f;

struct CompressedKernels {
  WordProductKernel by_row[kFactorKinds], by_column[kFactorKinds];
  QuantizeWordsKernel quantize_words;
  ScoreKernel scores[2];  // by the CodeKind of the zero points
  PowersKernel powers;
  int64_t panel_columns, panel_rows;
  int64_t score_rows;  // of scores that panel_scores computes at once
  PanelPackKernel pack[kHalves];
  PanelScoresKernel panel_scores;
  WeightPackKernel pack_weights;
  // Whether QuantizedAttention takes them, because ProductKernels take longer: for bytes of queries and keys, and for
  // weights of two bytes and values.
  bool panels_of_keys = false, panels_of_values = false;
};

constexpr int64_t kMaxPanelColumns = 32;  // of every instruction set; a multiple of each

}  // namespace dynq
