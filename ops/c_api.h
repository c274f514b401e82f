/* The operators without ONNX Runtime, for other languages. Python calls them through ctypes (ort_dynq/library.py). */
#ifndef ORT_DYNQ_C_API_H_
#define ORT_DYNQ_C_API_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A tensor. Its type is one of ONNX's numbers: 1 float32, 2 uint8, 3 int8, 6 int32, 10 float16, 16 bfloat16, 21 uint4,
   22 int4; 0 for an absent optional input. Two codes of 4 bits share a byte, the first in the low half: n codes take
   (n + 1) / 2 bytes. */
typedef struct {
  int32_t type;
  int32_t rank;
  const int64_t* dims;
  const void* data;
} ort_dynq_tensor;

/* An attribute. A list of integers is one attribute for each integer, all of the same name, in order. Attributes that
   the operator does not have are ignored. */
typedef struct {
  const char* name;
  const char* text; /* null for an integer */
  int64_t integer;
} ort_dynq_attribute;

/* Returns memory for output `index` of that type and shape, or null on failure. Called once for each output. The memory
   must not overlap an input: kernels may store an element twice. */
typedef void* (*ort_dynq_allocate)(void* user, int32_t index, int32_t type, const int64_t* dims, int32_t rank);

/* Runs an operator on the calling thread. Returns 0, or 1 with a message in `error`. */
int ort_dynq_run(const char* op, const ort_dynq_attribute* attributes, int32_t attribute_count,
                 const ort_dynq_tensor* inputs, int32_t input_count, ort_dynq_allocate allocate, void* user,
                 char* error, size_t error_size);

/* The version of the library. */
const char* ort_dynq_version(void);

/* The name of operator number `index`; null past the last. */
const char* ort_dynq_operator(size_t index);

/* The name of instruction set number `index` of those that this CPU supports, best first; null past the last. */
const char* ort_dynq_supported_isa(size_t index);

/* The name of the instruction set in use. Returns null, with a message in `error`, if ORT_DYNQ_ISA names one that this
   CPU does not support. */
const char* ort_dynq_isa(char* error, size_t error_size);

/* Switches the process to that instruction set, or with null back to the default. Returns 0, or 1 with a message in
   `error`. */
int ort_dynq_select_isa(const char* name, char* error, size_t error_size);

/* Which convolutions of 3x3 use Winograd's algorithm, for tests and measurements: 0 those that are faster with it, 1
   all that can, 2 none. Results are the same. */
void ort_dynq_select_winograd(int32_t use);

/* The same for matrix products that use Strassen's algorithm. */
void ort_dynq_select_strassen(int32_t use);

/* The same for convolutions that are computed as matrix products of the codes of each position. */
void ort_dynq_select_conv_rows(int32_t use);

/* Makes a program end with that message on stderr and that exit status when a file that it maps into memory was cut off
   (SIGBUS), instead of a crash. For programs, not for libraries: it replaces what the process does with the signal.
   Nothing on Windows, where mapped files cannot be cut off. */
void ort_dynq_exit_on_bus_error(const char* message, int32_t status);

#ifdef __cplusplus
}
#endif

#endif /* ORT_DYNQ_C_API_H_ */
