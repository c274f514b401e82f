// Detects what the CPU and the operating system support, and selects the instruction set.
#if defined(ORT_DYNQ_X86) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(_WIN32)
#define WIN32_LEAN_AND_MEAN
#include <windows.h>
#elif defined(ORT_DYNQ_ARM) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(ORT_DYNQ_ARM) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

#include "core/compiler.h"
#include "kernels/dispatch.h"

namespace dynq {

#ifdef ORT_DYNQ_X86
extern const ElementwiseKernels kAvx2Kernels, kAvx512Kernels;
extern const ProductKernels kAvx2Products, kAvxVnniProducts, kAvx512VnniProducts, kAmxProducts;
extern const CompressedKernels kAvx2Compressed, kAvx512Compressed, kAvxVnniCompressed, kAvx512VnniCompressed,
    kAmxCompressed;
#elif defined(ORT_DYNQ_ARM)
extern const ElementwiseKernels kNeonKernels;
extern const ProductKernels kNeonProducts, kNeonDotProducts, kNeonI8mmProducts;
extern const CompressedKernels kNeonCompressed;
#endif

namespace {

#ifdef ORT_DYNQ_X86
enum Leaf { kLeaf1, kLeaf7, kLeaf7Sub1, kLeaves };
enum Register { kEax, kEbx, kEcx, kEdx, kRegisters };

// One register of CPUID's result; 0 if the CPU does not have the leaf. Virtual machines take microseconds for each
// CPUID, so that each leaf is read once.
uint32_t cpuid(Leaf leaf, Register which) noexcept {
  struct Results {
    uint32_t of[kLeaves][kRegisters] = {};
    Results() noexcept {
      constexpr uint32_t kNumbers[kLeaves][2] = {{1, 0}, {7, 0}, {7, 1}};
      uint32_t highest[kRegisters];
      ORT_DYNQ_CPUID(0u, 0u, highest);
      for (int i = 0; i < kLeaves; ++i)
        if (kNumbers[i][0] <= highest[kEax]) ORT_DYNQ_CPUID(kNumbers[i][0], kNumbers[i][1], of[i]);
    }
  };
  static const Results results;
  return results.of[leaf][which];
}

constexpr bool has_all(uint32_t value, uint32_t bits) { return (value & bits) == bits; }

// Whether the operating system saves these registers, which are bits of XCR0.
constexpr uint32_t kYmm = 0x6, kZmm = 0xe6;
[[maybe_unused]] constexpr uint32_t kTiles = 3u << 17;  // a build without kernels for AMX does not ask
bool saves(uint32_t registers) noexcept {
  constexpr uint32_t kHasXgetbv = 1u << 27;
  if (!has_all(cpuid(kLeaf1, kEcx), kHasXgetbv)) return false;
  uint32_t saved = 0;
  ORT_DYNQ_XGETBV(saved);
#ifdef __APPLE__
  if (has_all(saved, kYmm)) saved |= kZmm;  // macOS enables these when a thread first uses them
#endif
  return has_all(saved, registers);
}

bool has_avx2() noexcept {
  constexpr uint32_t kFma = 1u << 12, kF16c = 1u << 29, kAvx2 = 1u << 5;
  return has_all(cpuid(kLeaf1, kEcx), kFma | kF16c) && has_all(cpuid(kLeaf7, kEbx), kAvx2) && saves(kYmm);
}

[[maybe_unused]] bool has_avx512() noexcept {
  constexpr uint32_t kFoundation = 1u << 16, kDq = 1u << 17, kBw = 1u << 30, kVl = 1u << 31;
  return has_avx2() && has_all(cpuid(kLeaf7, kEbx), kFoundation | kDq | kBw | kVl) && saves(kZmm);
}

[[maybe_unused]] bool has_avx512vnni() noexcept { return has_avx512() && has_all(cpuid(kLeaf7, kEcx), 1u << 11); }

#ifdef ORT_DYNQ_AVXVNNI_STAND_IN  // tests: the same instructions in the encoding of AVX-512
[[maybe_unused]] bool has_avxvnni() noexcept { return has_avx512vnni(); }
#else
[[maybe_unused]] bool has_avxvnni() noexcept { return has_avx2() && has_all(cpuid(kLeaf7Sub1, kEax), 1u << 4); }
#endif

#ifdef ORT_DYNQ_TILE_STAND_IN  // tests: functions in place of the tile instructions
[[maybe_unused]] bool has_amx() noexcept { return has_avx512vnni(); }
[[maybe_unused]] bool enable_tiles() noexcept { return true; }
#else
// Whether the CPU has AMX-int8 and the operating system can save its tiles.
[[maybe_unused]] bool has_amx() noexcept {
  return has_avx512vnni() && has_all(cpuid(kLeaf7, kEdx), 3u << 24) && saves(kTiles);
}

// Asks the operating system to let all threads of this process use the tiles, for good. Linux refuses if an alternative
// signal stack is too small for them.
[[maybe_unused]] bool enable_tiles() noexcept {
#if defined(__linux__)
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#elif defined(_WIN32)
  // Windows has the function since Windows 11 and Server 2022.
  using Enable = BOOL(WINAPI*)(DWORD64);
  const HMODULE kernel = GetModuleHandleA("kernel32.dll");
  const auto enable = kernel == nullptr ? nullptr : GetProcAddress(kernel, "EnableProcessOptionalXStateFeatures");
  constexpr DWORD64 kTileData = 1u << 18;
  return enable != nullptr && reinterpret_cast<Enable>(reinterpret_cast<void*>(enable))(kTileData) != FALSE;
#else
  return false;
#endif
}
#endif
#elif defined(ORT_DYNQ_ARM)
// All 64-bit ARM CPUs have NEON; newer ones have dot products (ARMv8.2) and their mixed form (I8MM, ARMv8.6).
#if defined(__APPLE__)
bool has(const char* feature) noexcept {
  int value = 0;
  size_t size = sizeof value;
  return sysctlbyname(feature, &value, &size, nullptr, 0) == 0 && value != 0;
}
#endif

[[maybe_unused]] bool has_dot() noexcept {
#if defined(__linux__)
  constexpr uint64_t kDotBit = 1u << 20;  // HWCAP_ASIMDDP
  return (getauxval(AT_HWCAP) & kDotBit) != 0;
#elif defined(__APPLE__)
  return has("hw.optional.arm.FEAT_DotProd");
#elif defined(_WIN32) && defined(PF_ARM_V82_DP_INSTRUCTIONS_AVAILABLE)
  return IsProcessorFeaturePresent(PF_ARM_V82_DP_INSTRUCTIONS_AVAILABLE) != 0;
#else
  return false;
#endif
}

[[maybe_unused]] bool has_i8mm() noexcept {
#if defined(__linux__)
  constexpr uint64_t kI8mmBit = 1u << 13;  // HWCAP2_I8MM
  return has_dot() && (getauxval(AT_HWCAP2) & kI8mmBit) != 0;
#elif defined(__APPLE__)
  return has_dot() && has("hw.optional.arm.FEAT_I8MM");
#elif defined(_WIN32) && defined(PF_ARM_V82_I8MM_INSTRUCTIONS_AVAILABLE)
  return has_dot() && IsProcessorFeaturePresent(PF_ARM_V82_I8MM_INSTRUCTIONS_AVAILABLE) != 0;
#else
  return false;
#endif
}
#endif

// Best first. To add an instruction set, write files with its compiler options in their second lines (as avx2.cc; the
// build reads them), declare its tables above, and add a line here: the fields of InstructionSet. The build defines
// ORT_DYNQ_WITHOUT_<FILE> if the compiler lacks the options.
const InstructionSet kInstructionSets[] = {
#ifdef ORT_DYNQ_X86
#ifndef ORT_DYNQ_WITHOUT_AVX512
#ifndef ORT_DYNQ_WITHOUT_AMX
    {"amx", &kAvx512Kernels, &kAmxProducts, &kAmxCompressed, has_amx, enable_tiles},
#endif
#ifndef ORT_DYNQ_WITHOUT_AVX512VNNI
    {"avx512vnni", &kAvx512Kernels, &kAvx512VnniProducts, &kAvx512VnniCompressed, has_avx512vnni, nullptr},
#endif
    {"avx512", &kAvx512Kernels, &kAvx2Products, &kAvx512Compressed, has_avx512, nullptr},
#endif
#ifndef ORT_DYNQ_WITHOUT_AVXVNNI
    {"avxvnni", &kAvx2Kernels, &kAvxVnniProducts, &kAvxVnniCompressed, has_avxvnni, nullptr},
#endif
    {"avx2", &kAvx2Kernels, &kAvx2Products, &kAvx2Compressed, has_avx2, nullptr},
#elif defined(ORT_DYNQ_ARM) && !defined(ORT_DYNQ_WITHOUT_NEON)
#ifndef ORT_DYNQ_WITHOUT_NEONI8MM
    {"neoni8mm", &kNeonKernels, &kNeonI8mmProducts, &kNeonCompressed, has_i8mm, nullptr},
#endif
#ifndef ORT_DYNQ_WITHOUT_NEONDOT
    {"neondot", &kNeonKernels, &kNeonDotProducts, &kNeonCompressed, has_dot, nullptr},
#endif
    {"neon", &kNeonKernels, &kNeonProducts, &kNeonCompressed, [] { return true; }, nullptr},
#endif
    {"portable", &kPortableKernels, &kPortableProducts, &kPortableCompressed, [] { return true; }, nullptr},
};

std::atomic<const InstructionSet*> active{nullptr};

// The instruction set of this name, or the best one if there is no name; enabled.
const InstructionSet& enabled(const char* origin, const char* name) {
  std::string names;
  for (const InstructionSet& set : kInstructionSets) {
    if (!set.is_supported()) continue;
    if (name == nullptr || *name == '\0' || std::strcmp(name, set.name) == 0) {
      if (set.enable == nullptr || set.enable()) return set;
    } else {
      names += (names.empty() ? "" : ", ") + std::string(set.name);
    }
  }
  throw std::runtime_error(std::string(origin) + " is '" + name +
                           "', expected one of those that this CPU supports: " + names);
}

}  // namespace

const InstructionSet& active_isa() {
  const InstructionSet* set = active.load(std::memory_order_acquire);
  if (set == nullptr) {
    set = &enabled("ORT_DYNQ_ISA", std::getenv("ORT_DYNQ_ISA"));
    active.store(set, std::memory_order_release);
  }
  return *set;
}

const ElementwiseKernels& active_kernels() { return *active_isa().kernels; }
const CompressedKernels& active_compressed() { return *active_isa().compressed; }

void select_isa(const char* name) {
  active.store(name == nullptr ? nullptr : &enabled("the instruction set", name), std::memory_order_release);
}

const char* supported_isa(size_t index) {
  for (const InstructionSet& set : kInstructionSets)
    if (set.is_supported() && index-- == 0) return set.name;
  return nullptr;
}

}  // namespace dynq
