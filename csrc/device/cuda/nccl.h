// The functions of NCCL that Perseus calls, as one table; see driver.h. The numbers are those of
// NCCL's binary interface. NVIDIA's "NCCL Documentation" says what each does.
#pragma once

#include <climits>
#include <cstddef>

#include "device/cuda/driver.h"

namespace perseus {

using NcclResult = int;
using NcclHandle = struct NcclCommObject*;
struct NcclUniqueId {
  char bytes[128];
};

inline constexpr NcclResult kNcclSuccess = 0;
inline constexpr NcclResult kNcclInProgress = 7;

// ncclDataType_t
inline constexpr int kNcclInt8 = 0, kNcclUint8 = 1, kNcclInt32 = 2, kNcclInt64 = 4,
                     kNcclFloat16 = 6, kNcclFloat32 = 7, kNcclFloat64 = 8, kNcclBfloat16 = 9;
// ncclRedOp_t
inline constexpr int kNcclSum = 0, kNcclProduct = 1, kNcclMax = 2, kNcclMin = 3;

// ncclScalarHostImmediate
inline constexpr int kNcclScalarOfHost = 1;

// ncclConfig_t as of 2.14 with the fields of later versions up to 2.18; NCCL takes the older layout
// of any, which `size` and `version` tell.
struct NcclConfig {
  size_t size = sizeof(NcclConfig);
  unsigned magic = 0xcafebeef;
  unsigned version = 21800;
  int blocking = INT_MIN;  // INT_MIN: undefined, as NCCL's own initializer has it
  int cga_cluster_size = INT_MIN;
  int min_ctas = INT_MIN;
  int max_ctas = INT_MIN;
  const char* net_name = nullptr;
  int split_share = INT_MIN;
};

// X(member, name in the library, parameters); all return a NcclResult.
#define PERSEUS_NCCL_FUNCTIONS(X)                                                               \
  X(version, ncclGetVersion, (int* version))                                                    \
  X(unique_id, ncclGetUniqueId, (NcclUniqueId * id))                                            \
  X(init_rank, ncclCommInitRankConfig,                                                          \
    (NcclHandle * comm, int ranks, NcclUniqueId id, int rank, NcclConfig* config))              \
  X(finalize, ncclCommFinalize, (NcclHandle comm))                                              \
  X(destroy, ncclCommDestroy, (NcclHandle comm))                                                \
  X(abort, ncclCommAbort, (NcclHandle comm))                                                    \
  X(async_error, ncclCommGetAsyncError, (NcclHandle comm, NcclResult * error))                  \
  X(group_start, ncclGroupStart, ())                                                            \
  X(group_end, ncclGroupEnd, ())                                                                \
  X(all_reduce, ncclAllReduce,                                                                  \
    (const void* source, void* target, size_t count, int type, int op, NcclHandle comm,         \
     CuStream stream))                                                                          \
  X(broadcast, ncclBroadcast,                                                                   \
    (const void* source, void* target, size_t count, int type, int root, NcclHandle comm,       \
     CuStream stream))                                                                          \
  X(reduce_scatter, ncclReduceScatter,                                                          \
    (const void* source, void* target, size_t count_of_each, int type, int op, NcclHandle comm, \
     CuStream stream))                                                                          \
  X(all_gather, ncclAllGather,                                                                  \
    (const void* source, void* target, size_t count_of_each, int type, NcclHandle comm,         \
     CuStream stream))                                                                          \
  X(create_premul_sum, ncclRedOpCreatePreMulSum,                                                \
    (int* op, void* scalar, int type, int residence, NcclHandle comm))                          \
  X(destroy_op, ncclRedOpDestroy, (int op, NcclHandle comm))                                    \
  X(send, ncclSend,                                                                             \
    (const void* source, size_t count, int type, int peer, NcclHandle comm, CuStream stream))   \
  X(receive, ncclRecv,                                                                          \
    (void* target, size_t count, int type, int peer, NcclHandle comm, CuStream stream))

// Calls for one communicator from one thread at a time.
struct Nccl {
#define PERSEUS_MEMBER(member, name, parameters) NcclResult(*member) parameters = nullptr;
  PERSEUS_NCCL_FUNCTIONS(PERSEUS_MEMBER)
#undef PERSEUS_MEMBER
  const char* (*error_text)(NcclResult error) = nullptr;  // ncclGetErrorString
};

}  // namespace perseus
