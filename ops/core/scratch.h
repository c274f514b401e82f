// Memory for values that are set later.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace dynq {

// Memory that is not initialized; std::make_unique sets all values to 0.
template <class T>
std::unique_ptr<T[]> memory(int64_t count) {
  return std::unique_ptr<T[]>(new T[static_cast<size_t>(count)]);
}

// kSmall or fewer values need no allocation. The memory serves until the next call of allocate().
template <class T, int64_t kSmall>
class Scratch {
 public:
  T* allocate(int64_t count) {
    if (count <= kSmall) return small_;
    if (count > size_) {
      large_.reset(new T[static_cast<size_t>(count)]);
      size_ = count;
    }
    return large_.get();
  }

 private:
  T small_[kSmall];
  std::unique_ptr<T[]> large_;
  int64_t size_ = 0;  // of large_
};

// An array at an address that is a multiple of a cache line, so that no vector is in two lines. Null if it is empty.
template <class T>
class AlignedArray {
 public:
  explicit AlignedArray(int64_t count) {
    if (count == 0) return;
    memory_.reset(new uint8_t[static_cast<size_t>(count) * sizeof(T) + kLine]);
    first_ = reinterpret_cast<T*>(memory_.get() + (kLine - reinterpret_cast<uintptr_t>(memory_.get()) % kLine));
  }
  T* get() const { return first_; }
  T& operator[](int64_t index) const { return first_[index]; }

 private:
  static constexpr size_t kLine = 64;
  std::unique_ptr<uint8_t[]> memory_;
  T* first_ = nullptr;
};

}  // namespace dynq
