// The instruction set in use: the one that ORT_DYNQ_ISA or select_isa() names, otherwise the best that this CPU
// supports.
#pragma once

#include <stddef.h>

#include "kernels/elementwise.h"
#include "kernels/products.h"

namespace dynq {

// An instruction set in the list of dispatch.cc.
struct InstructionSet {
  const char* name;
  const ElementwiseKernels* kernels;
  const ProductKernels* products;
  const CompressedKernels* compressed;
  bool (*is_supported)();  // by the CPU and the operating system
  bool (*enable)();  // null, or asks the operating system for registers that it grants on request; called before use
};

// Throws std::runtime_error if ORT_DYNQ_ISA names no instruction set that this CPU supports.
const InstructionSet& active_isa();
const ElementwiseKernels& active_kernels();  // of active_isa()
const CompressedKernels& active_compressed();

// Switches to the instruction set of that name, or with nullptr back to the default. Throws as active_isa() does.
void select_isa(const char* name);

// The name of supported instruction set number `index`, best first; null past the last.
const char* supported_isa(size_t index);

}  // namespace dynq
