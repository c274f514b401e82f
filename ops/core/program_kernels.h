// The kernels that run a whole pass of a program in place of its steps: the ranges of rows, and quantization to codes
// or to floats. They return the bits of the steps if all elements are finite and no step clips a code.
#pragma once

#include <optional>
#include <vector>

#include "core/program_steps.h"
#include "kernels/elementwise.h"

namespace dynq {

// The pass only reduces x to its range, [Abs] ReduceMax, or ReduceMin and ReduceMax; and perhaps ReduceMin(Equal(x,
// x)).
struct RangePass {
  Extremes extremes;
  int low, high;  // slots of the results; low is -1 for kAbsMax
  int is_number;  // the slot of ReduceMin(Equal(x, x)), which is 1 if all elements are finite; or -1
};

// `is_float16`: elements are float16, so that steps which round them to float16 change none.
std::optional<RangePass> range_of(const std::vector<PlacedStep>& steps, bool is_float16);

// Where numbers of rows are: operands of steps that are slots or literals.
struct RowNumbers {
  const float* slots;
  int64_t most_rows;  // of a slot
  const float* literals;
};

// The most rows that are quantized at once.
constexpr int64_t kMaxPassRows = 64;

// What kernels need to know of each row.
struct QuantizedRows {
  alignas(64) float scales[kMaxPassRows];       // t = x / scale or x * scale
  alignas(64) float factors[kMaxPassRows];      // of floats: y = code * factor or code / factor
  alignas(64) float zero_points[kMaxPassRows];  // that are added before rounding
  alignas(64) int32_t offsets[kMaxPassRows];    // of codes, added after rounding
  float largest;                                // magnitude of t, if it is rounded to float16
};

// The numbers of an earlier pass between which all elements of each row are; both are finite.
struct RowRanges {
  const float *low, *high;  // low is null: -high
};

// The pass only quantizes x. Its steps compute, with t = x / scale or x * scale, perhaps rounded to float16:
//
//   codes  clip(round(t) + zero_point) + offset
//   floats (clip(round(t + zero_point)) - zero_point) * factor, or with the zero point added after rounding
//
// They may clip and round more than once. A zero point and the numbers of the last operation are numbers of rows.
class QuantizePass {
 public:
  // Null if the steps are others.
  static std::optional<QuantizePass> of(const std::vector<PlacedStep>& steps, const std::vector<float>& literals,
                                        Type code_type);

  ProgramOutput output() const { return output_; }
  bool stores_codes() const { return output_ == ProgramOutput::kCodes; }

  // Whether the kernels are exact for rows of finite elements.
  bool find(const RowNumbers& numbers, const RowRanges& ranges, int64_t rows, QuantizedRows& found) const;

  // The kernels of an instruction set; null if it has none. `is_float16`: src, and dst if it has floats, are float16,
  // not float.
  QuantizeKernel quantizer(const ElementwiseKernels& table, CodeKind kind, bool is_float16) const;
  QuantizeKernel quantizer_to_4_bits(const ElementwiseKernels& table, CodeKind kind, bool is_float16) const;
  BoundedKernel fake_quantizer(const ElementwiseKernels& table, bool is_float16) const;

  // Whether kernels of float16 are exact for these rows.
  bool takes_float16(const QuantizedRows& rows, int64_t count) const;

  bool keeps_negative_zero() const { return keeps_negative_zero_; }

 private:
  class Matcher;

  ProgramOutput output_ = ProgramOutput::kCodes;
  PlacedOperand scale_, zero_point_, factor_;  // Place::kNone: 0 and 1
  bool multiplies_ = false;                    // t = x * scale, not x / scale
  bool rounds_quotient_ = false;               // to float16
  bool adds_first_ = false;                    // the zero point, before rounding
  bool divides_code_ = false;                  // by the factor
  bool keeps_negative_zero_ = true;
  float low_ = -kLargestSafeClip, high_ = kLargestSafeClip;  // the bounds of codes, without the offset
  int32_t offset_ = 0;
  float least_ = 0, most_ = 0;  // codes that can be stored
  bool saturates_ = false;      // steps clip no code more than that
};

}  // namespace dynq
