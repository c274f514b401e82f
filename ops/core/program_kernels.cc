#include "core/program_kernels.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace dynq {
namespace {

using Place = PlacedOperand::Place;

bool is_x(const PlacedStep& step) { return step.kind == StepKind::kLoad && step.a.place == Place::kX; }

bool is_number(const PlacedOperand& operand) {
  return operand.place == Place::kSlot || operand.place == Place::kLiteral;
}

// Whether a number has 11 significant bits or less, as float16 has.
bool has_11_bits(float number) { return (to_bits(number) & 0x1fff) == 0; }

// Reads the steps of a pass that computes ranges.
class RangeMatcher {
 public:
  bool match(const PlacedStep& step) {
    if (is_x(step))
      acc_ = kElements;
    else if (acc_ == kElements && step.kind == StepKind::kAbs)
      acc_ = kMagnitudes;
    else if (acc_ == kElements && step.kind == StepKind::kEqual && step.a.place == Place::kX)
      acc_ = kNumbers;
    else
      return match_output(step);
    return true;
  }

  std::optional<RangePass> pass() const {
    if (abs_max_ != kNone && low_ == kNone && high_ == kNone) return RangePass{kAbsMax, kNone, abs_max_, is_number_};
    if (abs_max_ == kNone && low_ != kNone && high_ != kNone) return RangePass{kMinMax, low_, high_, is_number_};
    return std::nullopt;
  }

 private:
  static constexpr int kNone = -1;

  // The output that a reduction of the accumulator writes, or null.
  int* output_of(StepKind kind) {
    if (kind == StepKind::kReduceMax) return acc_ == kMagnitudes ? &abs_max_ : acc_ == kElements ? &high_ : nullptr;
    if (kind == StepKind::kReduceMin) return acc_ == kNumbers ? &is_number_ : acc_ == kElements ? &low_ : nullptr;
    return nullptr;
  }

  bool match_output(const PlacedStep& step) {
    int* const found = output_of(step.kind);
    if (found == nullptr || *found != kNone) return false;
    *found = step.a.index;
    return true;
  }

  enum { kOther, kElements, kMagnitudes, kNumbers } acc_ = kOther;  // what the accumulator is: x, |x|, or x == x
  int low_ = kNone, high_ = kNone, abs_max_ = kNone, is_number_ = kNone;
};

}  // namespace

std::optional<RangePass> range_of(const std::vector<PlacedStep>& steps, bool is_float16) {
  RangeMatcher matcher;
  for (const PlacedStep& step : steps)
    if (!(is_float16 && step.kind == StepKind::kToFloat16) && !matcher.match(step)) return std::nullopt;
  return matcher.pass();
}

// Reads the steps of a pass one after the other.
class QuantizePass::Matcher {
 public:
  Matcher(const std::vector<PlacedStep>& steps, const std::vector<float>& literals)
      : steps_(steps), literals_(literals), end_(steps.size() - 1) {}

  bool match(QuantizePass& pass) {
    if (steps_.size() < 3 || !is_x(steps_[0]) || !is_number(steps_[1].a)) return false;
    if (steps_[1].kind != StepKind::kDiv && steps_[1].kind != StepKind::kMul) return false;
    pass.multiplies_ = steps_[1].kind == StepKind::kMul;
    pass.scale_ = steps_[1].a;
    if (steps_[end_].kind != StepKind::kStore || steps_[end_].a.place != Place::kOutput) return false;
    pass.output_ = static_cast<ProgramOutput>(steps_[end_].a.index);
    size_t first = 2;
    if (steps_[first].kind == StepKind::kToFloat16) {
      pass.rounds_quotient_ = true;
      ++first;
    }
    if (!pass.stores_codes()) match_factor(pass);
    for (size_t i = first; i < end_; ++i)
      if (!match_step(steps_[i], pass)) return false;
    return pass.stores_codes() ? are_codes(pass) : are_floats(pass);
  }

 private:
  void match_factor(QuantizePass& pass) {
    const PlacedStep& last = steps_[end_ - 1];
    if (end_ < 3 || !is_number(last.a) || (last.kind != StepKind::kMul && last.kind != StepKind::kDiv)) return;
    pass.factor_ = last.a;
    pass.divides_code_ = last.kind == StepKind::kDiv;
    --end_;
  }

  bool match_step(const PlacedStep& step, QuantizePass& pass) {
    if (is_subtracted_) return false;
    switch (step.kind) {
      case StepKind::kRound:
        return is_rounded_ = true;
      case StepKind::kToInt32:
      case StepKind::kToInt8:
      case StepKind::kToUint8:
        is_rounded_ = true;
        pass.keeps_negative_zero_ = false;
        if (step.kind == StepKind::kToInt32)  // wraps around
          may_wrap_ |= pass.low_ <= -kLargestSafeClip || pass.high_ >= kLargestSafeClip;
        if (step.kind == StepKind::kToInt8) clip(-128, 127, pass);
        if (step.kind == StepKind::kToUint8) clip(0, 255, pass);
        return true;
      case StepKind::kClip:
        return clip(literal(step.a), literal(step.b), pass);
      case StepKind::kMax:
        return step.a.place == Place::kLiteral && clip(literal(step.a), kInfinity, pass);
      case StepKind::kMin:
        return step.a.place == Place::kLiteral && clip(-kInfinity, literal(step.a), pass);
      case StepKind::kAdd:
      case StepKind::kSub:
        return is_number(step.a) && (pass.stores_codes() ? add_to_code(step, pass) : add_zero_point(step, pass));
      default:
        return false;
    }
  }

  // The bounds of the code without what is added later.
  bool clip(float low, float high, QuantizePass& pass) {
    const auto offset = static_cast<float>(pass.offset_);
    pass.low_ = std::max(pass.low_, low - offset);
    pass.high_ = std::min(pass.high_, high - offset);
    is_clipped_ = true;
    if (!is_rounded_) clips_at_zero_ |= low == 0 || high == 0;
    return true;
  }

  // Literals, and a number of the row before all clips. A zero that is added before rounding changes no code.
  bool add_to_code(const PlacedStep& step, QuantizePass& pass) {
    const bool adds = step.kind == StepKind::kAdd;
    if (step.a.place == Place::kLiteral) {
      const float number = literal(step.a);
      if (!is_rounded_ || std::fabs(number) > static_cast<float>(kNarrowZeroPoint)) return number == 0;
      pass.offset_ += static_cast<int32_t>(adds ? number : -number);
      return number == round_half_even(number) && std::abs(pass.offset_) <= kNarrowZeroPoint;
    }
    if (!is_rounded_ || !adds || pass.offset_ != 0 || has_zero_point(pass)) return false;
    pass.zero_point_ = step.a;
    return may_add_after_clips(pass);
  }

  // Whether a narrow zero point may be added to what was clipped: if at all, to 16 bits, as QuantizeLinear's steps do.
  // Codes outside those bounds are clipped again, or the kernels do not run.
  bool may_add_after_clips(QuantizePass& pass) {
    if (!is_clipped_) return true;
    if (!is_rounded_ || pass.low_ > -2.0f * kEnd || pass.high_ < 2.0f * kEnd - 1) return false;
    pass.low_ = -kEnd;
    pass.high_ = kEnd - 1;  // with a zero point of -kEnd, the Clip ends at 2 * kEnd - 1
    return true;
  }

  // A number that is added, and subtracted in the end.
  bool add_zero_point(const PlacedStep& step, QuantizePass& pass) {
    if (step.kind == StepKind::kAdd && !has_zero_point(pass)) {
      pass.zero_point_ = step.a;
      pass.adds_first_ = !is_rounded_;
      return may_add_after_clips(pass);
    }
    return is_subtracted_ =
               step.kind == StepKind::kSub && is_rounded_ && has_zero_point(pass) && is_same(step.a, pass.zero_point_);
  }

  bool are_codes(QuantizePass& pass) const {
    // Without the zero point, the codes that can be stored.
    const auto offset = static_cast<float>(pass.offset_);
    pass.saturates_ =
        !pass.rounds_quotient_ && !may_wrap_ && pass.low_ + offset <= pass.least_ && pass.high_ + offset >= pass.most_;
    return !(pass.multiplies_ && pass.rounds_quotient_);
  }

  bool are_floats(QuantizePass& pass) const {
    if (!is_rounded_ || is_subtracted_ != has_zero_point(pass)) return false;
    if (is_subtracted_ && !pass.adds_first_) pass.keeps_negative_zero_ = false;
    if (pass.rounds_quotient_ && pass.adds_first_) return false;
    // If the quotient underflows, the order of operations decides the sign of the code 0.
    if (pass.adds_first_ && !pass.multiplies_ && pass.keeps_negative_zero_) return false;
    // A Clip before rounding makes +0 of -0.25: its rounded code -0 lies within its bounds.
    if (clips_at_zero_ && pass.keeps_negative_zero_) return false;
    return !pass.divides_code_ || pass.multiplies_;
  }

  static bool has_zero_point(const QuantizePass& pass) { return pass.zero_point_.place != Place::kNone; }

  float literal(const PlacedOperand& operand) const { return literals_[static_cast<size_t>(operand.index)]; }

  bool is_same(const PlacedOperand& a, const PlacedOperand& b) const {
    if (a == b) return true;
    return a.place == Place::kLiteral && b.place == Place::kLiteral && to_bits(literal(a)) == to_bits(literal(b));
  }

  static constexpr auto kEnd = static_cast<float>(kNarrowZeroPoint);

  const std::vector<PlacedStep>& steps_;
  const std::vector<float>& literals_;
  size_t end_;  // of the steps from t to the code
  bool is_rounded_ = false, is_clipped_ = false, clips_at_zero_ = false, is_subtracted_ = false, may_wrap_ = false;
};

std::optional<QuantizePass> QuantizePass::of(const std::vector<PlacedStep>& steps, const std::vector<float>& literals,
                                             Type code_type) {
  QuantizePass pass;
  const bool is_signed = code_type == kInt8 || code_type == kInt4;
  const float count = bits_of(code_type) == 8 ? 256 : 16;
  pass.least_ = is_signed ? -count / 2 : 0;
  pass.most_ = pass.least_ + count - 1;
  if (!Matcher(steps, literals).match(pass)) return std::nullopt;
  return pass;
}

namespace {

constexpr int64_t kRowsOfVectors = 8;
constexpr int64_t padded(int64_t rows) { return (rows + kRowsOfVectors - 1) / kRowsOfVectors * kRowsOfVectors; }

// Loops over rows are free of branches and run over whole vectors: the last number stands for those that are missing.
void copy(const float* from, int64_t rows, float* to) {
  std::copy_n(from, rows, to);
  std::fill(to + rows, to + padded(rows), from[rows - 1]);
}

// Reads a number of each row, for which `absent` stands if there is none.
void read(const RowNumbers& numbers, const PlacedOperand& number, int64_t rows, float absent, float* to) {
  if (number.place == Place::kSlot) {
    copy(numbers.slots + number.index * numbers.most_rows, rows, to);
  } else {
    std::fill_n(to, padded(rows),
                number.place == Place::kLiteral ? numbers.literals[static_cast<size_t>(number.index)] : absent);
  }
}

// Rounds half to even, up to magnitudes of 2^22.
float rounded(float t) {
  constexpr float kBias = 12582912.0f;
  return (t + kBias) - kBias;
}

int32_t is_narrow_integer(float number) {
  constexpr auto kEnd = static_cast<float>(kNarrowZeroPoint);
  const float low = number >= -kEnd ? number : 0, narrow = low <= kEnd ? low : 0;
  return static_cast<int32_t>(static_cast<float>(static_cast<int32_t>(narrow)) == number);
}

// Whether every element between low and high, both finite, has a code in the bounds. Steps are monotonic in x.
template <class Quotient>
bool are_within(const float* low, const float* high, const QuantizedRows& rows, const float* first, const float* second,
                int64_t count, float least, float most, const Quotient& quotient) {
  int32_t all = 1;
  for (int64_t i = 0; i < padded(count); ++i) {
    const float t = quotient(low[i], rows.scales[i]), u = quotient(high[i], rows.scales[i]);
    const int32_t are_small =
        static_cast<int32_t>(std::fabs(t) <= kLargestSafeClip) & static_cast<int32_t>(std::fabs(u) <= kLargestSafeClip);
    const float a = rounded(t + first[i]) + second[i], b = rounded(u + first[i]) + second[i];
    all &= are_small & static_cast<int32_t>(a >= least) & static_cast<int32_t>(a <= most) &
           static_cast<int32_t>(b >= least) & static_cast<int32_t>(b <= most);
  }
  return all != 0;
}

}  // namespace

bool QuantizePass::find(const RowNumbers& numbers, const RowRanges& ranges, int64_t count, QuantizedRows& rows) const {
  read(numbers, scale_, count, 1, rows.scales);
  read(numbers, zero_point_, count, 0, rows.zero_points);
  if (!stores_codes()) read(numbers, factor_, count, 1, rows.factors);
  int32_t all = 1;
  for (int64_t i = 0; i < padded(count); ++i) {
    const float scale = rows.scales[i], least = multiplies_ ? -std::numeric_limits<float>::max() : kSmallestSafeScale;
    const float most = multiplies_ ? std::numeric_limits<float>::max() : kLargestSafeScale;
    all &= static_cast<int32_t>(scale >= least) & static_cast<int32_t>(scale <= most) &
           is_narrow_integer(rows.zero_points[i]);
  }
  if (all == 0) return false;
  if (stores_codes())
    for (int64_t i = 0; i < count; ++i) {
      rows.offsets[i] = offset_ + static_cast<int32_t>(rows.zero_points[i]);
      if (std::abs(rows.offsets[i]) > kNarrowZeroPoint) return false;
    }
  if (saturates_) return true;  // as the kernel does
  alignas(64) float low[kMaxPassRows], high[kMaxPassRows], zeros[kMaxPassRows] = {};
  copy(ranges.high, count, high);
  if (ranges.low != nullptr)
    copy(ranges.low, count, low);
  else
    for (int64_t i = 0; i < padded(count); ++i) low[i] = -high[i];
  const float *first = adds_first_ ? rows.zero_points : zeros, *second = adds_first_ ? zeros : rows.zero_points;
  const auto fit = [&](const auto& quotient) {
    return are_within(low, high, rows, first, second, count, low_, high_, quotient);
  };
  if (!rounds_quotient_)
    return multiplies_ ? fit([](float x, float scale) { return x * scale; })
                       : fit([](float x, float scale) { return x / scale; });
  rows.largest = 0;
  return fit([&](float x, float scale) {
    const float t = rounded_to_float16(multiplies_ ? x * scale : x / scale);
    rows.largest = std::max(rows.largest, std::fabs(t));
    return t;
  });
}

bool QuantizePass::takes_float16(const QuantizedRows& rows, int64_t count) const {
  if (rounds_quotient_ && !multiplies_ &&
      !(rows.largest <= kLargestRoundedQuotient && std::all_of(rows.scales, rows.scales + count, has_11_bits)))
    return false;
  // The kernels store no NaN.
  return stores_codes() || std::all_of(rows.factors, rows.factors + count,
                                       [](float factor) { return std::isfinite(factor) && factor != 0; });
}

QuantizeKernel QuantizePass::quantizer(const ElementwiseKernels& table, CodeKind kind, bool is_float16) const {
  const Arithmetic arithmetic = multiplies_ ? kProduct : rounds_quotient_ ? kRoundedQuotient : kOnnx;
  return (is_float16 ? table.quantize_f16 : table.quantize)[arithmetic][kind][kPerRow];
}

QuantizeKernel QuantizePass::quantizer_to_4_bits(const ElementwiseKernels& table, CodeKind kind,
                                                 bool is_float16) const {
  if (multiplies_ || rounds_quotient_) return nullptr;
  return (is_float16 ? table.quantize_4bits_f16 : table.quantize_4bits)[kind][kPerRow];
}

BoundedKernel QuantizePass::fake_quantizer(const ElementwiseKernels& table, bool is_float16) const {
  const Scaling scaling = !multiplies_ ? kDivide : divides_code_ ? kMultiply : kMultiplyByTheReciprocal;
  const BoundedOrder order = adds_first_ ? kAddsFirst : rounds_quotient_ ? kRoundsQuotient : kNoEffectOfZeroPoint;
  return (is_float16 ? table.bounded_f16 : table.bounded)[scaling][order];
}

}  // namespace dynq
