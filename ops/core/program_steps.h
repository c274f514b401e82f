// The steps of a pass before the tensors are known: operands are places.
#pragma once

#include "core/program_text.h"

namespace dynq {

// An operand of a step, before the tensors are known.
struct PlacedOperand {
  enum class Place { kNone, kLiteral, kSlot, kX, kOperand, kTile, kOutput };
  Place place = Place::kNone;
  int index = 0;  // of the literal, the slot, ...

  bool operator==(const PlacedOperand& other) const { return place == other.place && index == other.index; }
};

// The step that stores codes of a type.
constexpr StepKind store_of(Type code_type) {
  return code_type == kInt8 || code_type == kInt4 ? StepKind::kStoreInt8 : StepKind::kStoreUint8;
}

struct PlacedStep {
  StepKind kind;
  PlacedOperand a, b;
};

}  // namespace dynq
