// The functions of ONNX Runtime's C API in the order of struct OrtApi: names only, up to the last one that is called.
//
// The names are the interface of onnxruntime_c_api.h (Copyright (c) Microsoft Corporation, MIT License). Their order
// never changes: "The ordering of these fields MUST not change after that version has shipped". ONNX Runtime asserts
// the slot of the last function of each version of its API; the same numbers stand below the list, so that no build
// accepts a list that lacks a name. tests/packaging/test_abi.py compares all names with a header, if there is one.
#pragma once

namespace ort_slot {

// clang-format off
enum Slot {
  // version 1
  CreateStatus, GetErrorCode, GetErrorMessage, CreateEnv, CreateEnvWithCustomLogger, EnableTelemetryEvents,
  DisableTelemetryEvents, CreateSession, CreateSessionFromArray, Run, CreateSessionOptions, SetOptimizedModelFilePath,
  CloneSessionOptions, SetSessionExecutionMode, EnableProfiling, DisableProfiling, EnableMemPattern,
  DisableMemPattern, EnableCpuMemArena, DisableCpuMemArena, SetSessionLogId, SetSessionLogVerbosityLevel,
  SetSessionLogSeverityLevel, SetSessionGraphOptimizationLevel, SetIntraOpNumThreads, SetInterOpNumThreads,
  CreateCustomOpDomain, CustomOpDomain_Add, AddCustomOpDomain, RegisterCustomOpsLibrary, SessionGetInputCount,
  SessionGetOutputCount, SessionGetOverridableInitializerCount, SessionGetInputTypeInfo, SessionGetOutputTypeInfo,
  SessionGetOverridableInitializerTypeInfo, SessionGetInputName, SessionGetOutputName,
  SessionGetOverridableInitializerName, CreateRunOptions, RunOptionsSetRunLogVerbosityLevel,
  RunOptionsSetRunLogSeverityLevel, RunOptionsSetRunTag, RunOptionsGetRunLogVerbosityLevel,
  RunOptionsGetRunLogSeverityLevel, RunOptionsGetRunTag, RunOptionsSetTerminate, RunOptionsUnsetTerminate,
  CreateTensorAsOrtValue, CreateTensorWithDataAsOrtValue, IsTensor, GetTensorMutableData, FillStringTensor,
  GetStringTensorDataLength, GetStringTensorContent, CastTypeInfoToTensorInfo, GetOnnxTypeFromTypeInfo,
  CreateTensorTypeAndShapeInfo, SetTensorElementType, SetDimensions, GetTensorElementType, GetDimensionsCount,
  GetDimensions, GetSymbolicDimensions, GetTensorShapeElementCount, GetTensorTypeAndShape, GetTypeInfo, GetValueType,
  CreateMemoryInfo, CreateCpuMemoryInfo, CompareMemoryInfo, MemoryInfoGetName, MemoryInfoGetId, MemoryInfoGetMemType,
  MemoryInfoGetType, AllocatorAlloc, AllocatorFree, AllocatorGetInfo, GetAllocatorWithDefaultOptions,
  AddFreeDimensionOverride, GetValue, GetValueCount, CreateValue, CreateOpaqueValue, GetOpaqueValue,
  KernelInfoGetAttribute_float, KernelInfoGetAttribute_int64, KernelInfoGetAttribute_string,
  KernelContext_GetInputCount, KernelContext_GetOutputCount, KernelContext_GetInput, KernelContext_GetOutput,
  ReleaseEnv, ReleaseStatus, ReleaseMemoryInfo, ReleaseSession, ReleaseValue, ReleaseRunOptions, ReleaseTypeInfo,
  ReleaseTensorTypeAndShapeInfo, ReleaseSessionOptions, ReleaseCustomOpDomain,
  // version 2
  GetDenotationFromTypeInfo, CastTypeInfoToMapTypeInfo, CastTypeInfoToSequenceTypeInfo, GetMapKeyType,
  GetMapValueType, GetSequenceElementType, ReleaseMapTypeInfo, ReleaseSequenceTypeInfo, SessionEndProfiling,
  SessionGetModelMetadata, ModelMetadataGetProducerName, ModelMetadataGetGraphName, ModelMetadataGetDomain,
  ModelMetadataGetDescription, ModelMetadataLookupCustomMetadataMap, ModelMetadataGetVersion, ReleaseModelMetadata,
  // version 3
  CreateEnvWithGlobalThreadPools, DisablePerSessionThreads, CreateThreadingOptions, ReleaseThreadingOptions,
  ModelMetadataGetCustomMetadataMapKeys, AddFreeDimensionOverrideByName,
  // version 4
  GetAvailableProviders, ReleaseAvailableProviders,
  // version 5
  GetStringTensorElementLength, GetStringTensorElement, FillStringTensorElement, AddSessionConfigEntry,
  CreateAllocator, ReleaseAllocator, RunWithBinding, CreateIoBinding, ReleaseIoBinding, BindInput, BindOutput,
  BindOutputToDevice, GetBoundOutputNames, GetBoundOutputValues, ClearBoundInputs, ClearBoundOutputs, TensorAt,
  CreateAndRegisterAllocator, SetLanguageProjection, SessionGetProfilingStartTimeNs, SetGlobalIntraOpNumThreads,
  SetGlobalInterOpNumThreads, SetGlobalSpinControl,
  // version 6
  AddInitializer, CreateEnvWithCustomLoggerAndGlobalThreadPools, SessionOptionsAppendExecutionProvider_CUDA,
  SessionOptionsAppendExecutionProvider_ROCM, SessionOptionsAppendExecutionProvider_OpenVINO, SetGlobalDenormalAsZero,
  CreateArenaCfg, ReleaseArenaCfg,
  // version 7
  ModelMetadataGetGraphDescription, SessionOptionsAppendExecutionProvider_TensorRT, SetCurrentGpuDeviceId,
  GetCurrentGpuDeviceId,
  // version 8
  KernelInfoGetAttributeArray_float, KernelInfoGetAttributeArray_int64, CreateArenaCfgV2, AddRunConfigEntry,
  CreatePrepackedWeightsContainer, ReleasePrepackedWeightsContainer, CreateSessionWithPrepackedWeightsContainer,
  CreateSessionFromArrayWithPrepackedWeightsContainer,
  // version 9
  SessionOptionsAppendExecutionProvider_TensorRT_V2, CreateTensorRTProviderOptions, UpdateTensorRTProviderOptions,
  GetTensorRTProviderOptionsAsString, ReleaseTensorRTProviderOptions, EnableOrtCustomOps, RegisterAllocator,
  UnregisterAllocator, IsSparseTensor, CreateSparseTensorAsOrtValue, FillSparseTensorCoo, FillSparseTensorCsr,
  FillSparseTensorBlockSparse, CreateSparseTensorWithValuesAsOrtValue, UseCooIndices, UseCsrIndices,
  UseBlockSparseIndices, GetSparseTensorFormat, GetSparseTensorValuesTypeAndShape, GetSparseTensorValues,
  GetSparseTensorIndicesTypeShape, GetSparseTensorIndices,
  // version 10
  HasValue, KernelContext_GetGPUComputeStream, GetTensorMemoryInfo, GetExecutionProviderApi,
  SessionOptionsSetCustomCreateThreadFn, SessionOptionsSetCustomThreadCreationOptions,
  SessionOptionsSetCustomJoinThreadFn, SetGlobalCustomCreateThreadFn, SetGlobalCustomThreadCreationOptions,
  SetGlobalCustomJoinThreadFn, SynchronizeBoundInputs, SynchronizeBoundOutputs,
  // version 11
  SessionOptionsAppendExecutionProvider_CUDA_V2, CreateCUDAProviderOptions, UpdateCUDAProviderOptions,
  GetCUDAProviderOptionsAsString, ReleaseCUDAProviderOptions, SessionOptionsAppendExecutionProvider_MIGraphX,
  // version 12
  AddExternalInitializers, CreateOpAttr, ReleaseOpAttr, CreateOp, InvokeOp, ReleaseOp,
  SessionOptionsAppendExecutionProvider, CopyKernelInfo, ReleaseKernelInfo,
  // version 13
  GetTrainingApi, SessionOptionsAppendExecutionProvider_CANN, CreateCANNProviderOptions, UpdateCANNProviderOptions,
  GetCANNProviderOptionsAsString, ReleaseCANNProviderOptions,
  // version 14
  MemoryInfoGetDeviceType, UpdateEnvWithCustomLogLevel, SetGlobalIntraOpThreadAffinity, RegisterCustomOpsLibrary_V2,
  RegisterCustomOpsUsingFunction, KernelInfo_GetInputCount, KernelInfo_GetOutputCount, KernelInfo_GetInputName,
  KernelInfo_GetOutputName, KernelInfo_GetInputTypeInfo, KernelInfo_GetOutputTypeInfo, KernelInfoGetAttribute_tensor,
  HasSessionConfigEntry, GetSessionConfigEntry,
  // version 15
  SessionOptionsAppendExecutionProvider_Dnnl, CreateDnnlProviderOptions, UpdateDnnlProviderOptions,
  GetDnnlProviderOptionsAsString, ReleaseDnnlProviderOptions, KernelInfo_GetNodeName, KernelInfo_GetLogger,
  KernelContext_GetLogger, Logger_LogMessage, Logger_GetLoggingSeverityLevel, KernelInfoGetConstantInput_tensor,
  CastTypeInfoToOptionalTypeInfo, GetOptionalContainedTypeInfo, GetResizedStringTensorElementBuffer,
  KernelContext_GetAllocator, GetBuildInfoString,
  // version 16
  CreateROCMProviderOptions, UpdateROCMProviderOptions, GetROCMProviderOptionsAsString, ReleaseROCMProviderOptions,
  CreateAndRegisterAllocatorV2, RunAsync, UpdateTensorRTProviderOptionsWithValue, GetTensorRTProviderOptionsByName,
  UpdateCUDAProviderOptionsWithValue, GetCUDAProviderOptionsByName, KernelContext_GetResource,
  // version 17
  SetUserLoggingFunction, ShapeInferContext_GetInputCount, ShapeInferContext_GetInputTypeShape,
  ShapeInferContext_GetAttribute, ShapeInferContext_SetOutputTypeShape, SetSymbolicDimensions, ReadOpAttr,
  SetDeterministicCompute, KernelContext_ParallelFor, SessionOptionsAppendExecutionProvider_OpenVINO_V2,
  // version 18
  SessionOptionsAppendExecutionProvider_VitisAI, KernelContext_GetScratchBuffer, KernelInfoGetAllocator,
  AddExternalInitializersFromFilesInMemory,
  // version 20
  CreateLoraAdapter, CreateLoraAdapterFromArray, ReleaseLoraAdapter, RunOptionsAddActiveLoraAdapter,
  SetEpDynamicOptions,
  // version 22
  ReleaseValueInfo, ReleaseNode, ReleaseGraph, ReleaseModel, GetValueInfoName, GetValueInfoTypeInfo,
  GetModelEditorApi, CreateTensorWithDataAndDeleterAsOrtValue, SessionOptionsSetLoadCancellationFlag, GetCompileApi,
  CreateKeyValuePairs, AddKeyValuePair, GetKeyValue, GetKeyValuePairs, RemoveKeyValuePair, ReleaseKeyValuePairs,
  RegisterExecutionProviderLibrary, UnregisterExecutionProviderLibrary, GetEpDevices,
  SessionOptionsAppendExecutionProvider_V2, SessionOptionsSetEpSelectionPolicy,
  SessionOptionsSetEpSelectionPolicyDelegate, HardwareDevice_Type, HardwareDevice_VendorId, HardwareDevice_Vendor,
  HardwareDevice_DeviceId, HardwareDevice_Metadata, EpDevice_EpName, EpDevice_EpVendor, EpDevice_EpMetadata,
  EpDevice_EpOptions, EpDevice_Device, GetEpApi,
  // version 23
  GetTensorSizeInBytes, AllocatorGetStats, CreateMemoryInfo_V2, MemoryInfoGetDeviceMemType, MemoryInfoGetVendorId,
  ValueInfo_GetValueProducer, ValueInfo_GetValueNumConsumers, ValueInfo_GetValueConsumers,
  ValueInfo_GetInitializerValue, ValueInfo_GetExternalInitializerInfo, ValueInfo_IsRequiredGraphInput,
  ValueInfo_IsOptionalGraphInput, ValueInfo_IsGraphOutput, ValueInfo_IsConstantInitializer,
  ValueInfo_IsFromOuterScope, Graph_GetName, Graph_GetModelPath, Graph_GetOnnxIRVersion, Graph_GetNumOperatorSets,
  Graph_GetOperatorSets, Graph_GetNumInputs, Graph_GetInputs, Graph_GetNumOutputs, Graph_GetOutputs,
  Graph_GetNumInitializers, Graph_GetInitializers, Graph_GetNumNodes, Graph_GetNodes, Graph_GetParentNode,
  Graph_GetGraphView, Node_GetId, Node_GetName, Node_GetOperatorType, Node_GetDomain, Node_GetSinceVersion,
  Node_GetNumInputs, Node_GetInputs, Node_GetNumOutputs, Node_GetOutputs, Node_GetNumImplicitInputs,
  Node_GetImplicitInputs, Node_GetNumAttributes, Node_GetAttributes, Node_GetAttributeByName,
  OpAttr_GetTensorAttributeAsOrtValue, OpAttr_GetType, OpAttr_GetName, Node_GetNumSubgraphs, Node_GetSubgraphs,
  Node_GetGraph, Node_GetEpName, ReleaseExternalInitializerInfo, ExternalInitializerInfo_GetFilePath,
  ExternalInitializerInfo_GetFileOffset, ExternalInitializerInfo_GetByteSize, GetRunConfigEntry, EpDevice_MemoryInfo,
  CreateSharedAllocator, GetSharedAllocator, ReleaseSharedAllocator, GetTensorData, GetSessionOptionsConfigEntries,
  SessionGetMemoryInfoForInputs, SessionGetMemoryInfoForOutputs, SessionGetEpDeviceForInputs,
  CreateSyncStreamForEpDevice, SyncStream_GetHandle, ReleaseSyncStream, CopyTensors, Graph_GetModelMetadata,
  GetModelCompatibilityForEpDevices, CreateExternalInitializerInfo,
  // version 24
  TensorTypeAndShape_HasShape, KernelInfo_GetConfigEntries, KernelInfo_GetOperatorDomain, KernelInfo_GetOperatorType,
  KernelInfo_GetOperatorSinceVersion, GetInteropApi, SessionGetEpDeviceForOutputs, GetNumHardwareDevices,
  GetHardwareDevices, GetHardwareDeviceEpIncompatibilityDetails, DeviceEpIncompatibilityDetails_GetReasonsBitmask,
  DeviceEpIncompatibilityDetails_GetNotes, DeviceEpIncompatibilityDetails_GetErrorCode,
  ReleaseDeviceEpIncompatibilityDetails, GetCompatibilityInfoFromModel, GetCompatibilityInfoFromModelBytes,
  CreateEnvWithOptions, Session_GetEpGraphAssignmentInfo, EpAssignedSubgraph_GetEpName, EpAssignedSubgraph_GetNodes,
  EpAssignedNode_GetName, EpAssignedNode_GetDomain, EpAssignedNode_GetOperatorType, RunOptionsSetSyncStream,
  GetTensorElementTypeAndShapeDataReference,
};
// clang-format on

static_assert(ReleaseCustomOpDomain == 101, "the last function of version 1");
static_assert(ReleaseModelMetadata == 118, "the last function of version 2");
static_assert(AddFreeDimensionOverrideByName == 124, "the last function of version 3");
static_assert(ReleaseAvailableProviders == 126, "the last function of version 4");
static_assert(SetGlobalSpinControl == 149, "the last function of version 5");
static_assert(ReleaseArenaCfg == 157, "the last function of version 6");
static_assert(GetCurrentGpuDeviceId == 161, "the last function of version 7");
static_assert(CreateSessionFromArrayWithPrepackedWeightsContainer == 169, "the last function of version 8");
static_assert(GetSparseTensorIndices == 191, "the last function of version 9");
static_assert(SynchronizeBoundOutputs == 203, "the last function of version 10");
static_assert(SessionOptionsAppendExecutionProvider_MIGraphX == 209, "the last function of version 11");
static_assert(ReleaseKernelInfo == 218, "the last function of version 12");
static_assert(ReleaseCANNProviderOptions == 224, "the last function of version 13");
static_assert(GetSessionConfigEntry == 238, "the last function of version 14");
static_assert(GetBuildInfoString == 254, "the last function of version 15");
static_assert(KernelContext_GetResource == 265, "the last function of version 16");
static_assert(SessionOptionsAppendExecutionProvider_OpenVINO_V2 == 275, "the last function of version 17");
static_assert(AddExternalInitializersFromFilesInMemory == 279, "the last function of version 18");
static_assert(SetEpDynamicOptions == 284, "the last function of version 20");
static_assert(GetEpApi == 317, "the last function of version 22");
static_assert(CreateExternalInitializerInfo == 389, "the last function of version 23");
static_assert(GetTensorElementTypeAndShapeDataReference == 414, "the last function of version 24");

constexpr int kCount = GetTensorElementTypeAndShapeDataReference + 1;

}  // namespace ort_slot
