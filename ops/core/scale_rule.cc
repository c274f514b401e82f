#include "core/scale_rule.h"

#include "core/attributes.h"

namespace dynq {
namespace {

// ONNX's Clip: NaN stays NaN.
float clip(float value, float low, float high) {
  value = value < low ? low : value;
  return value > high ? high : value;
}

// values[i] = function(values[i]) for the first `count` values and the padding.
template <class Function>
void update(float* values, int64_t count, const Function& function) {
  for (int64_t i = 0; i < padded(count); ++i) values[i] = function(values[i]);
}

// The values within their bounds; adds the lower one instead if `adds`.
ORT_DYNQ_ONE_COPY void bound(float* values, int64_t count, float low, float high, bool adds) {
  if (!adds && low == -kInfinity && high == kInfinity) return;
  const float addend = adds ? low : -0.0f, least = adds ? -kInfinity : low;
  update(values, count, [=](float value) { return clip(value + addend, least, high); });
}

}  // namespace

void round_to_float16(float* values, int64_t count) { update(values, count, rounded_to_float16); }

ScaleRule::ScaleRule(const char* op, const Attributes& attributes, bool is_linear)
    : is_linear_(is_linear),
      kind_(read_encoding(op, attributes, "range_kind", RangeKind::kAbsMax)),
      rule_(read_encoding(op, attributes, "zero_point_rule", ZeroPointRule::kNone)),
      inverse_scale_(read_encoding(op, attributes, "inverse_scale", InverseScale::kNone)),
      added_epsilon_(read_encoding(op, attributes, "added_epsilon", AddedEpsilon::kNone)),
      zero_point_before_epsilon_(read_flag(op, attributes, "zero_point_before_epsilon", false)),
      zero_point_type_(read_code_or_float_type(op, attributes, "zero_point_type", kFloat)),
      float16_range_(read_flag(op, attributes, "float16_range", false)),
      float16_scale_(read_flag(op, attributes, "float16_scale", false)) {
  if (inverse_scale_ != InverseScale::kNone && kind_ != RangeKind::kAbsMax)
    throw Error(std::string(op) + ": inverse_scale is " + text_of(inverse_scale_) + " for range_kind " +
                text_of(kind_) + ", expected range_kind " + text_of(RangeKind::kAbsMax));
  const bool is_symmetric = kind_ == RangeKind::kAbsMax || kind_ == RangeKind::kLargerSide;
  if (is_symmetric && rule_ != ZeroPointRule::kNone)
    throw Error(std::string(op) + ": zero_point_rule is " + text_of(rule_) + " for range_kind " + text_of(kind_) +
                ", expected " + text_of(ZeroPointRule::kNone));
}

// Inlined, so that compilers see which arrays overlap.
ORT_DYNQ_INLINE inline void ScaleRule::set_zero_points(const float* low, const float* scale, float quant_min,
                                                       float quant_max, int64_t count, float* zero_point) const {
  const auto set = [=](const auto& function) {
    for (int64_t i = 0; i < padded(count); ++i) zero_point[i] = function(low[i], scale[i]);
  };
  switch (rule_) {
    case ZeroPointRule::kRoundClipped:
      set([=](float x, float step) { return round_half_even(clip(quant_min - x / step, quant_min, quant_max)); });
      break;
    case ZeroPointRule::kSubtractRounded:
      set([=](float x, float step) { return clip(quant_min - round_half_even(x / step), quant_min, quant_max); });
      break;
    case ZeroPointRule::kRoundNegated:
      set([=](float x, float step) { return clip(round_half_even(-x / step), quant_min, quant_max); });
      break;
    case ZeroPointRule::kFloorNegated:
      set([](float x, float step) { return floorf((0.0f - x) / step); });
      break;
    case ZeroPointRule::kNone:
      return set([](float, float) { return 0.0f; });
  }
  if (is_linear_) update(zero_point, count, [=](float value) { return value != value ? quant_max : value; });
  if (zero_point_type_ == kUint8)
    update(zero_point, count, [](float value) { return static_cast<float>(low_byte(value)); });
  if (zero_point_type_ == kInt8)
    update(zero_point, count, [](float value) { return static_cast<float>(static_cast<int8_t>(low_byte(value))); });
}

void ScaleRule::apply(const RangeConstants& constants, float quant_min, float quant_max, int64_t count,
                      RowParameters& rows) const {
  const RangeConstants c = constants;
  alignas(64) float low[kMostRows], high[kMostRows], step[kMostRows];
  float* scale = rows.scale;
  for (int64_t i = count; i < padded(count); ++i) {
    rows.low[i] = rows.low[count - 1];
    rows.high[i] = rows.high[count - 1];
  }
  for (int64_t i = 0; i < padded(count); ++i) {
    low[i] = rows.low[i];
    high[i] = rows.high[i];
  }
  if (float16_range_) {
    round_to_float16(low, count);
    round_to_float16(high, count);
  }
  if (kind_ == RangeKind::kMinMaxWithZero) {
    update(low, count, [=](float value) { return clip(value, c.lowest_minimum, 0); });
    update(high, count, [=](float value) { return clip(value, 0, c.highest_maximum); });
  }
  if (kind_ == RangeKind::kLargerSide) {
    for (int64_t i = 0; i < padded(count); ++i) {
      const float above = high[i] / c.highest_maximum, below = low[i] / c.lowest_minimum;
      scale[i] = below > above || below != below ? below : above;
    }
  } else {
    const bool is_width = kind_ != RangeKind::kAbsMax;
    for (int64_t i = 0; i < padded(count); ++i) scale[i] = is_width ? high[i] - low[i] : high[i];
  }
  bound(scale, count, c.lowest_range, c.highest_range, added_epsilon_ == AddedEpsilon::kRange);
  if (is_linear_) update(scale, count, [=](float span) { return span == 0 ? c.divisor : span; });
  if (inverse_scale_ == InverseScale::kReciprocal) update(scale, count, [=](float span) { return 1.0f / span; });
  if (inverse_scale_ == InverseScale::kQuotient)
    update(scale, count, [=](float span) { return c.factor / (span / c.divisor); });
  else
    update(scale, count, [=](float span) { return span / c.divisor * c.factor; });
  if (float16_scale_) round_to_float16(scale, count);
  for (int64_t i = 0; i < padded(count); ++i) step[i] = scale[i];
  bound(scale, count, c.lowest_scale, c.highest_scale, added_epsilon_ == AddedEpsilon::kScale);
  update(scale, count, [=](float value) { return value == 0 ? c.scale_of_zero : value; });
  if (!zero_point_before_epsilon_)
    for (int64_t i = 0; i < padded(count); ++i) step[i] = scale[i];
  set_zero_points(low, step, quant_min, quant_max, count, rows.zero_point);
}

}  // namespace dynq
