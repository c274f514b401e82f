// The integers that attributes are encoded as. ort_dynq/operators/encodings.py has the same enumerations with the same
// values, and explains each value. CodeType of encodings.py is `Type` in operator.h: both have ONNX's numbers.
// attributes.cc has the names of the values and rejects other values.
//
// An enumeration that indexes a table of kernels has a constant with the number of its values.
// Files of one instruction set include this header, so it must define no function (kernels/numbers.h says why).
#pragma once

namespace dynq {

enum ScaleOrder { kScalesFirst = 0, kRowFirst = 1, kColumnFirst = 2 };

enum class AutoPad { kExplicit = 0, kSameUpper = 1, kSameLower = 2 };

enum class QuadAxis { kChannels = 0, kWidth = 1 };

enum class Direction { kForward = 0, kReverse = 1, kBidirectional = 2 };

enum class HeadLayout { kTokensFirst = 0, kHeadsFirst = 1, kElementsFirst = 2 };

enum class LastGate { kSum = 0, kSeparateProducts = 1, kResetState = 2 };

}  // namespace dynq
