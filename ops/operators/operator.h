// What an operator is, seen from neither ONNX Runtime nor Python: plugin.cc and c_api.cc adapt both to this.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "ort_abi.h"

namespace dynq {

using Type = ONNXTensorElementDataType;
constexpr Type kNone = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
constexpr Type kFloat = ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
constexpr Type kUint8 = ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8;
constexpr Type kInt8 = ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8;
constexpr Type kInt32 = ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32;

const char* name_of(Type type);
size_t size_of(Type type);

// A mistake of the caller's. The message names the operator, what it got and what it expected.
struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

constexpr size_t kMaxRank = 16;

struct Shape {
  size_t rank = 0;
  int64_t dims[kMaxRank];  // the first `rank` of them

  int64_t elements() const;
  std::string text() const;  // "2x3", "scalar"
  bool operator==(const Shape& other) const;
};

struct Tensor {
  Type type = kNone;  // kNone: an optional input that is absent
  Shape shape;
  const void* data = nullptr;

  explicit operator bool() const { return type != kNone; }
};

class Attributes {
 public:
  virtual ~Attributes() = default;
  virtual int64_t integer(const char* name, int64_t absent) const = 0;
  virtual std::string text(const char* name, const char* absent) const = 0;
};

// One run of one node.
class Context {
 public:
  virtual ~Context() = default;
  virtual Tensor input(size_t index) = 0;
  virtual void* output(size_t index, const Shape& shape) = 0;
  // Calls task(data, i) for every i < count, on as many threads as the caller lends.
  virtual void parallel_for(size_t count, void (*task)(void*, size_t), void* data) = 0;
};

// A node of a graph: its attributes read and checked. Used by several threads at once.
class Node {
 public:
  virtual ~Node() = default;
  virtual void compute(Context& context) const = 0;
};

// One combination of types. An optional input may be absent in any of them.
struct Signature {
  std::vector<Type> inputs;
  std::vector<Type> outputs;
};

struct Operator {
  const char* name;
  size_t required_inputs;
  // Where types of inputs are equal, the first is the one inferred without an attribute that says otherwise.
  std::vector<Signature> signatures;
  std::unique_ptr<Node> (*create)(const Attributes& attributes);
  // The type of output 0 from the types of the inputs; its shape is that of input 0,
  Type (*output_type)(const Attributes& attributes, const std::vector<Type>& inputs);
  bool is_of_src_shape = true;  // unless this says that it is another
};

// Every operator of the library (operators.cc).
const std::vector<Operator>& operators();

}  // namespace dynq
