// Calls an operator through the C interface, without ONNX Runtime. Needs only ops/c_api.h and the library.
//
//   library=$(python -c 'import ort_dynq; print(ort_dynq.get_library_path())')
//   g++ -std=c++17 -I ops plain_c.cc "$library" -Wl,-rpath,"$(dirname "$library")" -o plain_c
//
// At run time, the program finds the library by its rpath or by LD_LIBRARY_PATH.

#include <cstdint>
#include <cstdio>
#include <vector>

#include "c_api.h"

namespace {

// Allocates the memory of an output. The library calls this for each output when its shape is known.
void* allocate(void* user, int32_t index, int32_t /*type*/, const int64_t* dims, int32_t rank) {
  if (index != 0) return nullptr;
  int64_t elements = 1;
  for (int32_t i = 0; i < rank; ++i) elements *= dims[i];
  auto* codes = static_cast<std::vector<uint8_t>*>(user);
  codes->resize(static_cast<size_t>(elements));
  return codes->data();
}

}  // namespace

int main() {
  // src is float32 [2, 4]. Each column has its own scale and zero point.
  const std::vector<float> src = {-1.0f, 0.0f, 0.5f, 300.0f, 1.0f, 2.5f, -0.5f, -300.0f};
  const std::vector<float> scales = {0.5f, 1.0f, 0.25f, 1.0f};
  const std::vector<uint8_t> zps = {128, 0, 3, 10};
  const int64_t src_dims[] = {2, 4}, channels[] = {4};
  const ort_dynq_tensor inputs[] = {
      {1, 2, src_dims, src.data()}, {1, 1, channels, scales.data()}, {2, 1, channels, zps.data()}};
  const ort_dynq_attribute attributes[] = {{"qtype", "per_channel", 0}, {"axis", nullptr, 1}};

  char error[256] = "";
  std::vector<uint8_t> codes;
  if (ort_dynq_run("DynamicQuantize", attributes, 2, inputs, 3, allocate, &codes, error, sizeof error) != 0) {
    std::fprintf(stderr, "%s\n", error);
    return 1;
  }
  for (const uint8_t code : codes) std::printf("%d ", code);
  std::printf("\n%s\n", ort_dynq_isa(error, sizeof error));
}
