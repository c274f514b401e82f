// Memory for values that are set later.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace dynq {

// kSmall or fewer values need no allocation.
template <class T, int64_t kSmall>
class Scratch {
 public:
  T* allocate(int64_t count) {
    if (count <= kSmall) return small_;
    large_.reset(new T[static_cast<size_t>(count)]);
    return large_.get();
  }

 private:
  T small_[kSmall];
  std::unique_ptr<T[]> large_;
};

}  // namespace dynq
