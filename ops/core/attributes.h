// Reads attributes that are enumerations or flags. Every function throws Error for an unexpected value; the message
// names the operator, the attribute, the value and the expected values.
#pragma once

#include <vector>

#include "core/encodings.h"
#include "core/operator.h"

namespace dynq {

// A value of an enumerated attribute and its name in messages: the name in encodings.py in lower case with spaces.
struct NamedValue {
  int64_t value;
  const char* name;
};
using NamedValues = std::vector<NamedValue>;

// The values of each enumeration; the argument only selects the enumeration.
const NamedValues& values_of(ScaleOrder);
const NamedValues& values_of(AutoPad);
const NamedValues& values_of(QuadAxis);
const NamedValues& values_of(Direction);
const NamedValues& values_of(LastGate);
const NamedValues& values_of(HeadLayout);

// "1 (min max)"
std::string text_of(int64_t value, const NamedValues& values);
template <class Encoding>
std::string text_of(Encoding value) {
  return text_of(static_cast<int64_t>(value), values_of(value));
}

int64_t read_one_of(const char* op, const Attributes& attributes, const char* name, int64_t absent,
                    const NamedValues& expected);

template <class Encoding>
Encoding read_encoding(const char* op, const Attributes& attributes, const char* name, Encoding absent) {
  return static_cast<Encoding>(read_one_of(op, attributes, name, static_cast<int64_t>(absent), values_of(absent)));
}

// 0 or 1.
bool read_flag(const char* op, const Attributes& attributes, const char* name, bool absent);

// The k of the groups of weights, a multiple of kGroupUnit; 0: there is one group.
int64_t read_group_size(const char* op, const Attributes& attributes);

// uint8, int8, uint4 or int4.
Type read_any_code_type(const char* op, const Attributes& attributes, const char* name, Type absent);

}  // namespace dynq
