// Stand-ins for CUDA and NCCL where there is no GPU: libcuda.so.1, libcudart.so.13 and libnccl.so.2
// over plain memory, threads and sockets. A program under test finds them as it finds the real ones
// (LD_LIBRARY_PATH, or dlopen by their path). They are stricter than the real ones: a violation of
// the rules ends the process with a line "stand-in: ..." and abort().
//
// One of the rules: if two pieces of work on a process's streams access the same bytes and one of
// them writes, they must be ordered by events, or by a host that saw the first one done before it
// launched the second. The order follows from the calls, not from how the threads happened to run.
// All host threads of a process count as one, since the stand-in cannot see how they wait for each
// other.
//
// Environment variables, read once at the first need:
//   PERSEUS_STANDIN_GPUS=4            devices of this process
//   PERSEUS_STANDIN_SHARED=1          processes share the devices: the UUID is that of the ordinal
//   PERSEUS_STANDIN_DRIVER_VERSION=13000, _RUNTIME_VERSION=13000, _NCCL_VERSION=22900
//   PERSEUS_STANDIN_DELAY_US=N        work on a stream first sleeps for 0 to N microseconds,
//   PERSEUS_STANDIN_SEED=1            drawn with this seed
//   PERSEUS_STANDIN_FAIL=cuMemAlloc_v2:3=2,ncclAllReduce:*=1
//                                     the third call, or every one, does nothing and returns the
//                                     code
//   PERSEUS_STANDIN_COLLECTIVE=3=2    the third collective never ends, and ncclCommGetAsyncError
//                                     returns 2; 3=hang: no error
//   PERSEUS_STANDIN_ON_RANK=r         the two above count only where PERSEUS_RANK is r
//   PERSEUS_STANDIN_ONE_COLLECTIVE=1  a device runs one collective at a time, in launch order, as a
//                                     GPU may whose multiprocessors the first one fills
//   PERSEUS_STANDIN_CTA_POLICY=1      communicators must be made with it
//
// libcuda.so.1 exports the functions below for tests, which find them by dlsym. Any thread.
#pragma once

#include <stddef.h>

#define PERSEUS_STANDIN_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

// The host reads or writes these bytes now, which counts like work on a stream. Bytes that CUDA did
// not allocate are ignored.
PERSEUS_STANDIN_API void perseus_standin_host_reads(const void* bytes, size_t count);
PERSEUS_STANDIN_API void perseus_standin_host_writes(void* bytes, size_t count);

// Waits until all streams of the process have done their work, which the host then has seen.
PERSEUS_STANDIN_API void perseus_standin_synchronize(void);

// The stream does nothing further until it is released. Null: the current device's null stream.
PERSEUS_STANDIN_API void perseus_standin_hold(void* stream);
PERSEUS_STANDIN_API void perseus_standin_release(void* stream);

// Sets what cuStreamIsCapturing returns for the stream.
PERSEUS_STANDIN_API void perseus_standin_set_capturing(void* stream, int capturing);

// Returns how often the function has been called.
PERSEUS_STANDIN_API int perseus_standin_calls(const char* function);
// The nth call of the function from now (1: the next; 0: every one) returns `code`.
PERSEUS_STANDIN_API void perseus_standin_fail(const char* function, int nth_from_now, int code);
// The nth collective that is launched from now (a group's sends and receives are one) never ends
// until its communicator is aborted; its asynchronous error is `code`, or none.
PERSEUS_STANDIN_API void perseus_standin_fail_collective(int nth_from_now, int code);
PERSEUS_STANDIN_API void perseus_standin_hang_collective(int nth_from_now);

#ifdef __cplusplus
}
#endif
