// Runs models with ONNX Runtime for Windows, through its C interface. tests/native/windows.py compares the results with
// those of Linux.
//
//   run_models.exe RUNTIME.dll PLUGIN.dll FILE ...
//
// For each FILE.onnx it reads FILE.inputs and writes FILE.outputs. Both have one tensor after the other: a line with
// the name, the number of its ONNX type, the rank and the dimensions; then its bytes. The plugin is registered for all
// of them. Optimizations are off.
#include <windows.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "ort_abi.h"

struct OrtEnv;
struct OrtSession;
struct OrtMemoryInfo;
struct OrtAllocator;
struct OrtRunOptions;

// The functions of OrtApi that open and run a session, in addition to ort_abi.h.
#define SESSION_FUNCTIONS(X)                                                                                         \
  X(CreateEnv, OrtStatus*, (int level, const char* name, OrtEnv**))                                                  \
  X(CreateSession, OrtStatus*, (OrtEnv*, const wchar_t* path, const OrtSessionOptions*, OrtSession**))               \
  X(Run, OrtStatus*,                                                                                                 \
    (OrtSession*, const OrtRunOptions*, const char* const* names, const OrtValue* const* inputs, size_t,             \
     const char* const* output_names, size_t, OrtValue** outputs))                                                   \
  X(CreateSessionOptions, OrtStatus*, (OrtSessionOptions**))                                                         \
  X(SetSessionGraphOptimizationLevel, OrtStatus*, (OrtSessionOptions*, int level))                                   \
  X(RegisterCustomOpsLibrary, OrtStatus*, (OrtSessionOptions*, const char* path, void** handle))                     \
  X(SessionGetOutputCount, OrtStatus*, (const OrtSession*, size_t*))                                                 \
  X(SessionGetOutputName, OrtStatus*, (const OrtSession*, size_t, OrtAllocator*, char**))                            \
  X(CreateTensorWithDataAsOrtValue, OrtStatus*,                                                                      \
    (const OrtMemoryInfo*, void*, size_t bytes, const int64_t*, size_t rank, ONNXTensorElementDataType, OrtValue**)) \
  X(GetTensorShapeElementCount, OrtStatus*, (const OrtTensorTypeAndShapeInfo*, size_t*))                             \
  X(CreateCpuMemoryInfo, OrtStatus*, (int allocator, int memory, OrtMemoryInfo**))                                   \
  X(GetAllocatorWithDefaultOptions, OrtStatus*, (OrtAllocator**))                                                    \
  X(ReleaseSession, void, (OrtSession*))                                                                             \
  X(ReleaseValue, void, (OrtValue*))

namespace {

const OrtApi* api;

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "run_models: %s\n", what.c_str());
  std::exit(1);
}

// Calls `name` of OrtApi; its parameters convert the arguments.
#define DEFINE_CALL(name, result, parameters)                                                \
  const auto name = [](auto... arguments) {                                                  \
    return reinterpret_cast<result(*) parameters>(api->slots[ort_slot::name])(arguments...); \
  };
ORT_DYNQ_API_FUNCTIONS(DEFINE_CALL)
SESSION_FUNCTIONS(DEFINE_CALL)

void check(OrtStatus* status) {
  if (status != nullptr) fail(GetErrorMessage(status));
}

struct Tensor {
  std::string name;
  int type = 0;
  std::vector<int64_t> dims;
  std::vector<char> bytes;
};

size_t size_of(int type) {
  switch (type) {
    case 2:
    case 3:
    case 9:
      return 1;
    case 10:
      return 2;
    case 1:
    case 6:
      return 4;
    case 7:
    case 11:
      return 8;
  }
  fail("unknown type " + std::to_string(type));
}

std::vector<Tensor> read_tensors(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) fail("cannot read " + path);
  std::vector<Tensor> tensors;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    Tensor tensor;
    size_t rank = 0, count = 1;
    words >> tensor.name >> tensor.type >> rank;
    tensor.dims.resize(rank);
    for (int64_t& dim : tensor.dims) {
      words >> dim;
      count *= static_cast<size_t>(dim);
    }
    tensor.bytes.resize(count * size_of(tensor.type));
    if (!words || !file.read(tensor.bytes.data(), static_cast<std::streamsize>(tensor.bytes.size())))
      fail(path + " is not complete");
    tensors.push_back(tensor);
  }
  return tensors;
}

void write_tensor(std::ofstream& file, const char* name, OrtValue* value) {
  OrtTensorTypeAndShapeInfo* info = nullptr;
  check(GetTensorTypeAndShape(value, &info));
  ONNXTensorElementDataType type;
  size_t rank = 0, count = 0;
  check(GetTensorElementType(info, &type));
  check(GetDimensionsCount(info, &rank));
  std::vector<int64_t> dims(rank);
  check(GetDimensions(info, dims.data(), rank));
  check(GetTensorShapeElementCount(info, &count));
  ReleaseTensorTypeAndShapeInfo(info);
  file << name << ' ' << type << ' ' << rank;
  for (const int64_t dim : dims) file << ' ' << dim;
  file << '\n';
  void* data = nullptr;
  check(GetTensorMutableData(value, &data));
  file.write(static_cast<const char*>(data), static_cast<std::streamsize>(count * size_of(type)));
}

void run_model(OrtEnv* env, const OrtSessionOptions* options, const std::string& name) {
  const std::string path = name + ".onnx";
  OrtSession* session = nullptr;
  check(CreateSession(env, std::wstring(path.begin(), path.end()).c_str(), options, &session));  // the path is ASCII

  OrtMemoryInfo* memory = nullptr;
  check(CreateCpuMemoryInfo(0, 0, &memory));
  std::vector<Tensor> tensors = read_tensors(name + ".inputs");
  std::vector<const char*> input_names;
  std::vector<OrtValue*> inputs(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    Tensor& tensor = tensors[i];
    input_names.push_back(tensor.name.c_str());
    check(CreateTensorWithDataAsOrtValue(memory, tensor.bytes.data(), tensor.bytes.size(), tensor.dims.data(),
                                         tensor.dims.size(), static_cast<ONNXTensorElementDataType>(tensor.type),
                                         &inputs[i]));
  }

  OrtAllocator* allocator = nullptr;
  size_t count = 0;
  check(GetAllocatorWithDefaultOptions(&allocator));
  check(SessionGetOutputCount(session, &count));
  std::vector<char*> output_names(count);
  for (size_t i = 0; i < count; ++i) check(SessionGetOutputName(session, i, allocator, &output_names[i]));
  std::vector<OrtValue*> outputs(count);
  check(Run(session, nullptr, input_names.data(), inputs.data(), inputs.size(), output_names.data(), count,
            outputs.data()));

  std::ofstream file(name + ".outputs", std::ios::binary);
  for (size_t i = 0; i < count; ++i) write_tensor(file, output_names[i], outputs[i]);
  if (!file) fail("cannot write " + name + ".outputs");
  for (OrtValue* value : inputs) ReleaseValue(value);
  for (OrtValue* value : outputs) ReleaseValue(value);
  ReleaseSession(session);
}

void* symbol(HMODULE library, const char* name) {
  const auto found = reinterpret_cast<void*>(GetProcAddress(library, name));
  if (found == nullptr) fail(std::string("the library has no function ") + name);
  return found;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) fail("expected RUNTIME.dll PLUGIN.dll FILE ...");
  const HMODULE runtime = LoadLibraryA(argv[1]);
  if (runtime == nullptr) fail(std::string(argv[1]) + " cannot be loaded: error " + std::to_string(GetLastError()));
  const auto base = reinterpret_cast<const OrtApiBase* (*)()>(symbol(runtime, "OrtGetApiBase"))();
  std::printf("ONNX Runtime %s\n", base->GetVersionString());
  api = base->GetApi(kOldestApi);
  if (api == nullptr) fail("this ONNX Runtime does not have version " + std::to_string(kOldestApi) + " of its API");
  OrtEnv* env = nullptr;
  OrtSessionOptions* options = nullptr;
  void* plugin = nullptr;
  constexpr int kWarnings = 2, kNoOptimizations = 0;
  check(CreateEnv(kWarnings, "run_models", &env));
  check(CreateSessionOptions(&options));
  check(SetSessionGraphOptimizationLevel(options, kNoOptimizations));
  check(RegisterCustomOpsLibrary(options, argv[2], &plugin));
  const auto isa =
      reinterpret_cast<const char* (*)(char*, size_t)>(symbol(static_cast<HMODULE>(plugin), "ort_dynq_isa"));
  std::printf("instruction set %s\n", isa(nullptr, 0));
  for (int i = 3; i < argc; ++i) run_model(env, options, argv[i]);
  return 0;
}
