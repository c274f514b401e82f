#include "core/attributes.h"

namespace dynq {
namespace {

template <class Encoding>
NamedValue named(Encoding value, const char* name) {
  return {static_cast<int64_t>(value), name};
}

NamedValue named(Type type) { return {type, name_of(type)}; }

}  // namespace

const NamedValues& values_of(Scaling) {
  static const NamedValues values = {named(kDivide, "divide"),
                                     named(kMultiplyByTheReciprocal, "multiply by the reciprocal"),
                                     named(kMultiply, "multiply")};
  return values;
}

const NamedValues& values_of(RoundingOrder) {
  static const NamedValues values = {named(kRoundThenAdd, "round then add"), named(kAddThenRound, "add then round"),
                                     named(kNoZeroPoint, "no zero point"), named(kFloat16Quotient, "float16 quotient"),
                                     named(kFloat16Sum, "float16 sum")};
  return values;
}

const NamedValues& values_of(ScaleOrder) {
  static const NamedValues values = {named(kScalesFirst, "scales first"), named(kRowFirst, "row first"),
                                     named(kColumnFirst, "column first")};
  return values;
}

const NamedValues& values_of(AutoPad) {
  static const NamedValues values = {named(AutoPad::kExplicit, "explicit"), named(AutoPad::kSameUpper, "same upper"),
                                     named(AutoPad::kSameLower, "same lower")};
  return values;
}

const NamedValues& values_of(QuadAxis) {
  static const NamedValues values = {named(QuadAxis::kChannels, "channels"), named(QuadAxis::kWidth, "width")};
  return values;
}

const NamedValues& values_of(Direction) {
  static const NamedValues values = {named(Direction::kForward, "forward"), named(Direction::kReverse, "reverse"),
                                     named(Direction::kBidirectional, "bidirectional")};
  return values;
}

const NamedValues& values_of(LastGate) {
  static const NamedValues values = {named(LastGate::kSum, "sum"), named(LastGate::kApart, "apart"),
                                     named(LastGate::kOfReset, "of reset")};
  return values;
}

const NamedValues& values_of(RangeKind) {
  static const NamedValues values = {named(RangeKind::kAbsMax, "abs max"), named(RangeKind::kMinMax, "min max"),
                                     named(RangeKind::kMinMaxWithZero, "min max with zero"),
                                     named(RangeKind::kLargerSide, "larger side")};
  return values;
}

const NamedValues& values_of(InverseScale) {
  static const NamedValues values = {named(InverseScale::kNone, "none"), named(InverseScale::kReciprocal, "reciprocal"),
                                     named(InverseScale::kQuotient, "quotient")};
  return values;
}

const NamedValues& values_of(AddedEpsilon) {
  static const NamedValues values = {named(AddedEpsilon::kNone, "none"), named(AddedEpsilon::kRange, "range"),
                                     named(AddedEpsilon::kScale, "scale")};
  return values;
}

const NamedValues& values_of(ZeroPointRule) {
  static const NamedValues values = {
      named(ZeroPointRule::kNone, "none"), named(ZeroPointRule::kRoundClipped, "round clipped"),
      named(ZeroPointRule::kSubtractRounded, "subtract rounded"), named(ZeroPointRule::kRoundNegated, "round negated"),
      named(ZeroPointRule::kFloorNegated, "floor negated")};
  return values;
}

const NamedValues& values_of(NanCode) {
  static const NamedValues values = {named(NanCode::kZero, "zero"), named(NanCode::kQuantMin, "quant min"),
                                     named(NanCode::kNan, "nan")};
  return values;
}

std::string text_of(int64_t value, const NamedValues& values) {
  for (const NamedValue& known : values)
    if (known.value == value && known.name != nullptr) return std::to_string(value) + " (" + known.name + ")";
  return std::to_string(value);
}

int64_t read_one_of(const char* op, const Attributes& attributes, const char* name, int64_t absent,
                    const NamedValues& expected) {
  const int64_t value = attributes.integer(name, absent);
  std::string list;
  for (size_t i = 0; i < expected.size(); ++i) {
    if (expected[i].value == value) return value;
    if (i > 0) list += i + 1 < expected.size() ? ", " : " or ";
    list += text_of(expected[i].value, expected);
  }
  throw Error(std::string(op) + ": " + name + " is " + std::to_string(value) + ", expected " + list);
}

bool read_flag(const char* op, const Attributes& attributes, const char* name, bool absent) {
  static const NamedValues values = {{0, nullptr}, {1, nullptr}};
  return read_one_of(op, attributes, name, absent ? 1 : 0, values) != 0;
}

Type read_code_type(const char* op, const Attributes& attributes, const char* name, Type absent) {
  static const NamedValues values = {named(kUint8), named(kInt8)};
  return static_cast<Type>(read_one_of(op, attributes, name, absent, values));
}

Type read_any_code_type(const char* op, const Attributes& attributes, const char* name, Type absent) {
  static const NamedValues values = {named(kUint8), named(kInt8), named(kUint4), named(kInt4)};
  return static_cast<Type>(read_one_of(op, attributes, name, absent, values));
}

Type read_code_or_float_type(const char* op, const Attributes& attributes, const char* name, Type absent) {
  static const NamedValues values = {named(kFloat), named(kUint8), named(kInt8)};
  return static_cast<Type>(read_one_of(op, attributes, name, absent, values));
}

}  // namespace dynq
