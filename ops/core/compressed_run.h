// A run of attention over codes: which heads are packed, and how units are shared among threads.
#pragma once

#include "core/compressed_unit.h"

namespace dynq {

struct CompressedPlan {
  const char* name;
  int64_t rows;   // of a unit
  int64_t parts;  // of the keys, if threads share them
  bool packs_key, packs_value;
  bool shares_heads;  // threads share a head
};

CompressedPlan plan_compressed(const CompressedRun& run);

void run_compressed(Context& context, const CompressedRun& run);

}  // namespace dynq
