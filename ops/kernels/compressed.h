// The interface of the kernels of attention over compressed keys and values. portable_compressed.cc defines the correct
// results; every other kernel returns the same bits.
#pragma once

#include <stdint.h>

namespace dynq {

constexpr float kLargestWord = 32512;       // 127 * 256: the largest magnitude of a code of 16 bits
constexpr float kSmallestStep = 0x1p-126f;  // so that quotients by steps are at most kLargestWord
constexpr int64_t kMostProducts = 256;      // in a sum of int32: 32512 * 255 * 256 < 2^31
constexpr int64_t kWordUnit = 32;           // rows of words are padded with zeros to a multiple of it

// Sums of products of words, codes of 16 bits, with codes of 8 bits:
//   sums[r][c] = sum over d < depth of words[r][d] * code(c, d), where depth <= kMostProducts
struct WordProduct {
  const int16_t* words;  // rows of `word_stride`; kernels by column read zeros up to a multiple of kWordUnit
  int64_t word_stride, rows, depth, cols;
  const uint8_t* codes;  // code(c, d) is at d * code_stride + c by row, at c * code_stride + d by column
  int64_t code_stride;
  int32_t* sums;
  int64_t sum_stride;
};
using WordProductKernel = void (*)(const WordProduct&);

// words[i] = round(x[i] * factor[i] / step), where step = max(the largest magnitude / kLargestWord, kSmallestStep) is
// the result. It is NaN, and the words are 0, if a number is NaN or infinite. `factors` may be null: 1.
using QuantizeWordsKernel = float (*)(const float* x, const float* factors, int64_t count, int16_t* words);

// scores[i] = float(sums[i] - zero_points[i] * word_sum) * step * scales[i], added to scores[i] if `adds`.
struct ScoreBlock {
  const int32_t* sums;
  const uint8_t* zero_points;  // codes of 8 bits, or null: 0
  int32_t word_sum;
  float step;
  const float* scales;
  int64_t count;
  bool adds;
  float* scores;
};
using ScoreKernel = void (*)(const ScoreBlock&);

// score = score * factor + bias * log2(e), or without the second term if bias is null or one 0
// y = max(score - the largest score, -126)
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
constexpr float kLeastPower = -126.0f;
constexpr float kPowerUnit = 8388608.0f;

struct CompressedKernels {
  WordProductKernel by_row[2], by_column[2];  // by CodeKind
  QuantizeWordsKernel quantize_words;
  ScoreKernel scores[2];  // by the CodeKind of the zero points
  PowersKernel powers;
};

// kKind: a CodeKind.
template <int kKind, bool kByRow>
void portable_word_product(const WordProduct& product);
float portable_quantize_words(const float* x, const float* factors, int64_t count, int16_t* words);
template <int kKind>
void portable_scores(const ScoreBlock& block);
float portable_powers(const PowerRow& row);

}  // namespace dynq
