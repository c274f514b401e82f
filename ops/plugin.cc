// RegisterCustomOps: adapts the operators to ONNX Runtime.
//
// Each signature of an operator is one OrtCustomOp. ONNX Runtime merges the signatures of one name into one schema and
// selects the kernel by the types of inputs and outputs. A process may load several copies of ONNX Runtime: each gets a
// domain of its own: its operators call its own API.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>

#include "core/compiler.h"
#include "core/operator.h"
#include "kernels/dispatch.h"

namespace dynq {
namespace {

constexpr char kDomain[] = "ort_dynq";
// As VERSION in ort_dynq/operators/__init__.py, which never changes.
constexpr int kDomainVersion = 1;

// The API of one copy of ONNX Runtime.
struct Runtime {
  const OrtApi* api;
  uint32_t version;  // up to kNewestApi
};

// Throws the message of a status as an Error, and releases the status.
void check(const OrtApi* api, OrtStatus* status) {
  if (status == nullptr) return;
  const std::string message = ort::GetErrorMessage(api, status);
  ort::ReleaseStatus(api, status);
  throw Error(message);
}

// Whether there is no error. Releases the status.
bool succeeded(const OrtApi* api, OrtStatus* status) {
  if (status == nullptr) return true;
  ort::ReleaseStatus(api, status);
  return false;
}

// Runs the function and returns its exception as a status: no exception may cross the C boundary.
template <class Function>
OrtStatus* guarded(const OrtApi* api, Function&& function) {
  try {
    function();
    return nullptr;
  } catch (const Error& error) {
    return ort::CreateStatus(api, ORT_INVALID_ARGUMENT, error.what());
  } catch (const std::exception& error) {
    return ort::CreateStatus(api, ORT_FAIL, error.what());
  } catch (...) {
    return ort::CreateStatus(api, ORT_FAIL, "ort_dynq: unknown error");
  }
}

class NodeAttributes : public Attributes {
 public:
  NodeAttributes(const OrtApi* api, const OrtKernelInfo* info) : api_(api), info_(info) {}

  int64_t integer(const char* name, int64_t absent) const override {
    int64_t value = absent;
    return read(name, ort::KernelInfoGetAttribute_int64(api_, info_, name, &value)) ? value : absent;
  }

  std::string text(const char* name, const char* absent) const override {
    size_t size = 0;
    if (!read(name, ort::KernelInfoGetAttribute_string(api_, info_, name, static_cast<char*>(nullptr), &size)))
      return absent;
    std::string value(size, '\0');
    check(api_, ort::KernelInfoGetAttribute_string(api_, info_, name, value.data(), &size));
    value.resize(std::strlen(value.c_str()));
    return value;
  }

  std::vector<int64_t> integers(const char* name) const override {
    size_t count = 0;
    if (!succeeded(api_, list(name, nullptr, &count))) return {};
    if (count == 0)
      throw Error(std::string("ort_dynq: the attribute ") + name +
                  " cannot be read: expected one integer or more in a list");
    std::vector<int64_t> values(count);
    check(api_, list(name, values.data(), &count));
    return values;
  }

 private:
  // ONNX Runtime reads any attribute as a list of integers, which is empty if the type is another one. The list cannot
  // be read only if the node has no attribute of this name.
  OrtStatus* list(const char* name, int64_t* values, size_t* count) const {
    return ort::KernelInfoGetAttributeArray_int64(api_, info_, name, values, count);
  }

  // Whether an attribute was read: false if the node does not have it. Throws Error if it has another type, for which
  // ONNX Runtime returns the same error code. Releases the status.
  bool read(const char* name, OrtStatus* status) const {
    if (status == nullptr) return true;
    const std::string message = ort::GetErrorMessage(api_, status);
    ort::ReleaseStatus(api_, status);
    size_t count = 0;
    if (succeeded(api_, list(name, nullptr, &count)))
      throw Error(std::string("ort_dynq: the attribute ") + name + " cannot be read: " + message);
    return false;
  }

  const OrtApi* api_;
  const OrtKernelInfo* info_;
};

class InferenceAttributes : public Attributes {
 public:
  InferenceAttributes(const OrtApi* api, const OrtShapeInferContext* context) : api_(api), context_(context) {}

  int64_t integer(const char* name, int64_t absent) const override {
    const OrtOpAttr* attribute = nullptr;
    int64_t value = absent;
    size_t written = 0;
    if (!succeeded(api_, ort::ShapeInferContext_GetAttribute(api_, context_, name, &attribute))) return absent;
    return succeeded(api_, ort::ReadOpAttr(api_, attribute, ORT_OP_ATTR_INT, static_cast<void*>(&value), sizeof(value),
                                           &written))
               ? value
               : absent;
  }

  // No output type needs these.
  std::string text(const char*, const char* absent) const override { return absent; }
  std::vector<int64_t> integers(const char*) const override { return {}; }

 private:
  const OrtApi* api_;
  const OrtShapeInferContext* context_;
};

class NoAttributes : public Attributes {
 public:
  int64_t integer(const char*, int64_t absent) const override { return absent; }
  std::string text(const char*, const char* absent) const override { return absent; }
  std::vector<int64_t> integers(const char*) const override { return {}; }
};

struct InfoDeleter {
  const OrtApi* api;
  void operator()(OrtTensorTypeAndShapeInfo* info) const { ort::ReleaseTensorTypeAndShapeInfo(api, info); }
};

// The tensor of a value, which is input number `index`.
Tensor tensor_of(const Runtime& runtime, const OrtValue* value, size_t index) {
  const OrtApi* api = runtime.api;
  Tensor tensor;
  const auto set_rank = [&](size_t rank) {
    if (rank > kMaxRank)
      throw Error("ort_dynq: input " + std::to_string(index) + " has rank " + std::to_string(rank) +
                  ", expected at most " + std::to_string(kMaxRank));
    tensor.shape.rank = rank;
  };
  if (runtime.version >= kApiWithShapeReference) {
    const int64_t* dims = nullptr;
    size_t rank = 0;
    check(api, ort::GetTensorElementTypeAndShapeDataReference(api, value, &tensor.type, &dims, &rank));
    set_rank(rank);
    std::copy_n(dims, rank, tensor.shape.dims);
  } else {
    OrtTensorTypeAndShapeInfo* info = nullptr;
    check(api, ort::GetTensorTypeAndShape(api, value, &info));
    const std::unique_ptr<OrtTensorTypeAndShapeInfo, InfoDeleter> owner(info, InfoDeleter{api});
    size_t rank = 0;
    check(api, ort::GetTensorElementType(api, info, &tensor.type));
    check(api, ort::GetDimensionsCount(api, info, &rank));
    set_rank(rank);
    check(api, ort::GetDimensions(api, info, &tensor.shape.dims[0], rank));
  }
  void* data = nullptr;
  check(api, ort::GetTensorMutableData(api, const_cast<OrtValue*>(value), &data));
  tensor.data = data;
  return tensor;
}

// The inputs of a node that are constants of its graph: they stay where they are as long as the session. Others are
// kNone. An input takes three calls of ONNX Runtime: the eight of a small product took a third of its time.
std::vector<Tensor> constants_of(const Runtime& runtime, const OrtKernelInfo* info) {
  size_t count = 0;
  check(runtime.api, ort::KernelInfo_GetInputCount(runtime.api, info, &count));
  std::vector<Tensor> constants(count);
  for (size_t i = 0; i < count; ++i) {
    int is_constant = 0;
    const OrtValue* value = nullptr;
    check(runtime.api, ort::KernelInfoGetConstantInput_tensor(runtime.api, info, i, &is_constant, &value));
    if (is_constant != 0 && value != nullptr) constants[i] = tensor_of(runtime, value, i);
  }
  return constants;
}

class RunContext : public Context {
 public:
  // `constants`: constants_of() the node.
  RunContext(const Runtime& runtime, const std::vector<Tensor>& constants, OrtKernelContext* context)
      : runtime_(runtime), api_(runtime.api), constants_(constants), context_(context) {}

  Tensor input(size_t index) override {
    if (index >= constants_.size()) return {};
    if (constants_[index]) return constants_[index];
    const OrtValue* value = nullptr;
    check(api_, ort::KernelContext_GetInput(api_, context_, index, &value));
    return value == nullptr ? Tensor() : tensor_of(runtime_, value, index);
  }

  bool is_constant(size_t index) const override { return index < constants_.size() && constants_[index]; }

  // Makes an empty output, unless it is made already.
  void complete(size_t index) {
    if ((made_ >> index & 1) == 0) output(index, {1, {0}});
  }

  void* output(size_t index, const Shape& shape) override {
    made_ |= uint64_t{1} << index;
    OrtValue* value = nullptr;
    check(api_, ort::KernelContext_GetOutput(api_, context_, index, &shape.dims[0], shape.rank, &value));
    void* data = nullptr;
    check(api_, ort::GetTensorMutableData(api_, value, &data));
    return data;
  }

  void parallel_for(size_t count, void (*task)(void*, size_t), void* data) override {
    check(api_, ort::KernelContext_ParallelFor(api_, static_cast<const OrtKernelContext*>(context_), task, count,
                                               size_t{0}, data));
  }

 private:
  const Runtime& runtime_;
  const OrtApi* api_;
  const std::vector<Tensor>& constants_;
  OrtKernelContext* context_;
  uint64_t made_ = 0;  // a bit for each output
};

struct RunningNode {
  std::unique_ptr<Node> node;
  const Runtime& runtime;
  std::vector<Tensor> constants;
  std::vector<size_t> converted;  // outputs that ONNX Runtime converts
};

// The outputs behind which ONNX Runtime has inserted a Cast: it runs a float16 node in float32 if no node beside it has
// a kernel of float16. Then outputs that no node reads are read, too.
std::vector<size_t> converted_outputs(const OrtApi* api, const OrtKernelInfo* info) {
  constexpr char kPrefix[] = "InsertedPrecisionFreeCast_";
  std::vector<size_t> found;
  size_t count = 0;
  check(api, ort::KernelInfo_GetOutputCount(api, info, &count));
  for (size_t i = 0; i < count; ++i) {
    size_t size = 0;
    check(api, ort::KernelInfo_GetOutputName(api, info, i, static_cast<char*>(nullptr), &size));
    std::string name(size, '\0');
    check(api, ort::KernelInfo_GetOutputName(api, info, i, name.data(), &size));
    if (name.compare(0, sizeof kPrefix - 1, kPrefix) == 0) found.push_back(i);
  }
  return found;
}

// The dimensions of an input while shapes are inferred. A dimension has a length, a name, or neither (-1 and "").
struct Dimensions {
  Dimensions(const OrtApi* api, const OrtTensorTypeAndShapeInfo* info) {
    size_t rank = 0;
    check(api, ort::GetDimensionsCount(api, info, &rank));
    lengths.assign(rank, -1);
    names.assign(rank, nullptr);
    check(api, ort::GetDimensions(api, info, lengths.data(), rank));
    check(api, ort::GetSymbolicDimensions(api, info, names.data(), rank));
    for (const char*& name : names)
      if (name == nullptr) name = "";
  }

  // Whether the rank is at least 1 and every dimension has a length or a name.
  bool are_describable() const {
    for (size_t i = 0; i < lengths.size(); ++i)
      if (lengths[i] < 0 && *names[i] == '\0') return false;
    return !lengths.empty();
  }

  void replace_last(const Dimensions& other) {
    if (lengths.empty()) return;
    lengths.back() = other.lengths.empty() ? -1 : other.lengths.back();
    names.back() = other.names.empty() ? "" : other.names.back();
  }

  // Broadcasts the dimensions before the last two to those of stacked weights before the last four.
  void broadcast_to_stack(const Dimensions& weights) {
    if (weights.lengths.size() <= 4 || lengths.size() < 2) return;
    const size_t stack = weights.lengths.size() - 4;
    const size_t missing = stack + 2 > lengths.size() ? stack + 2 - lengths.size() : 0;
    lengths.insert(lengths.begin(), missing, 1);
    names.insert(names.begin(), missing, "");
    for (size_t i = 0, own = lengths.size() - 2 - stack; i < stack; ++i, ++own) {
      if (lengths[own] != 1 && (lengths[own] >= 0 || weights.lengths[i] <= 1)) continue;
      lengths[own] = weights.lengths[i];
      names[own] = weights.names[i];
    }
  }

  std::vector<int64_t> lengths;
  std::vector<const char*> names;  // they belong to the input
};

struct CustomOp : OrtCustomOp {
  CustomOp(const Runtime& runtime_, const Operator& op_, const Signature& signature_)
      : OrtCustomOp{}, runtime(runtime_), op(op_), signature(signature_) {
    version = kCustomOpVersion;
    GetName = [](const OrtCustomOp* self) { return of(self).op.name; };
    GetExecutionProviderType = [](const OrtCustomOp*) -> const char* { return nullptr; };  // CPU
    GetInputTypeCount = [](const OrtCustomOp* self) { return of(self).signature.inputs.size(); };
    GetInputType = [](const OrtCustomOp* self, size_t index) { return of(self).signature.inputs[index]; };
    GetOutputTypeCount = [](const OrtCustomOp* self) { return of(self).signature.outputs.size(); };
    GetOutputType = [](const OrtCustomOp* self, size_t index) { return of(self).signature.outputs[index]; };
    GetInputCharacteristic = [](const OrtCustomOp* self, size_t index) {
      return index < of(self).op.required_inputs ? INPUT_OUTPUT_REQUIRED : INPUT_OUTPUT_OPTIONAL;
    };
    GetOutputCharacteristic = [](const OrtCustomOp*, size_t) { return INPUT_OUTPUT_REQUIRED; };
    GetInputMemoryType = [](const OrtCustomOp*, size_t) { return OrtMemTypeDefault; };
    GetStartVersion = [](const OrtCustomOp*) { return kDomainVersion; };
    GetEndVersion = [](const OrtCustomOp*) { return kDomainVersion; };
    CreateKernelV2 = create;
    KernelComputeV2 = compute;
    KernelDestroy = [](void* node) { delete static_cast<RunningNode*>(node); };
    InferOutputShapeFn = infer;
  }

  static const CustomOp& of(const OrtCustomOp* self) { return *static_cast<const CustomOp*>(self); }

  static OrtStatus* create(const OrtCustomOp* self, const OrtApi* api, const OrtKernelInfo* info, void** kernel) {
    return guarded(api, [&] {
      const Runtime& runtime = of(self).runtime;
      *kernel = new RunningNode{of(self).op.create(NodeAttributes(api, info)), runtime, constants_of(runtime, info),
                                converted_outputs(api, info)};
    });
  }

  static OrtStatus* compute(void* kernel, OrtKernelContext* context) {
    const RunningNode& running = *static_cast<RunningNode*>(kernel);
    return guarded(running.runtime.api, [&] {
      RunContext run(running.runtime, running.constants, context);
      running.node->compute(run);
      for (const size_t index : running.converted) run.complete(index);
    });
  }

  static OrtStatus* infer(const OrtCustomOp* self, OrtShapeInferContext* context) {
    const OrtApi* api = of(self).runtime.api;
    const Operator& op = of(self).op;
    return guarded(api, [&] {
      const std::vector<OrtTensorTypeAndShapeInfo*> inputs = inputs_of(api, context);
      if (inputs.size() < op.required_inputs || inputs.size() <= op.columns_input) return;
      if (op.has_shape != nullptr && !op.has_shape(InferenceAttributes(api, context))) return;
      std::vector<Type> types(inputs.size());
      for (size_t i = 0; i < inputs.size(); ++i)
        check(api, ort::GetTensorElementType(api, static_cast<const OrtTensorTypeAndShapeInfo*>(inputs[i]), &types[i]));
      const Type type = op.output_type(InferenceAttributes(api, context), types);
      const Type inferred = op.output_type(NoAttributes(), types);
      Dimensions dims(api, inputs[0]);
      if (op.stack_input > 0) dims.broadcast_to_stack(Dimensions(api, inputs[op.stack_input]));
      if (op.columns_input > 0) dims.replace_last(Dimensions(api, inputs[op.columns_input]));
      // ONNX Runtime represents unknown rank and rank 0 alike, so no shape is set for either. The same holds if a
      // dimension has neither length nor name: ONNX Runtime would read a length of -1. But a type cannot be set
      // without a shape: if the type differs from the one that ONNX Runtime inferred, the shape is set anyway.
      if (dims.are_describable() || type != inferred) set_output(api, context, type, dims);
    });
  }

  static std::vector<OrtTensorTypeAndShapeInfo*> inputs_of(const OrtApi* api, const OrtShapeInferContext* context) {
    size_t count = 0;
    check(api, ort::ShapeInferContext_GetInputCount(api, context, &count));
    std::vector<OrtTensorTypeAndShapeInfo*> inputs(count);
    for (size_t i = 0; i < count; ++i)
      check(api, ort::ShapeInferContext_GetInputTypeShape(api, context, i, &inputs[i]));
    return inputs;
  }

  static void set_output(const OrtApi* api, const OrtShapeInferContext* context, Type type, Dimensions& dims) {
    OrtTensorTypeAndShapeInfo* info = nullptr;
    check(api, ort::CreateTensorTypeAndShapeInfo(api, &info));
    const std::unique_ptr<OrtTensorTypeAndShapeInfo, InfoDeleter> owner(info, InfoDeleter{api});
    check(api, ort::SetTensorElementType(api, info, type));
    check(api, ort::SetDimensions(api, info, static_cast<const int64_t*>(dims.lengths.data()), dims.lengths.size()));
    check(api, ort::SetSymbolicDimensions(api, info, dims.names.data(), dims.names.size()));
    check(api, ort::ShapeInferContext_SetOutputTypeShape(api, context, size_t{0},
                                                         static_cast<const OrtTensorTypeAndShapeInfo*>(info)));
  }

  const Runtime& runtime;
  const Operator& op;
  const Signature& signature;
};

// The domain of one copy of ONNX Runtime. Its sessions keep pointers to the domain and the operators.
struct Domain {
  Runtime runtime;
  std::deque<CustomOp> ops;
  OrtCustomOpDomain* handle = nullptr;
};

// Creates the domain on first use. Several threads may register at the same time.
OrtCustomOpDomain* domain_of(const Runtime& runtime) {
  static std::mutex mutex;
  // Never destroyed: a session that is a global variable of the program may be destroyed after the library's own.
  static auto& domains = *new std::map<const OrtApi*, Domain>;
  const std::lock_guard<std::mutex> lock(mutex);
  Domain& domain = domains[runtime.api];
  if (domain.handle != nullptr) return domain.handle;
  const OrtApi* api = runtime.api;
  OrtCustomOpDomain* handle = nullptr;
  check(api, ort::CreateCustomOpDomain(api, static_cast<const char*>(kDomain), &handle));
  domain.runtime = runtime;
  domain.ops.clear();
  for (const Operator& op : operators())
    for (const Signature& signature : op.signatures) {
      domain.ops.emplace_back(domain.runtime, op, signature);
      check(api, ort::CustomOpDomain_Add(api, handle, static_cast<const OrtCustomOp*>(&domain.ops.back())));
    }
  return domain.handle = handle;
}

}  // namespace
}  // namespace dynq

ORT_DYNQ_EXPORT OrtStatus* RegisterCustomOps(OrtSessionOptions* options, const OrtApiBase* base) {
  const char* name = base->GetVersionString();
  char* dot = nullptr;
  const long major = std::strtol(name, &dot, 10), minor = *dot == '.' ? std::strtol(dot + 1, nullptr, 10) : 0;
  const bool is_old = major < 1 || (major == 1 && minor < static_cast<long>(kOldestApi));
  // GetApi() prints an error for a version that the runtime does not have.
  const uint32_t version = is_old                                               ? 1
                           : major > 1 || minor > static_cast<long>(kNewestApi) ? kNewestApi
                                                                                : static_cast<uint32_t>(minor);
  const dynq::Runtime runtime = {base->GetApi(version), version};
  if (runtime.api == nullptr) return nullptr;  // without the API no status can be created
  return dynq::guarded(runtime.api, [&] {
    if (is_old)
      throw std::runtime_error("ort_dynq needs ONNX Runtime 1." + std::to_string(kOldestApi) + " or newer, this is " +
                               name);
    dynq::active_isa();  // an invalid ORT_DYNQ_ISA is reported here, not in the first run
    dynq::check(runtime.api, ort::AddCustomOpDomain(runtime.api, options, dynq::domain_of(runtime)));
  });
}
