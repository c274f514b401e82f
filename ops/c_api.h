/* The operators without ONNX Runtime: what Python calls through ctypes, and other languages may. */
#ifndef ORT_DYNQ_C_API_H_
#define ORT_DYNQ_C_API_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
  int32_t type; /* ONNX's numbers: 1 float32, 2 uint8, 3 int8, 6 int32; 0 for an optional input that is absent */
  int32_t rank;
  const int64_t* dims;
  const void* data;
} ort_dynq_tensor;

typedef struct {
  const char* name;
  const char* text; /* null for an integer */
  int64_t integer;
} ort_dynq_attribute;

/* Memory for output `index`, of that type and shape; null if there is none. Called once for each output. */
typedef void* (*ort_dynq_allocate)(void* user, int32_t index, int32_t type, const int64_t* dims, int32_t rank);

/* Runs an operator on the calling thread. Returns 0, or 1 with a message in `error`. */
int ort_dynq_run(const char* op, const ort_dynq_attribute* attributes, int32_t attribute_count,
                 const ort_dynq_tensor* inputs, int32_t input_count, ort_dynq_allocate allocate, void* user,
                 char* error, size_t error_size);

/* The names of the operators, and of the instruction sets that this CPU runs, best first; null past the last. */
const char* ort_dynq_operator(size_t index);
const char* ort_dynq_supported_isa(size_t index);

/* The instruction set in use, for this process; null, with a message, if ORT_DYNQ_ISA names none that there is. */
const char* ort_dynq_isa(char* error, size_t error_size);

/* Switches to that instruction set, or with null back to the start's. Returns 0, or 1 with a message in `error`. */
int ort_dynq_select_isa(const char* name, char* error, size_t error_size);

#ifdef __cplusplus
}
#endif

#endif /* ORT_DYNQ_C_API_H_ */
