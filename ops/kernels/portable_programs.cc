// The portable kernel of programs in plain C++: it defines the correct results. Compilers vectorize the loops.
#include <math.h>

#include "kernels/elementwise.h"
#include "kernels/numbers.h"
#include "kernels/programs.h"
#include "kernels/scalar.h"

namespace dynq {
namespace {

float* floats_of(const StepOperand& operand) {
  return reinterpret_cast<float*>(const_cast<char*>(operand.at));  // the steps that store write to their operand
}

float max_of(float a, float b) { return a != a ? a : b > a || b != b ? b : a; }
float min_of(float a, float b) { return a != a ? a : b < a || b != b ? b : a; }

float clip(float value, float low, float high) {
  value = value < low ? low : value;
  return value > high ? high : value;
}

float sign_of(float value) { return value > 0 ? 1.0f : value < 0 ? -1.0f : value != value ? value : 0.0f; }

float saturated(float value, float low, float high) {
  const float rounded = clip(round_half_even(value), low, high);
  return rounded != rounded ? 0.0f : rounded + 0.0f;
}

float to_int32(float value) {
  constexpr float kEnd = 2147483648.0f;
  return value >= -kEnd && value < kEnd ? round_half_even(value) + 0.0f : -kEnd;
}

#include "kernels/functions-inl.h"

// A tile of up to kTileElements elements of one row.
class Tile {
 public:
  // `sums`: kSums partial sums for each reduction of the pass.
  Tile(int64_t row, int64_t col, int64_t count, float* sums) : row_(row), col_(col), count_(count), sums_(sums) {}

  void run(const Pass& pass) {
    for (int64_t i = 0; i < pass.count; ++i) run(pass.steps[i], pass.begins_row);
  }

 private:
  void run(const Step& step, bool begins_row) {
    switch (step.kind) {
      case StepKind::kLoad:
        return binary(step, [](float, float a) { return a; });
      case StepKind::kAdd:
        return binary(step, [](float acc, float a) { return acc + a; });
      case StepKind::kSub:
        return binary(step, [](float acc, float a) { return acc - a; });
      case StepKind::kSubFrom:
        return binary(step, [](float acc, float a) { return a - acc; });
      case StepKind::kMul:
        return binary(step, [](float acc, float a) { return acc * a; });
      case StepKind::kDiv:
        return binary(step, [](float acc, float a) { return acc / a; });
      case StepKind::kDivInto:
        return binary(step, [](float acc, float a) { return a / acc; });
      case StepKind::kMax:
        return binary(step, max_of);
      case StepKind::kMin:
        return binary(step, min_of);
      case StepKind::kEqual:
        return binary(step, [](float acc, float a) { return acc == a ? 1.0f : 0.0f; });
      case StepKind::kLess:
        return binary(step, [](float acc, float a) { return acc < a ? 1.0f : 0.0f; });
      case StepKind::kLessOrEqual:
        return binary(step, [](float acc, float a) { return acc <= a ? 1.0f : 0.0f; });
      case StepKind::kGreater:
        return binary(step, [](float acc, float a) { return acc > a ? 1.0f : 0.0f; });
      case StepKind::kGreaterOrEqual:
        return binary(step, [](float acc, float a) { return acc >= a ? 1.0f : 0.0f; });
      case StepKind::kLeakyRelu:
        return binary(step, [](float acc, float a) { return acc < 0 ? a * acc : acc; });
      case StepKind::kClip:
        return ternary(step, clip);
      case StepKind::kWhere:
        return ternary(step, [](float acc, float a, float b) { return acc != 0 ? a + 0.0f : b; });
      case StepKind::kAbs:
        return unary([](float acc) { return fabsf(acc); });
      case StepKind::kNeg:
        return unary([](float acc) { return -acc; });
      case StepKind::kSqrt:
        return unary([](float acc) { return sqrtf(acc); });
      case StepKind::kRound:
        return unary(round_half_even);
      case StepKind::kFloor:
        return unary([](float acc) { return floorf(acc); });
      case StepKind::kCeil:
        return unary([](float acc) { return ceilf(acc); });
      case StepKind::kSign:
        return unary(sign_of);
      case StepKind::kToFloat16:
        return unary(rounded_to_float16);
      case StepKind::kToInt8:
        return unary([](float acc) { return saturated(acc, -128, 127); });
      case StepKind::kToUint8:
        return unary([](float acc) { return saturated(acc, 0, 255); });
      case StepKind::kToInt32:
        return unary(to_int32);
      case StepKind::kSigmoid:
        return unary([](float acc) { return sigmoid_of<Scalar>(acc); });
      case StepKind::kGelu:
        return unary([](float acc) { return gelu_of<Scalar>(acc); });
      case StepKind::kStore: {
        float* to = reinterpret_cast<float*>(address(step.a));
        for (int64_t i = 0; i < count_; ++i) store(to + i, acc_[i]);
        return;
      }
      case StepKind::kStoreF16: {
        auto* to = reinterpret_cast<uint16_t*>(address(step.a));
        for (int64_t i = 0; i < count_; ++i) store(to + i, narrow_f16(acc_[i]));
        return;
      }
      case StepKind::kStoreInt8: {
        auto* to = reinterpret_cast<int8_t*>(address(step.a));
        for (int64_t i = 0; i < count_; ++i) to[i] = static_cast<int8_t>(saturated(acc_[i], -128, 127));
        return;
      }
      case StepKind::kStoreUint8: {
        auto* to = reinterpret_cast<uint8_t*>(address(step.a));
        for (int64_t i = 0; i < count_; ++i) to[i] = static_cast<uint8_t>(saturated(acc_[i], 0, 255));
        return;
      }
      case StepKind::kReduceMax:
        return reduce(step, begins_row, [](float value, float best) { return value > best; });
      case StepKind::kReduceMin:
        return reduce(step, begins_row, [](float value, float best) { return value < best; });
      case StepKind::kReduceSum:
        for (int64_t i = 0; i < count_; ++i) sums_[i % kSums] += acc_[i];
        sums_ += kSums;
        return;
    }
  }

  char* address(const StepOperand& operand) const {
    return const_cast<char*>(operand.at) + row_ * operand.row_bytes + col_ * operand.element_bytes;
  }

  template <class Function>
  void unary(Function function) {
    for (int64_t i = 0; i < count_; ++i) acc_[i] = function(acc_[i]);
  }

  template <class Function>
  void binary(const Step& step, Function function) {
    const float* a = values(step.a, first_);
    for (int64_t i = 0; i < count_; ++i) acc_[i] = function(acc_[i], a[i]);
  }

  template <class Function>
  void ternary(const Step& step, Function function) {
    const float *a = values(step.a, first_), *b = values(step.b, second_);
    for (int64_t i = 0; i < count_; ++i) acc_[i] = function(acc_[i], a[i], b[i]);
  }

  // The operand's numbers for the tile, in `buffer`.
  const float* values(const StepOperand& operand, float* buffer) const {
    const auto* from = reinterpret_cast<const float*>(address(operand));
    if (operand.is_vector) {
      memcpy(buffer, from, static_cast<size_t>(count_) * sizeof(float));
    } else {
      const float number = load(from);
      for (int64_t i = 0; i < count_; ++i) buffer[i] = number;
    }
    return buffer;
  }

  template <class Better>
  void reduce(const Step& step, bool begins_row, Better is_better) const {
    float* to = floats_of(step.a) + row_ * step.a.row_bytes / static_cast<int64_t>(sizeof(float));
    float best = col_ == 0 ? identity_of(step.kind) : load(to);
    for (int64_t i = 0; i < count_ && i < kHeadElements; ++i)
      if (col_ == 0 && begins_row && acc_[i] != acc_[i]) best = kNan;  // no number is better
    for (int64_t i = 0; i < count_; ++i) best = is_better(acc_[i], best) ? acc_[i] : best;
    store(to, best);
  }

  const int64_t row_, col_, count_;
  float* sums_;
  float acc_[kTileElements] = {};
  float first_[kTileElements], second_[kTileElements];
};

}  // namespace

void run_portable_pass(const Pass& pass) {
  for (int64_t row = 0; row < pass.rows; ++row) {
    float sums[kMostReductions * kSums] = {};
    for (int64_t col = 0; col < pass.cols; col += kTileElements)
      Tile(row, col, pass.cols - col < kTileElements ? pass.cols - col : kTileElements, sums).run(pass);
    float* part = sums;
    for (int64_t i = 0; i < pass.count; ++i) {
      const Step& step = pass.steps[i];
      if (step.kind != StepKind::kReduceSum) continue;
      for (int64_t half = kSums / 2; half > 0; half /= 2)
        for (int64_t j = 0; j < half; ++j) part[j] += part[half + j];
      store(floats_of(step.a) + row * step.a.row_bytes / static_cast<int64_t>(sizeof(float)), part[0]);
      part += kSums;
    }
  }
}

}  // namespace dynq
