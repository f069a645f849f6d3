// MXNet's C API of arrays and of its dependency engine (mxnet/c_api.h), found in the process: to
// build this takes nothing of MXNet.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "dlpack/abi.h"

namespace perseus::mxnet {

using NDArrayHandle = void*;

// Context: where a function of the engine runs.
struct Context {
  int32_t device_type = 1;  // the CPU
  int32_t device_id = 0;
};

// FnProperty::kCPUPrioritized: on threads that compute nothing, so that what is handed over does
// not wait for a layer that is computed.
inline constexpr int kOnPrioritizedThread = 3;

// dmlc::Error, which adds nothing to its base.
struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// engine::CallbackOnComplete: tells the engine, from any thread, that an operation is complete. It
// has no C interface; find_api makes sure that this is what it looks like.
struct OnComplete {
  void (*callback)(void* engine, void* operation, const Error* error);
  void* engine;
  void* operation;

  void operator()(const Error* error) const { callback(engine, operation, error); }
};

// What the engine runs once the arrays are ready. The first is the RunContext, the second an
// OnComplete that lives only during the call.
using AsyncFunction = void (*)(void* run_context, void* on_complete, void* parameter);

// X(name, parameters); each gives 0, or -1 and a message from MXGetLastError.
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
  // Where MXNet computes by oneDNN, which keeps some arrays in layouts of its own: weights, once
  // the network has been used without training. The C API has these only for who may wait for other
  // operations. Null where there is no such function.
  // NDArray::Chunk::Reorder2Default(): of an array that nobody else uses.
  void (*to_default_layout)(const void* chunk) = nullptr;
  // NDArray::Reorder2Default() const: makes an NDArray, in memory of kNDArrayBytes.
  void (*make_default_copy)(void* memory, NDArrayHandle array) = nullptr;
};

// More than one takes.
inline constexpr size_t kNDArrayBytes = 1024;

// That of the process, once find_api has found it.
const Api& api();
// Of the library at this path, which is loaded. What is wrong with it; "" if nothing is.
std::string find_api(const char* path);

// What tells arrays apart that the engine sees as one: an array and its slices, say. The address of
// their NDArray::Chunk, which is what an NDArray holds first; find_api makes sure of that, too.
inline const void* chunk_of(NDArrayHandle array) { return *static_cast<const void* const*>(array); }

}  // namespace perseus::mxnet
