// MXNet's C API for arrays and its dependency engine (mxnet/c_api.h), looked up in the process:
// building this needs nothing from MXNet.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "dlpack/abi.h"

namespace perseus::mxnet {

using NDArrayHandle = void*;

// Context: the device on which a function of the engine runs.
struct Context {
  int32_t device_type = 1;  // the CPU
  int32_t device_id = 0;
};

// FnProperty::kCPUPrioritized: on threads that compute nothing, so that a call does not wait until
// a layer has been computed.
inline constexpr int kOnPrioritizedThread = 3;

// dmlc::Error, which adds nothing to its base.
struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// engine::CallbackOnComplete: tells the engine, from any thread, that an operation is complete. It
// has no C interface; find_api verifies this layout.
struct OnComplete {
  void (*callback)(void* engine, void* operation, const Error* error);
  void* engine;
  void* operation;

  void operator()(const Error* error) const { callback(engine, operation, error); }
};

// The function that the engine runs once the arrays are ready. The first argument is the
// RunContext, the second an OnComplete that is valid only during the call.
using AsyncFunction = void (*)(void* run_context, void* on_complete, void* parameter);

// X(name, parameters). Each returns 0, or -1 with a message from MXGetLastError.
#define PERSEUS_MXNET_FUNCTIONS(X)                                                            \
  X(MXGetVersion, (int* version))                                                             \
  X(MXNDArrayFree, (NDArrayHandle))                                                           \
  X(MXShallowCopyNDArray, (NDArrayHandle, NDArrayHandle * copy))                              \
  X(MXNDArrayWaitToRead, (NDArrayHandle))                                                     \
  X(MXNDArrayToDLPack, (NDArrayHandle, dlpack::ManagedTensor * *tensor))                      \
  X(MXNDArrayFromDLPackEx, (dlpack::ManagedTensor*, bool transient, NDArrayHandle*))          \
  X(MXNDArrayCallDLPackDeleter, (dlpack::ManagedTensor*))                                     \
  X(MXNDArrayCreateEx, (const uint32_t* shape, uint32_t rank, int device_type, int device_id, \
                        int delay_allocation, int dtype, NDArrayHandle*))                     \
  X(MXNDArrayAt, (NDArrayHandle, uint32_t index, NDArrayHandle* view))                        \
  X(MXEnginePushAsyncND,                                                                      \
    (AsyncFunction, void* parameter, void (*free)(void* parameter), const Context*,           \
     NDArrayHandle* read, int read_count, NDArrayHandle* written, int written_count,          \
     const int* property, int priority, const char* name, bool is_wait))

struct Api {
#define PERSEUS_MEMBER(name, parameters) int(*name) parameters = nullptr;
  PERSEUS_MXNET_FUNCTIONS(PERSEUS_MEMBER)
#undef PERSEUS_MEMBER
  const char* (*MXGetLastError)() = nullptr;
  // oneDNN keeps some arrays in layouts of its own, such as weights once the network has been used
  // for inference. These two bring them back; the C API has them only for callers that may wait for
  // other operations. Null if MXNet has no such function.
  // NDArray::Chunk::Reorder2Default(): for an array that nobody else is using.
  void (*to_default_layout)(const void* chunk) = nullptr;
  // NDArray::Reorder2Default() const: makes an NDArray, in memory of kNDArrayBytes.
  void (*make_default_copy)(void* memory, NDArrayHandle array) = nullptr;
};

// More than an NDArray takes.
inline constexpr size_t kNDArrayBytes = 1024;

// The API of the process's MXNet, once find_api has found it.
const Api& api();
// Looks the API up in the library at this path, which must be loaded. Returns "", or what is wrong
// with it.
std::string find_api(const char* path);

// Returns the address of an array's NDArray::Chunk. The engine sees arrays with the same chunk,
// such as an array and its slices, as one. An NDArray begins with this pointer; find_api verifies
// that.
inline const void* chunk_of(NDArrayHandle array) { return *static_cast<const void* const*>(array); }

}  // namespace perseus::mxnet
