// The implementations of a convolution.
#pragma once

#include "core/convolution.h"

namespace dynq {

struct ConvImplementation {
  const char* name;
  bool (*takes)(const Convolution&);
  void (Convolution::*run)(const ConvPart&) const;
  bool merges_samples;  // small samples may become an axis of one image
  bool is_winograd, is_strassen, is_by_rows;
};

// The best one for the instruction set in use.
const ConvImplementation& choose_conv(const Convolution& conv);

}  // namespace dynq
