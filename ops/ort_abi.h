// The part of ONNX Runtime's C ABI that this library uses.
//
// ONNX Runtime's wheels contain no headers, so the functions of struct OrtApi are called by their slot, which
// ort_api_slots.h gives by name. tests/packaging/test_abi.py compares all declarations with the header if
// ORT_INCLUDE_DIR names its directory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ort_api_slots.h"

extern "C" {

struct OrtStatus;
struct OrtValue;
struct OrtSessionOptions;
struct OrtCustomOpDomain;
struct OrtKernelInfo;
struct OrtKernelContext;
struct OrtShapeInferContext;
struct OrtTensorTypeAndShapeInfo;
struct OrtOpAttr;

// A table of function pointers. An older runtime has fewer of them.
struct OrtApi {
  void (*slots[ort_slot::kCount])(void);
};

struct OrtApiBase {
  const OrtApi* (*GetApi)(uint32_t version);  // null for a version newer than the runtime
  const char* (*GetVersionString)();
};

// Versions of the API equal the minor versions of ONNX Runtime 1.x. kOldestApi is as in runtime.py: 1.18 and older
// infer wrong output types. All functions below exist since then, except GetTensorElementTypeAndShapeDataReference.
constexpr uint32_t kOldestApi = 20;
constexpr uint32_t kNewestApi = 24;              // the last one in ort_api_slots.h
constexpr uint32_t kApiWithShapeReference = 24;  // saves an allocation for each input

// The version of OrtCustomOp with the members that are set. A runtime reads the members of this version only.
constexpr uint32_t kCustomOpVersion = 17;

enum OrtErrorCode { ORT_OK = 0, ORT_FAIL = 1, ORT_INVALID_ARGUMENT = 2 };
enum OrtOpAttrType { ORT_OP_ATTR_INT = 1, ORT_OP_ATTR_STRING = 5 };
enum OrtMemType { OrtMemTypeDefault = 0 };
enum OrtCustomOpInputOutputCharacteristic { INPUT_OUTPUT_REQUIRED = 0, INPUT_OUTPUT_OPTIONAL = 1 };

// ONNX's numbers (TensorProto.DataType) for the types that the operators support. Callers may pass any other.
enum ONNXTensorElementDataType : int {
  ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED = 0,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT = 1,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8 = 2,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8 = 3,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_INT16 = 5,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32 = 6,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64 = 7,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16 = 10,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16 = 16,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT4 = 21,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_INT4 = 22,
};

// Members are in the order of the header. The runtime reads those that `version` has.
struct OrtCustomOp {
  uint32_t version;
  void* (*CreateKernel)(const OrtCustomOp*, const OrtApi*, const OrtKernelInfo*);
  const char* (*GetName)(const OrtCustomOp*);
  const char* (*GetExecutionProviderType)(const OrtCustomOp*);
  ONNXTensorElementDataType (*GetInputType)(const OrtCustomOp*, size_t);
  size_t (*GetInputTypeCount)(const OrtCustomOp*);
  ONNXTensorElementDataType (*GetOutputType)(const OrtCustomOp*, size_t);
  size_t (*GetOutputTypeCount)(const OrtCustomOp*);
  void (*KernelCompute)(void*, OrtKernelContext*);
  void (*KernelDestroy)(void*);
  OrtCustomOpInputOutputCharacteristic (*GetInputCharacteristic)(const OrtCustomOp*, size_t);
  OrtCustomOpInputOutputCharacteristic (*GetOutputCharacteristic)(const OrtCustomOp*, size_t);
  OrtMemType (*GetInputMemoryType)(const OrtCustomOp*, size_t);
  int (*GetVariadicInputMinArity)(const OrtCustomOp*);
  int (*GetVariadicInputHomogeneity)(const OrtCustomOp*);
  int (*GetVariadicOutputMinArity)(const OrtCustomOp*);
  int (*GetVariadicOutputHomogeneity)(const OrtCustomOp*);
  OrtStatus* (*CreateKernelV2)(const OrtCustomOp*, const OrtApi*, const OrtKernelInfo*, void**);
  OrtStatus* (*KernelComputeV2)(void*, OrtKernelContext*);
  OrtStatus* (*InferOutputShapeFn)(const OrtCustomOp*, OrtShapeInferContext*);
  int (*GetStartVersion)(const OrtCustomOp*);
  int (*GetEndVersion)(const OrtCustomOp*);
  size_t (*GetMayInplace)(int**, int**);
  void (*ReleaseMayInplace)(int*, int*);
  size_t (*GetAliasMap)(int**, int**);
  void (*ReleaseAliasMap)(int*, int*);
};

}  // extern "C"

static_assert(sizeof(OrtCustomOp) == 26 * sizeof(void*), "OrtCustomOp has 26 words");
static_assert(offsetof(OrtCustomOp, CreateKernelV2) == 17 * sizeof(void*), "CreateKernelV2 is word 17");
static_assert(offsetof(OrtCustomOp, ReleaseAliasMap) == 25 * sizeof(void*), "ReleaseAliasMap is word 25");

// X(name, result, parameters) for each function of OrtApi that is called.
#define ORT_DYNQ_API_FUNCTIONS(X)                                                                               \
  X(CreateStatus, OrtStatus*, (OrtErrorCode code, const char* message))                                         \
  X(GetErrorMessage, const char*, (const OrtStatus*))                                                           \
  X(CreateCustomOpDomain, OrtStatus*, (const char* name, OrtCustomOpDomain**))                                  \
  X(CustomOpDomain_Add, OrtStatus*, (OrtCustomOpDomain*, const OrtCustomOp*))                                   \
  X(AddCustomOpDomain, OrtStatus*, (OrtSessionOptions*, OrtCustomOpDomain*))                                    \
  X(GetTensorMutableData, OrtStatus*, (OrtValue*, void** data))                                                 \
  X(CreateTensorTypeAndShapeInfo, OrtStatus*, (OrtTensorTypeAndShapeInfo**))                                    \
  X(SetTensorElementType, OrtStatus*, (OrtTensorTypeAndShapeInfo*, ONNXTensorElementDataType))                  \
  X(SetDimensions, OrtStatus*, (OrtTensorTypeAndShapeInfo*, const int64_t* dims, size_t count))                 \
  X(GetTensorElementType, OrtStatus*, (const OrtTensorTypeAndShapeInfo*, ONNXTensorElementDataType*))           \
  X(GetDimensionsCount, OrtStatus*, (const OrtTensorTypeAndShapeInfo*, size_t*))                                \
  X(GetDimensions, OrtStatus*, (const OrtTensorTypeAndShapeInfo*, int64_t* dims, size_t count))                 \
  X(GetSymbolicDimensions, OrtStatus*, (const OrtTensorTypeAndShapeInfo*, const char** names, size_t count))    \
  X(GetTensorTypeAndShape, OrtStatus*, (const OrtValue*, OrtTensorTypeAndShapeInfo**))                          \
  X(KernelInfoGetAttribute_int64, OrtStatus*, (const OrtKernelInfo*, const char* name, int64_t*))               \
  X(KernelInfoGetAttribute_string, OrtStatus*, (const OrtKernelInfo*, const char* name, char*, size_t*))        \
  X(KernelInfo_GetInputCount, OrtStatus*, (const OrtKernelInfo*, size_t*))                                      \
  X(KernelInfo_GetOutputCount, OrtStatus*, (const OrtKernelInfo*, size_t*))                                     \
  X(KernelInfo_GetOutputName, OrtStatus*, (const OrtKernelInfo*, size_t index, char*, size_t*))                 \
  X(KernelInfoGetConstantInput_tensor, OrtStatus*,                                                              \
    (const OrtKernelInfo*, size_t index, int* is_constant, const OrtValue**))                                   \
  X(KernelContext_GetInput, OrtStatus*, (const OrtKernelContext*, size_t index, const OrtValue**))              \
  X(KernelContext_GetOutput, OrtStatus*, (OrtKernelContext*, size_t index, const int64_t*, size_t, OrtValue**)) \
  X(ReleaseStatus, void, (OrtStatus*))                                                                          \
  X(ReleaseTensorTypeAndShapeInfo, void, (OrtTensorTypeAndShapeInfo*))                                          \
  X(KernelInfoGetAttributeArray_int64, OrtStatus*,                                                              \
    (const OrtKernelInfo*, const char* name, int64_t* values, size_t* count))                                   \
  X(ShapeInferContext_GetInputCount, OrtStatus*, (const OrtShapeInferContext*, size_t*))                        \
  X(ShapeInferContext_GetInputTypeShape, OrtStatus*,                                                            \
    (const OrtShapeInferContext*, size_t index, OrtTensorTypeAndShapeInfo**))                                   \
  X(ShapeInferContext_GetAttribute, OrtStatus*, (const OrtShapeInferContext*, const char*, const OrtOpAttr**))  \
  X(ShapeInferContext_SetOutputTypeShape, OrtStatus*,                                                           \
    (const OrtShapeInferContext*, size_t index, const OrtTensorTypeAndShapeInfo*))                              \
  X(SetSymbolicDimensions, OrtStatus*, (OrtTensorTypeAndShapeInfo*, const char** names, size_t count))          \
  X(ReadOpAttr, OrtStatus*, (const OrtOpAttr*, OrtOpAttrType, void* data, size_t length, size_t* written))      \
  X(KernelContext_ParallelFor, OrtStatus*,                                                                      \
    (const OrtKernelContext*, void (*function)(void*, size_t), size_t total, size_t batches, void* data))       \
  X(GetTensorElementTypeAndShapeDataReference, OrtStatus*,                                                      \
    (const OrtValue*, ONNXTensorElementDataType*, const int64_t** dims, size_t* rank))

// Calls through the table: `ort::GetDimensionsCount(api, info, &count)`.
namespace ort {
#define ORT_DYNQ_DEFINE_CALL(name, result, parameters)                                       \
  template <class... Arguments>                                                              \
  result name(const OrtApi* api, Arguments... arguments) {                                   \
    return reinterpret_cast<result(*) parameters>(api->slots[ort_slot::name])(arguments...); \
  }
ORT_DYNQ_API_FUNCTIONS(ORT_DYNQ_DEFINE_CALL)
#undef ORT_DYNQ_DEFINE_CALL
}  // namespace ort
