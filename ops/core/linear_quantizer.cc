#include "core/linear_quantizer.h"

#include "core/formats.h"
#include "core/row_extremes.h"
#include "core/scratch.h"

namespace dynq {
namespace {

constexpr size_t kEnds = 2;  // operands: the smallest and the largest element

// ONNX Runtime's zero point is 255 if the quotient is NaN. `number` is 0 if an element is NaN.
std::string program_of(const std::string& low, const std::string& high, bool to_codes) {
  return "low = Clip(" + low + ", -inf, 0.0); high = Clip(" + high +
         ", 0.0, inf); range = Sub(high, low); s = Where(Equal(range, 0.0), 1.0, Div(range, 255.0)); "
         "above = Clip(Sub(0.0, Div(low, s)), 0.0, 255.0); "
         "z = Uint8(Where(Equal(above, above), above, 255.0)); code = Add(Round(Div(x, s)), z); "
         "number = ReduceMin(Equal(x, x)); " +
         (to_codes ? "codes = code; scale = s; zero_point = z" : "dst = Mul(Sub(Uint8(code), z), s)");
}

}  // namespace

LinearQuantizer::LinearQuantizer(const char* op, bool to_codes)
    : to_codes_(to_codes),
      program_(op, program_of("ReduceMin(x)", "ReduceMax(x)", to_codes), kEnds, kUint8),
      with_nan_(op, program_of("row1", "row2", to_codes), kEnds, kUint8) {}

void LinearQuantizer::run(Context& context, const Tensor& src, void* dst, float* scale, uint8_t* zero_point) const {
  ProgramTensors tensors = {};
  tensors.rows = 1;
  tensors.cols = src.shape.elements();
  tensors.src = src.data;
  tensors.src_type = tensors.dst_type = src.type;
  tensors.src_stride = tensors.dst_stride = tensors.operand_stride = tensors.cols;
  float is_number = 1;
  const auto set = [&](ProgramOutput output, void* data) { tensors.outputs[static_cast<size_t>(output)] = data; };
  set(ProgramOutput::kNumber, &is_number);
  set(to_codes_ ? ProgramOutput::kCodes : ProgramOutput::kDst, dst);
  set(ProgramOutput::kScale, scale);
  set(ProgramOutput::kZeroPoint, zero_point);
  program_.run_all(tensors, context);
  if (is_number != 0) return;
  Scratch<float, 1024> memory;
  float ends[kEnds];
  extremes_of_tensor(FloatReader(src).read(0, tensors.cols, memory), tensors.cols, ends[0], ends[1]);
  for (size_t i = 0; i < kEnds; ++i) {
    tensors.operands[i] = ends + i;
    tensors.operand_rows[i] = 1;
  }
  with_nan_.run_all(tensors, context);
}

}  // namespace dynq
