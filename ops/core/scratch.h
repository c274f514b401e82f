// Memory for values that are set later.
#pragma once

#include <atomic>
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

// Bytes that begin at a multiple of a line of the cache, as tensors do: products of such codes take 4 % less. The
// memory of large ones is kept for the next run: pages that are mapped anew in each run took longer than the product.
// Several threads may take and give at the same time.
class KeptBytes {
 public:
  struct Block {
    explicit Block(int64_t count) : size(count), bytes(memory<uint8_t>(count + kLine)) {}
    uint8_t* begin() const { return bytes.get() + -reinterpret_cast<uintptr_t>(bytes.get()) % kLine; }

    int64_t size;
    std::unique_ptr<uint8_t[]> bytes;
  };

  KeptBytes() = default;
  KeptBytes(const KeptBytes&) = delete;
  KeptBytes& operator=(const KeptBytes&) = delete;
  ~KeptBytes() { delete kept_.load(); }

  std::unique_ptr<Block> take(int64_t count) {
    std::unique_ptr<Block> block(count < kLarge ? nullptr : kept_.exchange(nullptr));
    return block != nullptr && block->size >= count ? std::move(block) : std::make_unique<Block>(count);
  }
  void give(std::unique_ptr<Block> block) {
    if (block->size >= kLarge) delete kept_.exchange(block.release());
  }

 private:
  static constexpr int64_t kLine = 64, kLarge = 4 << 20;
  std::atomic<Block*> kept_{nullptr};
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
