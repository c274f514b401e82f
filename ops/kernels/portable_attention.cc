// The portable kernel of softmax in attention, in plain C++: it defines the correct results.
#include <math.h>

#include "core/compiler.h"
#include "kernels/attention.h"
#include "kernels/numbers.h"
#include "kernels/programs.h"
#include "kernels/scalar.h"

namespace dynq {
namespace {

#include "kernels/functions-inl.h"

// Caps the scores and adds the bias.
void finish_scores(const SoftmaxRow& row) {
  const ScoreCap cap(row.cap);
  for (int64_t i = 0; i < row.count; ++i) {
    float& score = row.scores[i];
    if (row.cap != 0) score = sigmoid_of<Scalar>(score * cap.inner) * cap.outer - cap.offset;
    const float bias = load(row.bias + (row.bias_is_vector ? i : 0));
    score = bias < row.least_added ? bias : score + bias;
  }
}

// The code of the power of a score, before it is cut off: NaN stays.
float code_of(float score, float largest) {
  const float difference = (score - largest) * kLog2E;
  const float y = difference < -64.0f ? -64.0f : difference;
  const float n = round_half_even(y), r = y - n;
  float p = kPower[0];
  for (int j = 1; j < 5; ++j) p = p * r + kPower[j];
  return n == n ? round_half_even(p * ldexpf(1.0f, static_cast<int>(n))) : n;
}

float softmax(const SoftmaxRow& row) {
  finish_scores(row);
  float largest = -kInfinity;
  for (int64_t i = 0; i < row.padded; ++i)
    if (row.scores[i] > largest) largest = row.scores[i];  // NaN is ignored
  int64_t sum = 0;
  float top = kMinWeight;
  bool is_defined = true;
  for (int64_t i = 0; i < row.padded; ++i) {
    const float code = code_of(row.scores[i], largest);
    const float weight = code * row.factors[i];
    if (weight != weight) is_defined = false;
    sum += code == code ? static_cast<int64_t>(code) : 0;
    if (weight > top) top = weight;
    row.scores[i] = weight;
  }
  const float inverse = kLargestCode / top;
  for (int64_t i = 0; i < row.padded; ++i) {
    const auto bits = is_defined ? static_cast<uint32_t>(round_half_even(row.scores[i] * inverse)) : 0u;
    if (row.words != nullptr) {
      row.words[i] = static_cast<int16_t>(static_cast<int32_t>(bits) - kWordOffset);
      continue;
    }
    row.high[i] = static_cast<uint8_t>(bits >> 8);
    row.low[i] = static_cast<uint8_t>(bits & 255);
  }
  return is_defined ? top / kLargestCode / (static_cast<float>(sum) * kUnitOfCodes) : kNan;
}

}  // namespace

void portable_softmax(const SoftmaxRow* rows, int64_t count, float* factors) {
  for (int64_t i = 0; i < count; ++i) factors[i] = softmax(rows[i]);
}

}  // namespace dynq
