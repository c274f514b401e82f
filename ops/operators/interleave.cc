// Interleave: puts channels that are phases of an image side by side, as a transposed convolution has them.
//
// src is [N, C * s1 * ... * sr, d1, ..., dr], the result [N, C, d1 * s1, ..., dr * sr]. All images get three axes here.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

#include "core/attributes.h"
#include "core/formats.h"
#include "core/parallel.h"

namespace dynq {
namespace {

constexpr const char* kName = "Interleave";
constexpr size_t kAxes = 3;

// Element number i of row number r, `stride` rows at a distance of `size`, becomes number i * stride + r. A constant
// stride: compilers make vectors of it.
template <int64_t kStride, class T>
void interleave_rows(const T* rows, int64_t size, int64_t count, int64_t stride, T* to) {
  if (kStride > 0) stride = kStride;
  for (int64_t i = 0; i < count; ++i)
    for (int64_t r = 0; r < stride; ++r) store(to + i * stride + r, load(rows + r * size + i));
}

class Interleave : public Node {
 public:
  explicit Interleave(const Attributes& attributes) {
    for (size_t i = 0; i < kAxes; ++i) {
      const std::string name = "stride_" + std::to_string(i + 1);
      strides_[i] = attributes.integer(name.c_str(), 1);
      if (strides_[i] < 1 || strides_[i] > kMaxStride)
        fail(name + " is " + std::to_string(strides_[i]) + ", expected 1 to " + std::to_string(kMaxStride));
    }
  }

  void compute(Context& context) const override {
    const Tensor src = context.input(0);
    int64_t phases = 1;
    for (const int64_t stride : strides_) phases *= stride;
    const size_t rank = src.shape.rank < 3 ? 0 : src.shape.rank - 2;
    bool fits = rank >= 1 && rank <= kAxes && src.shape.dims[1] % phases == 0;
    for (size_t i = rank; i < kAxes; ++i) fits = fits && strides_[i] == 1;
    if (!fits)
      fail("src has shape " + src.shape.text() + ", expected an axis for each stride, 1 to 3 of them, and channels " +
           "that are a multiple of " + std::to_string(phases));
    Shape shape = src.shape;
    shape.dims[1] /= phases;
    Image image = {{1, 1, 1}, {1, 1, 1}};
    for (size_t i = 0; i < rank; ++i) {
      if (shape.dims[2 + i] > INT64_MAX / strides_[i])
        fail("src has shape " + src.shape.text() +
             ", expected lengths below 2^63 after they are multiplied by the strides");
      shape.dims[2 + i] *= strides_[i];
      image.lengths[kAxes - rank + i] = src.shape.dims[2 + i];
      image.strides[kAxes - rank + i] = strides_[i];
    }
    void* const dst = context.output(0, shape);
    const int64_t planes = shape.dims[0] * shape.dims[1], elements = shape.elements();
    if (elements == 0) return;
    const int64_t tasks = std::min(planes, part_count(elements, planes));
    run_tasks(context, tasks, [&](int64_t task) {
      const int64_t begin = planes * task / tasks, end = planes * (task + 1) / tasks;
      for (int64_t plane = begin; plane < end; ++plane)
        if (src.type == kFloat)
          image.run(static_cast<const float*>(src.data), plane, static_cast<float*>(dst));
        else
          image.run(static_cast<const uint16_t*>(src.data), plane, static_cast<uint16_t*>(dst));
    });
  }

 private:
  static constexpr int64_t kMaxStride = 1 << 16;

  struct Image {
    int64_t lengths[kAxes], strides[kAxes];

    template <class T>
    void run(const T* src, int64_t plane, T* dst) const {
      const int64_t d0 = lengths[0], d1 = lengths[1], d2 = lengths[2];
      const int64_t s0 = strides[0], s1 = strides[1], s2 = strides[2];
      const int64_t size = d0 * d1 * d2, phases = s0 * s1 * s2;
      const T* from = src + plane * phases * size;
      T* to = dst + plane * phases * size;
      for (int64_t i0 = 0; i0 < d0 * s0; ++i0)
        for (int64_t i1 = 0; i1 < d1 * s1; ++i1, to += d2 * s2) {
          const int64_t phase = (i0 % s0 * s1 + i1 % s1) * s2;
          write(from + phase * size + (i0 / s0 * d1 + i1 / s1) * d2, size, to);
        }
    }

    template <class T>
    void write(const T* rows, int64_t size, T* to) const {
      const int64_t count = lengths[2], stride = strides[2];
      if (stride == 1)
        std::memcpy(static_cast<void*>(to), rows, static_cast<size_t>(count) * sizeof(T));
      else if (stride == 2)
        interleave_rows<2>(rows, size, count, stride, to);
      else
        interleave_rows<0>(rows, size, count, stride, to);
    }
  };

  [[noreturn]] static void fail(const std::string& message) { throw Error(std::string(kName) + ": " + message); }

  int64_t strides_[kAxes];
};

}  // namespace

Operator interleave() {
  Operator op = {kName, 1, {{{kFloat}, {kFloat}}, {{kFloat16}, {kFloat16}}}, make_node<Interleave>, type_of_input<0>};
  op.columns_input = Operator::kNoInput;
  return op;
}

}  // namespace dynq
