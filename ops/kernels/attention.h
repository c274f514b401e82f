// The interface of the kernel of softmax in attention: scores to codes of 16 bits. portable_attention.cc defines the
// correct results; every other kernel returns the same bits.
#pragma once

#include <stdint.h>

namespace dynq {

// A row of scores, which are changed.
struct SoftmaxRow {
  float* scores;         // `padded` of them; from `count` on they are -infinity
  const float* bias;     // `count` numbers to add, or one if !bias_is_vector
  const float* factors;  // `padded` finite ones: scales times kUnitOfCodes, by which the codes are multiplied
  bool bias_is_vector;
  float cap;              // not 0: the scores become cap * tanh(score / cap) before the bias is added
  float least_added;      // a lower bias takes the place of the score
  int64_t count, padded;  // padded: a multiple of kSoftmaxUnit
  uint8_t *high, *low;    // `padded` bytes of the codes of the weights
  int16_t* words;         // null, or in place of bytes: `padded` codes of the weights, minus kWordOffset
};
constexpr int64_t kSoftmaxUnit = 16;
constexpr int32_t kWordOffset = 32768;

constexpr int64_t kMaxKeys = 65536;  // so that sums of bytes do not overflow int32
constexpr float kLargestCode = 65535;
constexpr float kUnitOfCodes = 0x1p-16f;  // so that a code times a scale does not overflow
constexpr float kMinWeight = 0x1p-90f;    // of the largest one: neither 65535 / top nor the result leaves float32

// score = 2 * cap * sigmoid(score * (2 / cap)) - cap, unless cap is 0; as the functions of programs
// y = max((score + bias - the largest such sum) * log2(e), -64)
// code = round(2^y * 65535)
// weight = code * factor
// top = the largest weight, at least kMinWeight
// code of a weight = round(weight * (65535 / top))
//
// The difference is multiplied, not its terms: a mask may be the lowest float, and its multiples are infinite.
//
// The factor of a row is (top / 65535) / (kUnitOfCodes * the sum of the codes, which is rounded once). It is NaN, and
// the codes are 0, if a score is NaN or the largest one is infinite.
//
// The kernel sets the factors of `count` rows, at most kSoftmaxRows: each step is done for all of them before the next
// one, so that a row need not wait for its own maximum.
using SoftmaxKernel = void (*)(const SoftmaxRow* rows, int64_t count, float* factors);
constexpr int64_t kSoftmaxRows = 8;

// The steps of a cap, in float32.
struct ScoreCap {
  explicit ScoreCap(float cap) : inner(2.0f / cap), outer(2.0f * cap), offset(cap) {}
  float inner, outer, offset;
};

void portable_softmax(const SoftmaxRow* rows, int64_t count, float* factors);

constexpr float kLog2E = 1.44269502162933349609375f;

// 65535 * 2^r for |r| <= 1/2, the highest power first: the relative error is 2.6e-6.
constexpr float kPower[] = {627.170166015625f, 3664.630859375f, 15744.6220703125f, 45423.734375f, 65534.953125f};

}  // namespace dynq
