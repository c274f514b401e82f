// Chooses the kernels: those that ORT_DYNQ_ISA or select_isa() names, otherwise the first of the list that this CPU
// supports.
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

#include "kernels/kernels.h"

#if defined(ORT_DYNQ_X86) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace dynq {
namespace {

// Whether the CPU has the tiles of AMX-int8 and the operating system grants them to this process. Linux has to be asked
// once, for all threads; it refuses if an alternative signal stack is too small for the tiles.
[[maybe_unused]] bool has_tiles() {
#if defined(ORT_DYNQ_X86) && defined(__linux__)
  static const bool result = [] {
    constexpr unsigned kXgetbvBit = 1u << 27, kTileBits = 3u << 24, kStateBits = 3u << 17;  // state: components 17, 18
    constexpr long kRequestPermission = 0x1023, kTileData = 18;                             // ARCH_REQ_XCOMP_PERM
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (!__get_cpuid(1, &a, &b, &c, &d) || (c & kXgetbvBit) == 0) return false;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & kTileBits) != kTileBits) return false;
    __asm__ volatile("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
    return (a & kStateBits) == kStateBits && syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  }();
  return result;
#else
  return false;
#endif
}

}  // namespace

// Best first; the portable kernels follow. To add an instruction set, write a file whose second line gives its compiler
// options (as avx2.cc; the build reads them), and add a line here: the name, the elementwise kernels, the products, and
// the CPU's features that they need.
#ifdef ORT_DYNQ_X86
#define ORT_DYNQ_INSTRUCTION_SETS(X)                                                                                 \
  X("amx", kAvx512Kernels, kAmxProducts,                                                                             \
    __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") && \
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni") && has_tiles())                   \
  X("avx512", kAvx512Kernels, kPortableProducts,                                                                     \
    __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") && \
        __builtin_cpu_supports("avx512dq"))                                                                          \
  X("avx2", kAvx2Kernels, kPortableProducts, __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
#else
#define ORT_DYNQ_INSTRUCTION_SETS(X)
#endif

#define ORT_DYNQ_DECLARE(name, kernels, products, is_supported) \
  extern const KernelTable kernels;                             \
  extern const ProductKernels products;
ORT_DYNQ_INSTRUCTION_SETS(ORT_DYNQ_DECLARE)

namespace {

#define ORT_DYNQ_ENTRY(name, kernels, products, is_supported) {name, &kernels, &products, [] { return is_supported; }},
const InstructionSet kInstructionSets[] = {ORT_DYNQ_INSTRUCTION_SETS(ORT_DYNQ_ENTRY){
    "portable", &portable_kernels(), &kPortableProducts, [] { return true; }}};

std::atomic<const InstructionSet*> active{nullptr};

const InstructionSet& find(const char* origin, const char* name) {
  std::string names;
  for (const InstructionSet& set : kInstructionSets) {
    if (!set.is_supported()) continue;
    if (name == nullptr || *name == '\0' || std::strcmp(name, set.name) == 0) return set;
    names += (names.empty() ? "" : ", ") + std::string(set.name);
  }
  throw std::runtime_error(std::string(origin) + " is '" + name +
                           "', expected one of those that this CPU supports: " + names);
}

}  // namespace

const InstructionSet& active_isa() {
  const InstructionSet* set = active.load(std::memory_order_acquire);
  if (set == nullptr) {
    set = &find("ORT_DYNQ_ISA", std::getenv("ORT_DYNQ_ISA"));
    active.store(set, std::memory_order_release);
  }
  return *set;
}

void select_isa(const char* name) {
  active.store(name == nullptr ? nullptr : &find("the instruction set", name), std::memory_order_release);
}

const char* supported_isa(size_t index) {
  for (const InstructionSet& set : kInstructionSets)
    if (set.is_supported() && index-- == 0) return set.name;
  return nullptr;
}

}  // namespace dynq
