// The functions of NCCL that Perseus calls, as one table: see driver.h. The numbers are those of
// NCCL's binary interface. NVIDIA's "NCCL Documentation" documents each function.
#pragma once

#include <climits>
#include <cstddef>
#include <type_traits>

#include "device/cuda/driver.h"

namespace perseus {

using NcclResult = int;
using NcclHandle = struct NcclCommObject*;
struct NcclUniqueId {
  char bytes[128];
};

inline constexpr NcclResult kNcclSuccess = 0;
inline constexpr NcclResult kNcclRemoteError = 6;  // of another rank, or of the network to it
inline constexpr NcclResult kNcclInProgress = 7;

// ncclDataType_t
inline constexpr int kNcclInt8 = 0, kNcclUint8 = 1, kNcclInt32 = 2, kNcclInt64 = 4,
                     kNcclFloat16 = 6, kNcclFloat32 = 7, kNcclFloat64 = 8, kNcclBfloat16 = 9;
// ncclRedOp_t
inline constexpr int kNcclSum = 0, kNcclProduct = 1, kNcclMax = 2, kNcclMin = 3;

// ncclScalarHostImmediate
inline constexpr int kNcclScalarOfHost = 1;
// NCCL_SHRINK_DEFAULT
inline constexpr int kNcclShrinkDefault = 0;

// NCCL_CTA_POLICY_EFFICIENCY and NCCL_CTA_POLICY_ZERO
inline constexpr int kNcclCtaEfficiency = 1, kNcclCtaZero = 2;

// ncclConfig_t, with the fields that versions have added one after another, up to the last one that
// is used here and what would else be padding. NCCL accepts older layouts, which it recognises by
// `size` and `version`: see NcclConfig::of.
struct NcclConfig {
  static constexpr int kUndefined = INT_MIN;  // as in NCCL's own initializer

  size_t size = sizeof(NcclConfig);
  unsigned magic = 0xcafebeef;
  unsigned version = 23100;
  int blocking = kUndefined;
  int cga_cluster_size = kUndefined;
  int min_ctas = kUndefined;
  int max_ctas = kUndefined;
  const char* net_name = nullptr;
  int split_share = kUndefined;
  // From 2.27 on.
  int traffic_class = kUndefined;
  const char* name = nullptr;
  int collnet_enable = kUndefined;
  int cta_policy = kUndefined;
  int shrink_share = kUndefined;
  int nvls_ctas = kUndefined;
  // From 2.28, 2.29, 2.30, 2.31 and 2.32 on.
  int channels_per_net_peer = kUndefined;
  int nvlink_centric = kUndefined;
  int graph_usage = kUndefined;
  int rma_contexts = kUndefined;
  int most_p2p_peers = kUndefined;
  int graph_stream_ordering = kUndefined;
  int launch_order_implicit = kUndefined;
  int rma_signals = kUndefined;

  // The layout for this version of NCCL.
  static NcclConfig of(int nccl_version);
};

// NCCL reads all `size` bytes. A later version has a field where there would be padding.
static_assert(std::has_unique_object_representations_v<NcclConfig>, "NcclConfig has padding");

// Versions as NCCL numbers them.
inline constexpr int kNcclWithCtaPolicy = 22700, kNcclWithCtaPolicyZero = 22800,
                     kNcclWithLaunchOrder = 23100;

inline NcclConfig NcclConfig::of(int nccl_version) {
  NcclConfig config;
  if (nccl_version < kNcclWithCtaPolicy) {
    config.size = offsetof(NcclConfig, traffic_class);
    config.version = 21800;
  } else if (nccl_version < kNcclWithLaunchOrder) {
    config.size = offsetof(NcclConfig, channels_per_net_peer);
    config.version = 22700;
  }
  return config;
}

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
    (void* target, size_t count, int type, int peer, NcclHandle comm, CuStream stream))         \
  X(split, ncclCommSplit,                                                                       \
    (NcclHandle comm, int color, int key, NcclHandle* made, NcclConfig* config))

// X(member, the first version that has it, name in the library, parameters); likewise. Null if the
// version found is older.
#define PERSEUS_NEWER_NCCL_FUNCTIONS(X)                                                         \
  X(allocate, 21900, ncclMemAlloc, (void** pointer, size_t bytes))                              \
  X(free, 21900, ncclMemFree, (void* pointer))                                                  \
  X(register_buffer, 21900, ncclCommRegister,                                                   \
    (NcclHandle comm, void* buffer, size_t bytes, void** registered))                           \
  X(deregister_buffer, 21900, ncclCommDeregister, (NcclHandle comm, void* registered))          \
  X(init_rank_with_ids, 22300, ncclCommInitRankScalable,                                        \
    (NcclHandle * comm, int ranks, int rank, int count, NcclUniqueId* ids, NcclConfig* config)) \
  X(shrink, 22700, ncclCommShrink,                                                              \
    (NcclHandle comm, int* excluded, int count, NcclHandle* made, NcclConfig* config, int flags))

// One communicator may be used by one thread at a time.
struct Nccl {
#define PERSEUS_MEMBER(member, name, parameters) NcclResult(*member) parameters = nullptr;
  PERSEUS_NCCL_FUNCTIONS(PERSEUS_MEMBER)
#undef PERSEUS_MEMBER
#define PERSEUS_MEMBER(member, since, name, parameters) NcclResult(*member) parameters = nullptr;
  PERSEUS_NEWER_NCCL_FUNCTIONS(PERSEUS_MEMBER)
#undef PERSEUS_MEMBER
  const char* (*error_text)(NcclResult error) = nullptr;  // ncclGetErrorString
};

}  // namespace perseus
