// Memory for values that are set later.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace dynq {

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

}  // namespace dynq
