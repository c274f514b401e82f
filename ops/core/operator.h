// The interface of an operator. It depends neither on ONNX Runtime nor on Python: plugin.cc and c_api.cc adapt to it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "ort_abi.h"

namespace dynq {

// An element type, by ONNX's numbers (TensorProto.DataType).
using Type = ONNXTensorElementDataType;
constexpr Type kNone = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
constexpr Type kFloat = ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
constexpr Type kUint8 = ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8;
constexpr Type kInt8 = ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8;
constexpr Type kInt16 = ONNX_TENSOR_ELEMENT_DATA_TYPE_INT16;
constexpr Type kInt32 = ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32;
constexpr Type kInt64 = ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64;
constexpr Type kFloat16 = ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16;
constexpr Type kBfloat16 = ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16;
constexpr Type kUint4 = ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT4;
constexpr Type kInt4 = ONNX_TENSOR_ELEMENT_DATA_TYPE_INT4;

const char* name_of(Type type);

// The bits of an element.
constexpr int64_t bits_of(Type type) {
  switch (type) {
    case kUint4:
    case kInt4:
      return 4;
    case kUint8:
    case kInt8:
      return 8;
    case kInt16:
    case kFloat16:
    case kBfloat16:
      return 16;
    case kInt64:
      return 64;
    default:
      return 32;
  }
}

// An invalid attribute or input. The message names the operator, the given value and the expected ones.
struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

constexpr size_t kMaxRank = 16;

struct Shape {
  size_t rank = 0;
  int64_t dims[kMaxRank];  // the first `rank` are set

  int64_t elements() const {
    int64_t count = 1;
    for (size_t i = 0; i < rank; ++i) count *= dims[i];
    return count;
  }
  std::string text() const;  // "2x3", "scalar"
  bool operator==(const Shape& other) const;
};

struct Tensor {
  Type type = kNone;  // kNone: an optional input that is absent
  Shape shape;
  const void* data = nullptr;

  explicit operator bool() const { return type != kNone; }
};

// The attributes of a node. If it does not have the attribute, functions return `absent`, or an empty list.
class Attributes {
 public:
  virtual ~Attributes() = default;
  virtual int64_t integer(const char* name, int64_t absent) const = 0;
  virtual std::string text(const char* name, const char* absent) const = 0;
  virtual std::vector<int64_t> integers(const char* name) const = 0;
};

// One run of one node: its inputs, its outputs and the threads to use.
class Context {
 public:
  virtual ~Context() = default;
  virtual Tensor input(size_t index) = 0;
  // Whether an input is known to have the same elements in every run of its node.
  virtual bool is_constant(size_t) const { return false; }
  virtual void* output(size_t index, const Shape& shape) = 0;
  // Calls task(data, i) for every i < count, on the caller's threads. Operators use run_tasks() of parallel.h.
  virtual void parallel_for(size_t count, void (*task)(void*, size_t), void* data) = 0;
  // Whether parallel_for() is for a single task, too (see run_last_tasks() of parallel.h).
  virtual bool takes_single_tasks() const { return false; }
};

// A node of a graph, created from its checked attributes. Several threads may call compute() at the same time.
class Node {
 public:
  virtual ~Node() = default;
  virtual void compute(Context& context) const = 0;
};

// One combination of types. An optional input may be absent in each of them.
struct Signature {
  std::vector<Type> inputs;
  std::vector<Type> outputs;
};

struct Operator {
  const char* name;
  size_t required_inputs;
  // If several signatures have the same input types, ONNX Runtime infers the output types of the first one, unless
  // output_type gives another.
  std::vector<Signature> signatures;
  std::unique_ptr<Node> (*create)(const Attributes& attributes);
  // The type of output 0.
  Type (*output_type)(const Attributes& attributes, const std::vector<Type>& inputs);
  // Output 0 has the shape of input 0, but the last dimension of this input; kNoInput: a shape that is not inferred.
  size_t columns_input = 0;
  static constexpr size_t kNoInput = SIZE_MAX;
  // The input of packed weights: its dimensions before the last four broadcast with those of input 0 before the last
  // two; 0: none.
  size_t stack_input = 0;
  // Whether the shape is inferred as above for a node; null: it is.
  bool (*has_shape)(const Attributes& attributes) = nullptr;
};

// `create` of an operator with a T as its node.
template <class T>
std::unique_ptr<Node> make_node(const Attributes& attributes) {
  return std::make_unique<T>(attributes);
}

// `output_type` of an operator: output 0 has the type of an input.
template <size_t kInput>
Type type_of_input(const Attributes&, const std::vector<Type>& inputs) {
  return inputs[kInput];
}

// `output_type` of an operator: output 0 is float32.
inline Type always_float(const Attributes&, const std::vector<Type>&) { return kFloat; }

// All operators of the library (operators/registry.cc).
const std::vector<Operator>& operators();

}  // namespace dynq
