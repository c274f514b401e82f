// All kinds of steps of a program, for the checks of kernels.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/programs.h"

namespace steps {

using dynq::StepKind;

// What a step reads or writes besides the accumulator.
enum class Takes { kNothing, kOne, kTwo, kFloats, kHalves, kCodes, kNumber };

struct KindOfStep {
  const char* name;
  Takes takes;
};

// There is no default: the compiler refuses a step that is missing here.
inline KindOfStep describe(StepKind kind) {
  switch (kind) {
    case StepKind::kLoad:
      return {"Load", Takes::kOne};
    case StepKind::kAdd:
      return {"Add", Takes::kOne};
    case StepKind::kSub:
      return {"Sub", Takes::kOne};
    case StepKind::kSubFrom:
      return {"SubFrom", Takes::kOne};
    case StepKind::kMul:
      return {"Mul", Takes::kOne};
    case StepKind::kDiv:
      return {"Div", Takes::kOne};
    case StepKind::kDivInto:
      return {"DivInto", Takes::kOne};
    case StepKind::kMax:
      return {"Max", Takes::kOne};
    case StepKind::kMin:
      return {"Min", Takes::kOne};
    case StepKind::kEqual:
      return {"Equal", Takes::kOne};
    case StepKind::kLess:
      return {"Less", Takes::kOne};
    case StepKind::kLessOrEqual:
      return {"LessOrEqual", Takes::kOne};
    case StepKind::kGreater:
      return {"Greater", Takes::kOne};
    case StepKind::kGreaterOrEqual:
      return {"GreaterOrEqual", Takes::kOne};
    case StepKind::kLeakyRelu:
      return {"LeakyRelu", Takes::kOne};
    case StepKind::kClip:
      return {"Clip", Takes::kTwo};
    case StepKind::kWhere:
      return {"Where", Takes::kTwo};
    case StepKind::kAbs:
      return {"Abs", Takes::kNothing};
    case StepKind::kNeg:
      return {"Neg", Takes::kNothing};
    case StepKind::kSqrt:
      return {"Sqrt", Takes::kNothing};
    case StepKind::kRound:
      return {"Round", Takes::kNothing};
    case StepKind::kFloor:
      return {"Floor", Takes::kNothing};
    case StepKind::kCeil:
      return {"Ceil", Takes::kNothing};
    case StepKind::kSign:
      return {"Sign", Takes::kNothing};
    case StepKind::kToFloat16:
      return {"ToFloat16", Takes::kNothing};
    case StepKind::kToInt8:
      return {"ToInt8", Takes::kNothing};
    case StepKind::kToUint8:
      return {"ToUint8", Takes::kNothing};
    case StepKind::kToInt32:
      return {"ToInt32", Takes::kNothing};
    case StepKind::kSigmoid:
      return {"Sigmoid", Takes::kNothing};
    case StepKind::kGelu:
      return {"Gelu", Takes::kNothing};
    case StepKind::kStore:
      return {"Store", Takes::kFloats};
    case StepKind::kStoreF16:
      return {"StoreF16", Takes::kHalves};
    case StepKind::kStoreInt8:
      return {"StoreInt8", Takes::kCodes};
    case StepKind::kStoreUint8:
      return {"StoreUint8", Takes::kCodes};
    case StepKind::kReduceMax:
      return {"ReduceMax", Takes::kNumber};
    case StepKind::kReduceMin:
      return {"ReduceMin", Takes::kNumber};
    case StepKind::kReduceSum:
      return {"ReduceSum", Takes::kNumber};
  }
  return {nullptr, Takes::kNothing};  // past the last
}

inline std::vector<StepKind> all_kinds() {
  std::vector<StepKind> kinds;
  for (int32_t i = 0; describe(static_cast<StepKind>(i)).name != nullptr; ++i)
    kinds.push_back(static_cast<StepKind>(i));
  return kinds;
}

}  // namespace steps
