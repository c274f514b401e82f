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

// The steps that only compute: X(step, what it makes of acc, and of its operands a and b if it has these).
#define ORT_DYNQ_UNARY_STEPS(X)          \
  X(kAbs, fabsf(acc))                    \
  X(kNeg, -acc)                          \
  X(kSqrt, sqrtf(acc))                   \
  X(kRound, round_half_even(acc))        \
  X(kFloor, floorf(acc))                 \
  X(kCeil, ceilf(acc))                   \
  X(kSign, sign_of(acc))                 \
  X(kToFloat16, rounded_to_float16(acc)) \
  X(kToInt8, saturated(acc, -128, 127))  \
  X(kToUint8, saturated(acc, 0, 255))    \
  X(kToInt32, to_int32(acc))             \
  X(kSigmoid, sigmoid_of<Scalar>(acc))   \
  X(kGelu, gelu_of<Scalar>(acc))
#define ORT_DYNQ_BINARY_STEPS(X)             \
  X(kLoad, a)                                \
  X(kAdd, acc + a)                           \
  X(kSub, acc - a)                           \
  X(kSubFrom, a - acc)                       \
  X(kMul, acc* a)                            \
  X(kDiv, acc / a)                           \
  X(kDivInto, a / acc)                       \
  X(kMax, max_of(acc, a))                    \
  X(kMin, min_of(acc, a))                    \
  X(kEqual, acc == a ? 1.0f : 0.0f)          \
  X(kLess, acc < a ? 1.0f : 0.0f)            \
  X(kLessOrEqual, acc <= a ? 1.0f : 0.0f)    \
  X(kGreater, acc > a ? 1.0f : 0.0f)         \
  X(kGreaterOrEqual, acc >= a ? 1.0f : 0.0f) \
  X(kLeakyRelu, acc < 0 ? a * acc : acc)
#define ORT_DYNQ_TERNARY_STEPS(X) \
  X(kClip, clip(acc, a, b))       \
  X(kWhere, acc != 0 ? a + 0.0f : b)

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
#define ORT_DYNQ_CASE(kind, result) \
  case StepKind::kind:              \
    return unary([](float acc) { return result; });
      ORT_DYNQ_UNARY_STEPS(ORT_DYNQ_CASE)
#undef ORT_DYNQ_CASE
#define ORT_DYNQ_CASE(kind, result) \
  case StepKind::kind:              \
    return binary(step, []([[maybe_unused]] float acc, float a) { return result; });
      ORT_DYNQ_BINARY_STEPS(ORT_DYNQ_CASE)
#undef ORT_DYNQ_CASE
#define ORT_DYNQ_CASE(kind, result) \
  case StepKind::kind:              \
    return ternary(step, [](float acc, float a, float b) { return result; });
      ORT_DYNQ_TERNARY_STEPS(ORT_DYNQ_CASE)
#undef ORT_DYNQ_CASE
      case StepKind::kStore:
        return store_as<float>(step, [](float acc) { return acc; });
      case StepKind::kStoreF16:
        return store_as<uint16_t>(step, [](float acc) { return narrow_f16(acc); });
      case StepKind::kStoreInt8:
        return store_as<int8_t>(step, [](float acc) { return static_cast<int8_t>(saturated(acc, -128, 127)); });
      case StepKind::kStoreUint8:
        return store_as<uint8_t>(step, [](float acc) { return static_cast<uint8_t>(saturated(acc, 0, 255)); });
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

  template <class T, class Convert>
  void store_as(const Step& step, const Convert& convert) const {
    T* const to = reinterpret_cast<T*>(address(step.a));
    for (int64_t i = 0; i < count_; ++i) store(to + i, convert(acc_[i]));
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
    float sums[kMaxReductions * kSums] = {};
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
