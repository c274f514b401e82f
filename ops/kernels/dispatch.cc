// Chooses the kernels: those that ORT_DYNQ_ISA or select_isa() names, otherwise the first of the list that this CPU
// supports.
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

#include "kernels/kernels.h"

namespace dynq {

// Best first; the portable kernels follow. To add an instruction set, write a file whose second line gives its compiler
// options (as avx2.cc; the build reads them), and add its table here with the CPU's features that it needs.
#ifdef ORT_DYNQ_X86
#define ORT_DYNQ_INSTRUCTION_SETS(X)                                                              \
  X(kAvx512Kernels, __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&    \
                        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) \
  X(kAvx2Kernels, __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
#else
#define ORT_DYNQ_INSTRUCTION_SETS(X)
#endif

#define ORT_DYNQ_DECLARE(table, is_supported) extern const KernelTable table;
ORT_DYNQ_INSTRUCTION_SETS(ORT_DYNQ_DECLARE)

namespace {

struct InstructionSet {
  const KernelTable* kernels;
  bool (*supported)();
};

#define ORT_DYNQ_ENTRY(table, is_supported) {&table, [] { return is_supported; }},
const InstructionSet kInstructionSets[] = {
    ORT_DYNQ_INSTRUCTION_SETS(ORT_DYNQ_ENTRY){&portable_kernels(), [] { return true; }}};

std::atomic<const KernelTable*> active{nullptr};

const KernelTable& find(const char* origin, const char* name) {
  std::string names;
  for (const InstructionSet& set : kInstructionSets) {
    if (!set.supported()) continue;
    if (name == nullptr || *name == '\0' || std::strcmp(name, set.kernels->name) == 0) return *set.kernels;
    names += (names.empty() ? "" : ", ") + std::string(set.kernels->name);
  }
  throw std::runtime_error(std::string(origin) + " is '" + name +
                           "', expected one of those that this CPU supports: " + names);
}

}  // namespace

const KernelTable& active_kernels() {
  const KernelTable* kernels = active.load(std::memory_order_acquire);
  if (kernels == nullptr) {
    kernels = &find("ORT_DYNQ_ISA", std::getenv("ORT_DYNQ_ISA"));
    active.store(kernels, std::memory_order_release);
  }
  return *kernels;
}

void select_isa(const char* name) {
  active.store(name == nullptr ? nullptr : &find("the instruction set", name), std::memory_order_release);
}

const char* supported_isa(size_t index) {
  for (const InstructionSet& set : kInstructionSets)
    if (set.supported() && index-- == 0) return set.kernels->name;
  return nullptr;
}

}  // namespace dynq
