// For the checks of kernels: arrays next to protected pages, special floats, and comparisons of bits.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

[[noreturn]] inline void fail(const std::string& what) {
  std::fprintf(stderr, "%s: %s\n", program_invocation_short_name, what.c_str());
  std::abort();
}

// Memory between two protected pages.
class Arena {
 public:
  Arena() : page_(static_cast<size_t>(sysconf(_SC_PAGESIZE))) {
    void* all = mmap(nullptr, kSize + 2 * page_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED) fail("mmap failed");
    begin_ = static_cast<uint8_t*>(all) + page_;
    if (mprotect(all, page_, PROT_NONE) != 0 || mprotect(begin_ + kSize, page_, PROT_NONE) != 0)
      fail("mprotect failed");
  }

  // A copy of `values`, `offset` bytes before the end or after the start.
  template <class T>
  T* place(const std::vector<T>& values, bool at_end, size_t offset) {
    const size_t size = values.size() * sizeof(T);
    if (size + offset > kSize) fail("an array is too large");
    uint8_t* to = at_end ? begin_ + kSize - size - offset : begin_ + offset;
    if (size > 0) std::memcpy(to, values.data(), size);
    return reinterpret_cast<T*>(to);
  }

 private:
  static constexpr size_t kSize = 4 << 20;
  size_t page_;
  uint8_t* begin_;
};

constexpr float kInfinity = INFINITY;
constexpr float kSpecials[] = {NAN, kInfinity, -kInfinity, 0.0f, -0.0f, 1e-45f, -1e-40f, 3.4028235e38f, -1e30f, 1e-30f};
constexpr float kScales[] = {1.0f, 0.1f, 0.0078125f, 0.0037f, 1.9999999f, -1.7777778f, 1.1529215e18f, 8.6736174e-19f};

inline uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return std::isnan(value) ? 0x7fc00000 : bits;  // which NaN depends on the order of operands that the compiler chose
}
