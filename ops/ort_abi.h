// The part of ONNX Runtime's C ABI that this library uses.
//
// ONNX Runtime's wheels contain no headers, so functions are called by their slot in the OrtApi table. Slots do not
// change after a release ("The ordering of these fields MUST not change", onnxruntime_c_api.h).
// tests/packaging/test_abi.py compares every number below with the real header if ORT_INCLUDE_DIR names one.
#pragma once

#include <cstddef>
#include <cstdint>

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

// OrtApi is a table of function pointers.
struct OrtApi {
  void (*slots[1])(void);
};

struct OrtApiBase {
  const OrtApi* (*GetApi)(uint32_t version);  // null for a version newer than the runtime
  const char* (*GetVersionString)();
};

// Everything used here exists since API version 17 (ONNX Runtime 1.17), except for
// GetTensorElementTypeAndShapeDataReference, which saves an allocation per input. It exists since 24 and is called only
// then.
constexpr uint32_t kOrtApiVersion = 17;

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
  ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32 = 6,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16 = 10,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16 = 16,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT4 = 21,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_INT4 = 22,
};

// Members are in the order of the header. `version` determines which of them the runtime reads.
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

// X(name, slot, result, parameters) for each function of OrtApi that is called.
#define ORT_DYNQ_API_FUNCTIONS(X)                                                                                   \
  X(CreateStatus, 0, OrtStatus*, (OrtErrorCode code, const char* message))                                          \
  X(GetErrorMessage, 2, const char*, (const OrtStatus*))                                                            \
  X(CreateCustomOpDomain, 26, OrtStatus*, (const char* name, OrtCustomOpDomain**))                                  \
  X(CustomOpDomain_Add, 27, OrtStatus*, (OrtCustomOpDomain*, const OrtCustomOp*))                                   \
  X(AddCustomOpDomain, 28, OrtStatus*, (OrtSessionOptions*, OrtCustomOpDomain*))                                    \
  X(GetTensorMutableData, 51, OrtStatus*, (OrtValue*, void** data))                                                 \
  X(CreateTensorTypeAndShapeInfo, 57, OrtStatus*, (OrtTensorTypeAndShapeInfo**))                                    \
  X(SetTensorElementType, 58, OrtStatus*, (OrtTensorTypeAndShapeInfo*, ONNXTensorElementDataType))                  \
  X(SetDimensions, 59, OrtStatus*, (OrtTensorTypeAndShapeInfo*, const int64_t* dims, size_t count))                 \
  X(GetTensorElementType, 60, OrtStatus*, (const OrtTensorTypeAndShapeInfo*, ONNXTensorElementDataType*))           \
  X(GetDimensionsCount, 61, OrtStatus*, (const OrtTensorTypeAndShapeInfo*, size_t*))                                \
  X(GetDimensions, 62, OrtStatus*, (const OrtTensorTypeAndShapeInfo*, int64_t* dims, size_t count))                 \
  X(GetSymbolicDimensions, 63, OrtStatus*, (const OrtTensorTypeAndShapeInfo*, const char** names, size_t count))    \
  X(GetTensorTypeAndShape, 65, OrtStatus*, (const OrtValue*, OrtTensorTypeAndShapeInfo**))                          \
  X(KernelInfoGetAttribute_int64, 86, OrtStatus*, (const OrtKernelInfo*, const char* name, int64_t*))               \
  X(KernelInfoGetAttribute_string, 87, OrtStatus*, (const OrtKernelInfo*, const char* name, char*, size_t*))        \
  X(KernelContext_GetInputCount, 88, OrtStatus*, (const OrtKernelContext*, size_t*))                                \
  X(KernelContext_GetInput, 90, OrtStatus*, (const OrtKernelContext*, size_t index, const OrtValue**))              \
  X(KernelContext_GetOutput, 91, OrtStatus*, (OrtKernelContext*, size_t index, const int64_t*, size_t, OrtValue**)) \
  X(ReleaseStatus, 93, void, (OrtStatus*))                                                                          \
  X(ReleaseTensorTypeAndShapeInfo, 99, void, (OrtTensorTypeAndShapeInfo*))                                          \
  X(KernelInfoGetAttributeArray_int64, 163, OrtStatus*,                                                             \
    (const OrtKernelInfo*, const char* name, int64_t* values, size_t* count))                                       \
  X(ShapeInferContext_GetInputCount, 267, OrtStatus*, (const OrtShapeInferContext*, size_t*))                       \
  X(ShapeInferContext_GetInputTypeShape, 268, OrtStatus*,                                                           \
    (const OrtShapeInferContext*, size_t index, OrtTensorTypeAndShapeInfo**))                                       \
  X(ShapeInferContext_GetAttribute, 269, OrtStatus*, (const OrtShapeInferContext*, const char*, const OrtOpAttr**)) \
  X(ShapeInferContext_SetOutputTypeShape, 270, OrtStatus*,                                                          \
    (const OrtShapeInferContext*, size_t index, const OrtTensorTypeAndShapeInfo*))                                  \
  X(SetSymbolicDimensions, 271, OrtStatus*, (OrtTensorTypeAndShapeInfo*, const char** names, size_t count))         \
  X(ReadOpAttr, 272, OrtStatus*, (const OrtOpAttr*, OrtOpAttrType, void* data, size_t length, size_t* written))     \
  X(KernelContext_ParallelFor, 274, OrtStatus*,                                                                     \
    (const OrtKernelContext*, void (*function)(void*, size_t), size_t total, size_t batches, void* data))           \
  X(GetTensorElementTypeAndShapeDataReference, 414, OrtStatus*,                                                     \
    (const OrtValue*, ONNXTensorElementDataType*, const int64_t** dims, size_t* rank))

// Calls through the table: `ort::GetDimensionsCount(api, info, &count)`.
namespace ort {
#define ORT_DYNQ_DEFINE_CALL(name, slot, result, parameters)                       \
  constexpr size_t k##name##Slot = slot;                                           \
  template <class... Arguments>                                                    \
  result name(const OrtApi* api, Arguments... arguments) {                         \
    return reinterpret_cast<result(*) parameters>(api->slots[slot])(arguments...); \
  }
ORT_DYNQ_API_FUNCTIONS(ORT_DYNQ_DEFINE_CALL)
#undef ORT_DYNQ_DEFINE_CALL
}  // namespace ort
