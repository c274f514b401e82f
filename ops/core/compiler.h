// Compiler portability macros. No other file uses extensions of a compiler, except for files of instruction sets that
// the build leaves out with MSVC. GCC, Clang and MSVC share `__restrict`; MSVC ignores `#pragma GCC unroll`.
#pragma once

#if defined(_WIN32)
#define ORT_DYNQ_EXPORT extern "C" __declspec(dllexport)
#else
#define ORT_DYNQ_EXPORT extern "C" __attribute__((visibility("default")))
#endif

#if defined(__clang__)
#define ORT_DYNQ_ONE_COPY __attribute__((noinline))
#elif defined(__GNUC__)
#define ORT_DYNQ_ONE_COPY __attribute__((noinline, noclone))  // GCC would clone it for each number of rows
#else
#define ORT_DYNQ_ONE_COPY __declspec(noinline)
#endif

#if defined(__GNUC__) || defined(__clang__)
#define ORT_DYNQ_INLINE __attribute__((always_inline))
#define ORT_DYNQ_INLINE_LAMBDA __attribute__((always_inline))
#define ORT_DYNQ_UNREACHABLE() __builtin_unreachable()
#define ORT_DYNQ_UNLIKELY(condition) __builtin_expect(condition, false)
#else
#define ORT_DYNQ_INLINE __forceinline
#define ORT_DYNQ_INLINE_LAMBDA
#define ORT_DYNQ_UNREACHABLE() __assume(0)
#define ORT_DYNQ_UNLIKELY(condition) (condition)
#endif

// ORT_DYNQ_OPAQUE hides how a vector register's value was computed, so that the compiler cannot reassociate it.
//
// ORT_DYNQ_ACCUMULATE is one instruction that adds a product of `a` and `b` to `sums`. With the intrinsic, GCC 12 moves
// sums between registers and the stack, which takes half of the time.
//
// ORT_DYNQ_ADD_PRODUCT is two instructions: a product of `a` and `b`, and its addition to `sums`. With intrinsics, GCC
// 12 adds products to each other first, or moves sums between registers and the stack, as far as it finds reasons to.
//
// ORT_DYNQ_ADD adds `a` to `sums` likewise, by an instruction of three operands.
//
// ORT_DYNQ_CPUID stores eax, ebx, ecx and edx to four numbers of 32 bits; ORT_DYNQ_XGETBV stores the low half of XCR0.
#if defined(__GNUC__) || defined(__clang__)
#define ORT_DYNQ_PREFETCH(address) __builtin_prefetch(address)
#define ORT_DYNQ_OPAQUE(value) asm("" : "+x"(value))
#define ORT_DYNQ_ACCUMULATE(instruction, registers, intrinsic, sums, a, b) \
  asm(instruction " %2, %1, %0" : "+" registers(sums) : registers(a), registers(b))
#define ORT_DYNQ_ADD_PRODUCT(multiply, add, intrinsic, sums, a, b)                                   \
  do {                                                                                               \
    decltype(sums) product;                                                                          \
    asm(multiply " %3, %2, %1\n\t" add " %1, %0, %0" : "+x"(sums), "=&x"(product) : "x"(a), "x"(b)); \
  } while (false)
#define ORT_DYNQ_ADD(instruction, registers, intrinsic, sums, a) \
  asm(instruction " %1, %0, %0" : "+" registers(sums) : registers(a))
#define ORT_DYNQ_CPUID(leaf, subleaf, to) \
  asm volatile("cpuid" : "=a"((to)[0]), "=b"((to)[1]), "=c"((to)[2]), "=d"((to)[3]) : "a"(leaf), "c"(subleaf))
#define ORT_DYNQ_XGETBV(low) asm volatile("xgetbv" : "=a"(low) : "c"(0) : "edx")
#else
#include <intrin.h>
#pragma fp_contract(off)  // as -ffp-contract=off; before Visual Studio 2022, /fp:precise contracts
#define ORT_DYNQ_PREFETCH(address) static_cast<void>(address)
#define ORT_DYNQ_OPAQUE(value) static_cast<void>(value)
#define ORT_DYNQ_ACCUMULATE(instruction, registers, intrinsic, sums, a, b) sums = intrinsic(sums, a, b)
#define ORT_DYNQ_ADD_PRODUCT(multiply, add, intrinsic, sums, a, b) sums = intrinsic
#define ORT_DYNQ_ADD(instruction, registers, intrinsic, sums, a) sums = intrinsic(sums, a)
#define ORT_DYNQ_CPUID(leaf, subleaf, to) __cpuidex(reinterpret_cast<int*>(to), leaf, subleaf)
#define ORT_DYNQ_XGETBV(low) low = static_cast<unsigned>(_xgetbv(0))
#endif
