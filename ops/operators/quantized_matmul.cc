// QuantizedMatMul: 8-bit codes of rows times packed weights of 8, 4 or 2 bits, to float32 or float16.
//
// kernels/portable_products.cc has the arithmetic. A run has four parts: check_matmul() reads the inputs,
// plan_product() chooses an implementation, Product::prepare() makes what it needs, and Product::run() cuts the output
// into tasks.
//
// QuantizedMatMulProgram is the same, and then a program for each element of the result, while it is in the cache.
// DynamicQuantizedMatMul and DynamicQuantizedMatMulProgram make the codes, as DynamicQuantizeLinear does.
#include <optional>

#include "core/linear_quantizer.h"
#include "core/matmul_shape.h"
#include "core/product.h"
#include "core/product_plan.h"
#include "core/program.h"
#include "core/scratch.h"
#include "kernels/dispatch.h"

namespace dynq {
namespace {

class QuantizedMatMul : public Node {
 public:
  static constexpr const char *kName = "QuantizedMatMul", *kProgramName = "QuantizedMatMulProgram";

  explicit QuantizedMatMul(const Attributes& attributes, const char* name = kName) : attributes_(name, attributes) {}

  void compute(Context& context) const override {
    const MatMulInputs inputs(context);
    multiply(context, inputs, MatMulInputs::kCount, [] {});
  }

 protected:
  // `quantize` sets codes, scale and zero point of the activation, when all inputs are known to be valid.
  template <class Quantize>
  void multiply(Context& context, const MatMulInputs& inputs, size_t operand, const Quantize& quantize) const {
    const MatMulShape shape = check_matmul(attributes_, inputs);
    ProgramTensors operands;
    if (tail_) operands = tail_->tensors(context, operand, shape.result, shape.result.rank - 1);
    void* const dst = context.output(0, shape.result);
    if (shape.result.elements() == 0) return;
    quantize();
    const ProductPlan plan = plan_product(shape.product, *active_isa().products);
    Product product(shape, inputs, attributes_, plan, dst, tail_ ? &*tail_ : nullptr, operands);
    product.prepare(context);
    product.run(context);
  }

  MatMulAttributes attributes_;
  std::optional<Tail> tail_;
};

class DynamicQuantizedMatMul : public QuantizedMatMul {
 public:
  static constexpr const char *kName = "DynamicQuantizedMatMul", *kProgramName = "DynamicQuantizedMatMulProgram";

  explicit DynamicQuantizedMatMul(const Attributes& attributes, const char* name = kName)
      : QuantizedMatMul(attributes, name), quantizer_(name, true) {
    attributes_.terms = 1;
  }

  void compute(Context& context) const override {
    const Tensor src = context.input(0);
    Line small[kSmall];
    std::unique_ptr<KeptBytes::Block> large;
    float scale;
    uint8_t zero_point;
    MatMulInputs inputs(context, &scale, &zero_point);
    multiply(context, inputs, MatMulInputs::kDynamicCount, [&] {
      const int64_t count = src.shape.elements();
      if (count > static_cast<int64_t>(sizeof(small))) large = codes_.take(count);
      uint8_t* const codes = large == nullptr ? small[0].bytes : large->begin();
      quantizer_.run(context, src, codes, &scale, &zero_point);
      inputs.src.data = codes;
    });
    if (large != nullptr) codes_.give(std::move(large));
  }

 private:
  struct alignas(64) Line {
    uint8_t bytes[64];
  };
  static constexpr size_t kSmall = 64;

  const LinearQuantizer quantizer_;
  mutable KeptBytes codes_;
};

template <class Product>
class WithProgram : public Product {
 public:
  explicit WithProgram(const Attributes& attributes) : Product(attributes, Product::kProgramName) {
    this->tail_.emplace(Product::kProgramName, attributes);
  }
};

}  // namespace

Operator quantized_matmul() {
  Operator op = {QuantizedMatMul::kName,
                 MatMulInputs::kCount,
                 {{{kUint8, kFloat, kUint8, kInt8, kInt8, kFloat, kInt32, kFloat}, {kFloat}},
                  {{kInt8, kFloat, kInt8, kInt8, kInt8, kFloat, kInt32, kFloat}, {kFloat}},
                  {{kUint8, kFloat, kUint8, kInt8, kInt8, kFloat16, kInt32, kFloat}, {kFloat}},
                  {{kInt8, kFloat, kInt8, kInt8, kInt8, kFloat16, kInt32, kFloat}, {kFloat}},
                  {{kUint8, kFloat, kUint8, kInt8, kInt8, kFloat, kInt32, kFloat16}, {kFloat16}},
                  {{kInt8, kFloat, kInt8, kInt8, kInt8, kFloat, kInt32, kFloat16}, {kFloat16}},
                  {{kUint8, kFloat, kUint8, kInt8, kInt8, kFloat16, kInt32, kFloat16}, {kFloat16}},
                  {{kInt8, kFloat, kInt8, kInt8, kInt8, kFloat16, kInt32, kFloat16}, {kFloat16}}},
                 make_node<QuantizedMatMul>,
                 type_of_input<7>};
  op.columns_input = 7;  // bias
  op.stack_input = 3;
  return op;
}

Operator quantized_matmul_program() {
  Operator op =
      with_program(quantized_matmul(), QuantizedMatMul::kProgramName, make_node<WithProgram<QuantizedMatMul>>);
  op.signatures.resize(4);  // of float32
  return op;
}

Operator dynamic_quantized_matmul() {
  Operator op = {DynamicQuantizedMatMul::kName,
                 MatMulInputs::kDynamicCount,
                 {{{kFloat, kInt8, kInt8, kFloat, kInt32, kFloat}, {kFloat}},
                  {{kFloat, kInt8, kInt8, kFloat16, kInt32, kFloat}, {kFloat}},
                  {{kFloat16, kInt8, kInt8, kFloat, kInt32, kFloat16}, {kFloat16}},
                  {{kFloat16, kInt8, kInt8, kFloat16, kInt32, kFloat16}, {kFloat16}}},
                 make_node<DynamicQuantizedMatMul>,
                 type_of_input<5>};
  op.columns_input = 5;  // bias
  op.stack_input = 1;
  return op;
}

Operator dynamic_quantized_matmul_program() {
  Operator op = with_program(dynamic_quantized_matmul(), DynamicQuantizedMatMul::kProgramName,
                             make_node<WithProgram<DynamicQuantizedMatMul>>);
  op.signatures.resize(2);  // of float32
  return op;
}

}  // namespace dynq
