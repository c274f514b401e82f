// The integers that attributes are encoded as. ort_dynq/operators/encodings.py has the same enumerations with the same
// values, and explains each value. CodeType of encodings.py is `Type` in operator.h: both have ONNX's numbers.
// attributes.cc has the names of the values and rejects other values.
//
// An enumeration that indexes a table of kernels has a constant with the number of its values.
// Files of one instruction set include this header, so it must define no function (kernels/numbers.h says why).
#pragma once

namespace dynq {

enum Scaling { kDivide = 0, kMultiplyByTheReciprocal = 1, kMultiply = 2 };
constexpr int kScalings = 3;

enum RoundingOrder { kRoundThenAdd = 0, kAddThenRound = 1, kNoZeroPoint = 2, kFloat16Quotient = 3, kFloat16Sum = 4 };
constexpr int kRoundingOrders = 5;

enum ScaleOrder { kScalesFirst = 0, kRowFirst = 1, kColumnFirst = 2 };

enum class AutoPad { kExplicit = 0, kSameUpper = 1, kSameLower = 2 };

enum class QuadAxis { kChannels = 0, kWidth = 1 };

enum class Direction { kForward = 0, kReverse = 1, kBidirectional = 2 };

enum class LastGate { kSum = 0, kApart = 1, kOfReset = 2 };

enum class RangeKind { kAbsMax = 0, kMinMax = 1, kMinMaxWithZero = 2, kLargerSide = 3 };

enum class InverseScale { kNone = 0, kReciprocal = 1, kQuotient = 2 };

enum class AddedEpsilon { kNone = 0, kRange = 1, kScale = 2 };

enum class ZeroPointRule { kNone = 0, kRoundClipped = 1, kSubtractRounded = 2, kRoundNegated = 3, kFloorNegated = 4 };

enum class NanCode { kZero = 0, kQuantMin = 1, kNan = 2 };

}  // namespace dynq
