#include "core/attributes.h"

#include "kernels/products.h"

namespace dynq {
namespace {

template <class Encoding>
NamedValue named(Encoding value, const char* name) {
  return {static_cast<int64_t>(value), name};
}

NamedValue named(Type type) { return {type, name_of(type)}; }

}  // namespace

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

const NamedValues& values_of(HeadLayout) {
  static const NamedValues values = {named(HeadLayout::kTokensFirst, "tokens first"),
                                     named(HeadLayout::kHeadsFirst, "heads first"),
                                     named(HeadLayout::kElementsFirst, "elements first")};
  return values;
}

const NamedValues& values_of(LastGate) {
  static const NamedValues values = {named(LastGate::kSum, "sum"),
                                     named(LastGate::kSeparateProducts, "separate products"),
                                     named(LastGate::kResetState, "reset state")};
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

int64_t read_group_size(const char* op, const Attributes& attributes) {
  const int64_t size = attributes.integer("group_size", 0);
  if (size < 0 || size % kGroupUnit != 0)
    throw Error(std::string(op) + ": group_size is " + std::to_string(size) + ", expected 0 or a multiple of " +
                std::to_string(kGroupUnit));
  return size;
}

Type read_any_code_type(const char* op, const Attributes& attributes, const char* name, Type absent) {
  static const NamedValues values = {named(kUint8), named(kInt8), named(kUint4), named(kInt4)};
  return static_cast<Type>(read_one_of(op, attributes, name, absent, values));
}

}  // namespace dynq
