// QuantizedMatMul: 8-bit codes of rows times packed weights of 8, 4 or 2 bits, to float32 or float16.
//
// kernels/portable_products.cc has the arithmetic. A run has four parts: check_matmul() reads the inputs,
// plan_product() chooses an implementation, Product::prepare() makes what it needs, and Product::run() cuts the output
// into tasks.
//
// QuantizedMatMulProgram is the same, and then a program for each element of the result, while it is in the cache.
#include <optional>

#include "core/matmul_shape.h"
#include "core/product.h"
#include "core/product_plan.h"
#include "core/program.h"
#include "kernels/dispatch.h"

namespace dynq {
namespace {

class QuantizedMatMul : public Node {
 public:
  explicit QuantizedMatMul(const Attributes& attributes, const char* name = "QuantizedMatMul")
      : attributes_(name, attributes) {}

  void compute(Context& context) const override {
    const MatMulInputs inputs(context);
    const MatMulShape shape = check_matmul(attributes_, inputs);
    ProgramTensors operands;
    if (tail_) operands = tail_->tensors(context, MatMulInputs::kCount, shape.result, shape.result.rank - 1);
    void* const dst = context.output(0, shape.result);
    if (shape.result.elements() == 0) return;
    const ProductPlan plan = plan_product(shape.product, *active_isa().products);
    Product product(shape, inputs, attributes_, plan, dst, tail_ ? &*tail_ : nullptr, operands);
    product.prepare(context);
    product.run(context);
  }

 private:
  MatMulAttributes attributes_;

 protected:
  std::optional<Tail> tail_;
};

class QuantizedMatMulProgram : public QuantizedMatMul {
 public:
  explicit QuantizedMatMulProgram(const Attributes& attributes)
      : QuantizedMatMul(attributes, "QuantizedMatMulProgram") {
    tail_.emplace("QuantizedMatMulProgram", attributes);
  }
};

}  // namespace

Operator quantized_matmul() {
  Operator op = {"QuantizedMatMul",
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
  Operator op = with_program(quantized_matmul(), "QuantizedMatMulProgram", make_node<QuantizedMatMulProgram>);
  op.signatures.resize(4);  // of float32
  return op;
}

}  // namespace dynq
