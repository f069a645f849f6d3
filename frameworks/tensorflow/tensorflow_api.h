// TensorFlow's C API for ops and kernels (tensorflow/c/{ops,kernels,tf_tensor,tf_status}.h), looked
// up in the process: building this needs nothing from TensorFlow, and it runs with every version
// that has these functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

extern "C" {
struct TF_Status;
struct TF_Tensor;
struct TF_OpDefinitionBuilder;
struct TF_ShapeHandle;
struct TF_ShapeInferenceContext;
struct TF_KernelBuilder;
struct TF_OpKernelConstruction;
struct TF_OpKernelContext;
// A std::function<void()>, whatever the header says: see kernels.cc.
struct TF_AsyncOpKernelDoneCallback;
struct TF_StringView {
  const char* data;
  size_t length;
};
}

namespace perseus::tensorflow {

// TF_Code
inline constexpr int kOk = 0, kUnknown = 2, kInvalidArgument = 3, kDeadlineExceeded = 4,
                     kResourceExhausted = 8, kFailedPrecondition = 9, kUnimplemented = 12,
                     kInternal = 13, kUnavailable = 14;

// TF_DataType
inline constexpr int kFloat = 1, kDouble = 2, kInt32 = 3, kUint8 = 4, kInt16 = 5, kInt8 = 6,
                     kInt64 = 9, kBool = 10, kBfloat16 = 14, kUint16 = 17, kHalf = 19;

// X(result, name, parameters)
#define PERSEUS_TENSORFLOW_FUNCTIONS(X)                                                            \
  X(TF_Status*, TF_NewStatus, ())                                                                  \
  X(void, TF_DeleteStatus, (TF_Status*))                                                           \
  X(void, TF_SetStatus, (TF_Status*, int code, const char* message))                               \
  X(int, TF_GetCode, (const TF_Status*))                                                           \
  X(const char*, TF_Message, (const TF_Status*))                                                   \
  X(TF_Tensor*, TF_NewTensor,                                                                      \
    (int dtype, const int64_t* shape, int rank, void* data, size_t bytes,                          \
     void (*free)(void* data, size_t bytes, void* user), void* user))                              \
  X(void, TF_DeleteTensor, (TF_Tensor*))                                                           \
  X(int, TF_TensorType, (const TF_Tensor*))                                                        \
  X(int, TF_NumDims, (const TF_Tensor*))                                                           \
  X(int64_t, TF_Dim, (const TF_Tensor*, int dimension))                                            \
  X(void*, TF_TensorData, (const TF_Tensor*))                                                      \
  X(TF_OpDefinitionBuilder*, TF_NewOpDefinitionBuilder, (const char* op))                          \
  X(void, TF_OpDefinitionBuilderAddAttr, (TF_OpDefinitionBuilder*, const char* spec))              \
  X(void, TF_OpDefinitionBuilderAddInput, (TF_OpDefinitionBuilder*, const char* spec))             \
  X(void, TF_OpDefinitionBuilderAddOutput, (TF_OpDefinitionBuilder*, const char* spec))            \
  X(void, TF_OpDefinitionBuilderSetIsStateful, (TF_OpDefinitionBuilder*, bool))                    \
  X(void, TF_OpDefinitionBuilderSetShapeInferenceFunction,                                         \
    (TF_OpDefinitionBuilder*, void (*infer)(TF_ShapeInferenceContext*, TF_Status*)))               \
  X(void, TF_RegisterOpDefinition, (TF_OpDefinitionBuilder*, TF_Status*))                          \
  X(int64_t, TF_ShapeInferenceContextNumInputs, (TF_ShapeInferenceContext*))                       \
  X(TF_ShapeHandle*, TF_NewShapeHandle, ())                                                        \
  X(void, TF_DeleteShapeHandle, (TF_ShapeHandle*))                                                 \
  X(void, TF_ShapeInferenceContextGetInput,                                                        \
    (TF_ShapeInferenceContext*, int index, TF_ShapeHandle*, TF_Status*))                           \
  X(void, TF_ShapeInferenceContextSetOutput,                                                       \
    (TF_ShapeInferenceContext*, int index, TF_ShapeHandle*, TF_Status*))                           \
  X(TF_ShapeHandle*, TF_ShapeInferenceContextScalar, (TF_ShapeInferenceContext*))                  \
  X(TF_ShapeHandle*, TF_ShapeInferenceContextVectorFromSize,                                       \
    (TF_ShapeInferenceContext*, size_t size))                                                      \
  X(int, TF_ShapeInferenceContextRankKnown, (TF_ShapeInferenceContext*, TF_ShapeHandle*))          \
  X(int64_t, TF_ShapeInferenceContextRank, (TF_ShapeInferenceContext*, TF_ShapeHandle*))           \
  X(void, TF_ShapeInferenceContextSubshape,                                                        \
    (TF_ShapeInferenceContext*, TF_ShapeHandle*, int64_t begin, int64_t end, TF_ShapeHandle* made, \
     TF_Status*))                                                                                  \
  X(void, TF_ShapeInferenceContextConcatenateShapes,                                               \
    (TF_ShapeInferenceContext*, TF_ShapeHandle * first, TF_ShapeHandle * second,                   \
     TF_ShapeHandle * made, TF_Status*))                                                           \
  X(TF_KernelBuilder*, TF_NewKernelBuilder,                                                        \
    (const char* op, const char* device, void* (*create)(TF_OpKernelConstruction*),                \
     void (*compute)(void*, TF_OpKernelContext*), void (*destroy)(void*)))                         \
  X(TF_KernelBuilder*, TF_NewAsyncKernelBuilder,                                                   \
    (const char* op, const char* device, void* (*create)(TF_OpKernelConstruction*),                \
     void (*compute)(void*, TF_OpKernelContext*, TF_AsyncOpKernelDoneCallback*),                   \
     void (*destroy)(void*)))                                                                      \
  X(void, TF_KernelBuilder_HostMemory, (TF_KernelBuilder*, const char* argument))                  \
  X(void, TF_RegisterKernelBuilder, (const char* name, TF_KernelBuilder*, TF_Status*))             \
  X(void, TF_RunAsyncOpKernelDoneCallback, (TF_AsyncOpKernelDoneCallback*))                        \
  X(TF_StringView, TF_OpKernelConstruction_GetName, (TF_OpKernelConstruction*))                    \
  X(void, TF_OpKernelConstruction_GetAttrInt32,                                                    \
    (TF_OpKernelConstruction*, const char* name, int32_t* value, TF_Status*))                      \
  X(void, TF_OpKernelConstruction_GetAttrFloat,                                                    \
    (TF_OpKernelConstruction*, const char* name, float* value, TF_Status*))                        \
  X(void, TF_OpKernelConstruction_GetAttrBool,                                                     \
    (TF_OpKernelConstruction*, const char* name, unsigned char* value, TF_Status*))                \
  X(void, TF_OpKernelConstruction_GetAttrSize,                                                     \
    (TF_OpKernelConstruction*, const char* name, int32_t* list_size, int32_t* total_size,          \
     TF_Status*))                                                                                  \
  X(void, TF_OpKernelConstruction_GetAttrString,                                                   \
    (TF_OpKernelConstruction*, const char* name, char* value, size_t capacity, TF_Status*))        \
  X(void, TF_OpKernelConstruction_GetAttrInt32List,                                                \
    (TF_OpKernelConstruction*, const char* name, int32_t* values, int capacity, TF_Status*))       \
  X(void, TF_OpKernelConstruction_GetAttrStringList,                                               \
    (TF_OpKernelConstruction*, const char* name, char** values, size_t* lengths, int capacity,     \
     void* storage, size_t storage_size, TF_Status*))                                              \
  X(void, TF_OpKernelConstruction_Failure, (TF_OpKernelConstruction*, TF_Status*))                 \
  X(int, TF_NumInputs, (TF_OpKernelContext*))                                                      \
  X(void, TF_GetInput, (TF_OpKernelContext*, int index, TF_Tensor**, TF_Status*))                  \
  X(void, TF_SetOutput, (TF_OpKernelContext*, int index, const TF_Tensor*, TF_Status*))            \
  X(TF_Tensor*, TF_AllocateOutput,                                                                 \
    (TF_OpKernelContext*, int index, int dtype, const int64_t* shape, int rank, size_t bytes,      \
     TF_Status*))                                                                                  \
  X(TF_Tensor*, TF_ForwardInputOrAllocateOutput,                                                   \
    (TF_OpKernelContext*, const int* candidates, int candidate_count, int output,                  \
     const int64_t* shape, int rank, int* forwarded, TF_Status*))                                  \
  X(void, TF_OpKernelContext_Failure, (TF_OpKernelContext*, TF_Status*))

struct Api {
#define PERSEUS_MEMBER(result, name, parameters) result(*name) parameters = nullptr;
  PERSEUS_TENSORFLOW_FUNCTIONS(PERSEUS_MEMBER)
#undef PERSEUS_MEMBER
};

// The API of the process's TensorFlow, once find_api has found it.
const Api& api();
// Looks the API up. Returns "", or what is missing.
std::string find_api();

}  // namespace perseus::tensorflow
