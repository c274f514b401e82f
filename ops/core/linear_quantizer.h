// DynamicQuantizeLinear's arithmetic: a program with the whole tensor as its one row.
#pragma once

#include "core/program.h"

namespace dynq {

class LinearQuantizer {
 public:
  // `to_codes`: run() writes codes; otherwise it writes what DequantizeLinear makes of them.
  LinearQuantizer(const char* op, bool to_codes);

  // `dst`: codes, or elements of src's type. `scale` and `zero_point` are for codes, and null otherwise.
  void run(Context& context, const Tensor& src, void* dst, float* scale, uint8_t* zero_point) const;

 private:
  const bool to_codes_;
  const Program program_, with_nan_;
};

}  // namespace dynq
