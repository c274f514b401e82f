// Random numbers that are the same everywhere.
#pragma once

#include <cstddef>
#include <cstdint>

struct Random {
  uint64_t state;
  uint64_t next() {  // splitmix64
    uint64_t z = state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
  }
  int64_t integer(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(next() % static_cast<uint64_t>(high - low + 1));
  }
  bool one_in(int64_t count) { return integer(1, count) == 1; }
  template <class T, size_t kCount>
  T of(const T (&values)[kCount]) {
    return values[next() % kCount];
  }
};
