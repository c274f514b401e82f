// The list of operators. To add one, write a file in this folder with a function that returns an Operator, and add its
// name here.
#include "core/operator.h"

#define ORT_DYNQ_OPERATORS(X)         \
  X(dynamic_quantize)                 \
  X(dynamic_dequantize)               \
  X(dynamic_fake_quantize)            \
  X(affine_dequantize)                \
  X(two_term_quantize)                \
  X(quantized_matmul)                 \
  X(quantized_matmul_program)         \
  X(dynamic_quantized_matmul)         \
  X(dynamic_quantized_matmul_program) \
  X(gather_dequantize)                \
  X(word_matmul)                      \
  X(word_matmul_program)              \
  X(word_conv)                        \
  X(word_conv_program)                \
  X(quantized_conv)                   \
  X(quantized_conv_program)           \
  X(quantized_attention)              \
  X(compressed_attention)             \
  X(compressed_matmul)                \
  X(quantized_experts)                \
  X(quantized_recurrence)             \
  X(word_recurrence)                  \
  X(row_program)                      \
  X(channel_gate)                     \
  X(interleave)                       \
  X(reduce_abs_max)                   \
  X(reduce_min_max)                   \
  X(dynamic_quantize_linear)          \
  X(dynamic_quantize_dequantize_linear)

namespace dynq {

#define ORT_DYNQ_DECLARE(function) Operator function();
ORT_DYNQ_OPERATORS(ORT_DYNQ_DECLARE)

const std::vector<Operator>& operators() {
#define ORT_DYNQ_CALL(function) function(),
  static const std::vector<Operator> all = {ORT_DYNQ_OPERATORS(ORT_DYNQ_CALL)};
  return all;
}

}  // namespace dynq
