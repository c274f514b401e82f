// Chooses the kernels: those that ORT_DYNQ_ISA or select_isa() names, otherwise the first of the list that this CPU
// supports.
#ifdef ORT_DYNQ_X86
#include <cpuid.h>
#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

#include "kernels/kernels.h"

namespace dynq {

#ifdef ORT_DYNQ_X86
extern const KernelTable kAvx2Kernels, kAvx512Kernels;
extern const ProductKernels kAvx2Products, kAvxVnniProducts, kAvx512VnniProducts, kAmxProducts;
#endif

namespace {

#ifdef ORT_DYNQ_X86
// GCC 10 and Clang 14 do not know this name for __builtin_cpu_supports.
bool has_f16c() noexcept {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & 1u << 29) != 0;
}

bool has_avx2() noexcept { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c(); }

bool has_avx512() noexcept {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

bool has_avx512vnni() noexcept { return has_avx512() && __builtin_cpu_supports("avx512vnni"); }

// Clang 14 does not know this name for __builtin_cpu_supports.
[[maybe_unused]] bool has_avxvnni() noexcept {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return has_avx2() && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 && (eax & 1u << 4) != 0;
}

// Whether the CPU has AMX-int8 and the operating system lets this process use it. Linux wants to be asked, once for all
// threads; it refuses if an alternative signal stack is too small for the tiles.
[[maybe_unused]] bool has_amx() noexcept {
#if defined(ORT_DYNQ_TILE_STAND_IN)  // tests: functions in place of the instructions
  return has_avx512vnni();
#elif defined(__linux__)
  static const bool result = [] {
    constexpr unsigned kXgetbvBit = 1u << 27, kTileBits = 3u << 24, kStateBits = 3u << 17;
    constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    if (!has_avx512vnni()) return false;
    if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0 || (ecx & kXgetbvBit) == 0) return false;
    if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0 || (edx & kTileBits) != kTileBits) return false;
    asm volatile("xgetbv" : "=a"(eax), "=d"(edx) : "c"(0));
    return (eax & kStateBits) == kStateBits && syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  }();
  return result;
#else
  return false;
#endif
}
#endif

// Best first. To add an instruction set, write a file whose second line gives its compiler options (as avx2.cc; the
// build reads them), declare its tables above, and add a line here: the name, the elementwise kernels, the products,
// and whether the CPU has what they need. The build defines ORT_DYNQ_WITHOUT_<FILE> if the compiler lacks the options.
const InstructionSet kInstructionSets[] = {
#ifdef ORT_DYNQ_X86
#ifndef ORT_DYNQ_WITHOUT_AMX
    {"amx", &kAvx512Kernels, &kAmxProducts, has_amx},
#endif
    {"avx512vnni", &kAvx512Kernels, &kAvx512VnniProducts, has_avx512vnni},
    {"avx512", &kAvx512Kernels, &kAvx2Products, has_avx512},
#ifndef ORT_DYNQ_WITHOUT_AVXVNNI
    {"avxvnni", &kAvx2Kernels, &kAvxVnniProducts, has_avxvnni},
#endif
    {"avx2", &kAvx2Kernels, &kAvx2Products, has_avx2},
#endif
    {"portable", &portable_kernels(), &kPortableProducts, [] { return true; }},
};

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

const KernelTable& active_kernels() { return *active_isa().kernels; }

void select_isa(const char* name) {
  active.store(name == nullptr ? nullptr : &find("the instruction set", name), std::memory_order_release);
}

const char* supported_isa(size_t index) {
  for (const InstructionSet& set : kInstructionSets)
    if (set.is_supported() && index-- == 0) return set.name;
  return nullptr;
}

}  // namespace dynq
