#include "c_api.h"

#include <cstring>

#ifndef _WIN32
#include <unistd.h>

#include <csignal>
#endif

#include "core/algorithm_use.h"
#include "core/compiler.h"
#include "core/operator.h"
#include "kernels/dispatch.h"

namespace dynq {
namespace {

AlgorithmUse use_of(int32_t use) {
  return use == 1 ? AlgorithmUse::kAlways : use == 2 ? AlgorithmUse::kNever : AlgorithmUse::kByRule;
}

// Runs the function and stores the message of its exception: no exception may cross the C boundary.
template <class Function>
int guarded(char* error, size_t error_size, Function&& function) {
  std::string message;
  try {
    function();
    return 0;
  } catch (const std::exception& exception) {
    message = exception.what();
  } catch (...) {
    message = "ort_dynq: unknown error";
  }
  if (error != nullptr && error_size > 0) {
    std::strncpy(error, message.c_str(), error_size - 1);
    error[error_size - 1] = '\0';
  }
  return 1;
}

#ifndef _WIN32
// What a handler of a signal may read: it may call neither malloc nor most of the library of C.
char bus_error_message[256];
volatile sig_atomic_t bus_error_status = 1;

extern "C" void on_bus_error(int) {
  const ssize_t written = write(STDERR_FILENO, bus_error_message, std::strlen(bus_error_message));
  static_cast<void>(written);
  _exit(static_cast<int>(bus_error_status));
}
#endif

class GivenAttributes : public Attributes {
 public:
  GivenAttributes(const ort_dynq_attribute* attributes, int32_t count) : attributes_(attributes), count_(count) {}

  int64_t integer(const char* name, int64_t absent) const override {
    const ort_dynq_attribute* found = find(name);
    if (found != nullptr && found->text != nullptr) throw Error(std::string(name) + " is text, expected an integer");
    return found == nullptr ? absent : found->integer;
  }

  std::string text(const char* name, const char* absent) const override {
    const ort_dynq_attribute* found = find(name);
    if (found != nullptr && found->text == nullptr) throw Error(std::string(name) + " is an integer, expected text");
    return found == nullptr ? absent : found->text;
  }

  std::vector<int64_t> integers(const char* name) const override {
    std::vector<int64_t> values;
    for (int32_t i = 0; i < count_; ++i) {
      if (std::strcmp(attributes_[i].name, name) != 0) continue;
      if (attributes_[i].text != nullptr) throw Error(std::string(name) + " is text, expected integers");
      values.push_back(attributes_[i].integer);
    }
    return values;
  }

 private:
  // The only attribute of this name, or null.
  const ort_dynq_attribute* find(const char* name) const {
    const ort_dynq_attribute* found = nullptr;
    for (int32_t i = 0; i < count_; ++i) {
      if (std::strcmp(attributes_[i].name, name) != 0) continue;
      if (found != nullptr) throw Error(std::string(name) + " is a list, expected one value");
      found = &attributes_[i];
    }
    return found;
  }

  const ort_dynq_attribute* attributes_;
  int32_t count_;
};

class GivenTensors : public Context {
 public:
  GivenTensors(const ort_dynq_tensor* inputs, int32_t count, std::vector<Type> output_types, ort_dynq_allocate allocate,
               void* user)
      : inputs_(inputs),
        count_(count),
        output_types_(std::move(output_types)),
        are_made_(output_types_.size()),
        allocate_(allocate),
        user_(user) {}

  Tensor input(size_t index) override {
    Tensor tensor;
    if (index >= static_cast<size_t>(count_)) return tensor;
    const ort_dynq_tensor& given = inputs_[index];
    if (given.rank < 0 || static_cast<size_t>(given.rank) > kMaxRank)
      throw Error("input " + std::to_string(index) + " has rank " + std::to_string(given.rank) + ", expected at most " +
                  std::to_string(kMaxRank));
    tensor.type = static_cast<Type>(given.type);
    tensor.shape.rank = static_cast<size_t>(given.rank);
    for (size_t i = 0; i < tensor.shape.rank; ++i) {
      if (given.dims[i] < 0)
        throw Error("input " + std::to_string(index) + " has a dimension of " + std::to_string(given.dims[i]));
      tensor.shape.dims[i] = given.dims[i];
    }
    tensor.data = given.data;
    return tensor;
  }

  void* output(size_t index, const Shape& shape) override {
    void* data = allocate_(user_, static_cast<int32_t>(index), output_types_[index], shape.dims,
                           static_cast<int32_t>(shape.rank));
    if (data == nullptr && shape.elements() != 0) throw Error("no memory for output " + std::to_string(index));
    are_made_[index] = true;
    return data;
  }

  // Outputs that the operator has left out become empty: callers receive every output.
  void make_the_rest() {
    for (size_t i = 0; i < output_types_.size(); ++i)
      if (!are_made_[i]) output(i, {1, {0}});
  }

  void parallel_for(size_t count, void (*task)(void*, size_t), void* data) override {
    for (size_t i = 0; i < count; ++i) task(data, i);
  }

 private:
  const ort_dynq_tensor* inputs_;
  int32_t count_;
  std::vector<Type> output_types_;
  std::vector<bool> are_made_;
  ort_dynq_allocate allocate_;
  void* user_;
};

const Operator& find(const char* name) {
  std::string names;
  for (const Operator& op : operators()) {
    if (std::strcmp(op.name, name) == 0) return op;
    names += (names.empty() ? "" : ", ") + std::string(op.name);
  }
  throw Error("unknown operator '" + std::string(name) + "', expected one of " + names);
}

// The output types of the signature that has these input types. Throws Error if there is none.
std::vector<Type> output_types(const Operator& op, const Attributes& attributes, const std::vector<Type>& types) {
  if (types.size() < op.required_inputs || types.size() > op.signatures[0].inputs.size())
    throw Error(std::string(op.name) + ": " + std::to_string(types.size()) + " inputs, expected " +
                std::to_string(op.required_inputs) + " to " + std::to_string(op.signatures[0].inputs.size()));
  const Type first = op.output_type(attributes, types);
  for (const Signature& signature : op.signatures) {
    bool fits = signature.outputs[0] == first;
    for (size_t i = 0; i < types.size(); ++i)
      fits &= types[i] == signature.inputs[i] || (types[i] == kNone && i >= op.required_inputs);
    if (fits) return signature.outputs;
  }
  std::string given;
  for (const Type type : types) given += (given.empty() ? "" : ", ") + std::string(name_of(type));
  throw Error(std::string(op.name) + ": inputs of types " + given + " are not supported");
}

}  // namespace
}  // namespace dynq

ORT_DYNQ_EXPORT int ort_dynq_run(const char* name, const ort_dynq_attribute* attributes, int32_t attribute_count,
                                 const ort_dynq_tensor* inputs, int32_t input_count, ort_dynq_allocate allocate,
                                 void* user, char* error, size_t error_size) {
  return dynq::guarded(error, error_size, [&] {
    const dynq::Operator& op = dynq::find(name);
    const dynq::GivenAttributes given(attributes, attribute_count);
    std::vector<dynq::Type> types;
    types.reserve(static_cast<size_t>(input_count));
    for (int32_t i = 0; i < input_count; ++i) types.push_back(static_cast<dynq::Type>(inputs[i].type));
    const auto node = op.create(given);
    dynq::GivenTensors context(inputs, input_count, dynq::output_types(op, given, types), allocate, user);
    node->compute(context);
    context.make_the_rest();
  });
}

ORT_DYNQ_EXPORT const char* ort_dynq_version(void) { return ORT_DYNQ_VERSION; }

ORT_DYNQ_EXPORT const char* ort_dynq_operator(size_t index) {
  return index < dynq::operators().size() ? dynq::operators()[index].name : nullptr;
}

ORT_DYNQ_EXPORT const char* ort_dynq_supported_isa(size_t index) { return dynq::supported_isa(index); }

ORT_DYNQ_EXPORT const char* ort_dynq_isa(char* error, size_t error_size) {
  const char* name = nullptr;
  dynq::guarded(error, error_size, [&] { name = dynq::active_isa().name; });
  return name;
}

ORT_DYNQ_EXPORT void ort_dynq_select_winograd(int32_t use) { dynq::winograd_use = dynq::use_of(use); }

ORT_DYNQ_EXPORT void ort_dynq_select_strassen(int32_t use) { dynq::strassen_use = dynq::use_of(use); }

ORT_DYNQ_EXPORT void ort_dynq_select_conv_rows(int32_t use) { dynq::conv_rows_use = dynq::use_of(use); }

ORT_DYNQ_EXPORT int ort_dynq_select_isa(const char* name, char* error, size_t error_size) {
  return dynq::guarded(error, error_size, [&] { dynq::select_isa(name); });
}

ORT_DYNQ_EXPORT void ort_dynq_exit_on_bus_error(const char* message, int32_t status) {
#ifdef _WIN32
  static_cast<void>(message);
  static_cast<void>(status);
#else
  std::strncpy(dynq::bus_error_message, message, sizeof(dynq::bus_error_message) - 1);
  dynq::bus_error_status = status;
  struct sigaction action = {};
  action.sa_handler = dynq::on_bus_error;
  sigaction(SIGBUS, &action, nullptr);
#endif
}
