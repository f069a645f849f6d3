// The collectives of the stand-in for NCCL.
#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "communicators.h"
#include "device/cuda/nccl.h"
#include "elements.h"
#include "group.h"
#include "injection.h"

using namespace perseus;           // NOLINT: the exported functions belong to no namespace
using namespace perseus::standin;  // NOLINT

namespace {

// Reductions that programs have created; their numbers start at kFirstScaledSum.
class ScaledSums {
 public:
  static ScaledSums& get() {
    static ScaledSums& sums = *new ScaledSums;
    return sums;
  }

  int add(double factor) {
    std::lock_guard lock(mutex_);
    factors_[next_] = factor;
    return next_++;
  }
  // Replaces such a reduction by the plain sum and its factor.
  bool resolve(Collective& collective) {
    std::lock_guard lock(mutex_);
    const auto found = factors_.find(collective.op);
    if (found == factors_.end()) return collective.op < kFirstScaledSum;
    collective.op = kNcclSum;
    collective.factor = found->second;
    return true;
  }
  bool remove(int op) {
    std::lock_guard lock(mutex_);
    return factors_.erase(op) > 0;
  }

 private:
  static constexpr int kFirstScaledSum = 16;
  std::mutex mutex_;
  int next_ = kFirstScaledSum;
  std::map<int, double> factors_;
};

NcclResult submit(Collective collective, NcclHandle comm, CuStream stream) {
  auto communicator = Communicators::get().find(comm);
  if (!communicator || !ScaledSums::get().resolve(collective) ||
      size_of_nccl_type(collective.type) == 0 || name_of_nccl_op(collective.op) == nullptr ||
      collective.root < 0 || collective.root >= communicator->ranks) {
    return kNcclInvalidArgument;
  }
  for (const Message& each : collective.messages) {
    if (each.peer < 0 || each.peer >= communicator->ranks || size_of_nccl_type(each.type) == 0) {
      return kNcclInvalidArgument;
    }
  }
  // As NCCL does for a communicator that is still connecting.
  if (communicator->error() == kNcclInProgress) return kNcclInvalidArgument;
  const auto touched = collective.accesses(communicator->rank, communicator->ranks);
  collective.is_registered = std::all_of(touched.begin(), touched.end(), [&](const Access& access) {
    return communicator->is_registered(access.address, access.bytes);
  });
  Group::of_this_thread().add(std::move(communicator), std::move(collective), stream);
  return kNcclSuccess;
}

NcclResult submit(Message message, NcclHandle comm, CuStream stream) {
  return submit(
      {.kind = Collective::Kind::kMessages, .name = "ncclSend or ncclRecv", .messages = {message}},
      comm, stream);
}

}  // namespace

extern "C" {

PERSEUS_STANDIN_API const char* ncclGetErrorString(NcclResult error) {
  switch (error) {
    case kNcclSuccess: return "no error";
    case kNcclUnhandledCudaError: return "unhandled cuda error";
    case kNcclSystemError: return "unhandled system error";
    case 3: return "internal error";
    case kNcclInvalidArgument: return "invalid argument";
    case kNcclInvalidUsage: return "invalid usage";
    case kNcclRemoteError: return "remote process exited or there was a network error";
    case kNcclInProgress: return "NCCL operation in progress";
    default: return "unknown result code";
  }
}

PERSEUS_STANDIN_API NcclResult ncclGroupStart() {
  if (const int error = injected(__func__)) return error;
  Group::of_this_thread().start();
  return kNcclSuccess;
}

PERSEUS_STANDIN_API NcclResult ncclGroupEnd() {
  if (const int error = injected(__func__)) return error;
  return Group::of_this_thread().end();
}

PERSEUS_STANDIN_API NcclResult ncclAllReduce(const void* source, void* target, size_t count,
                                             int type, int op, NcclHandle comm, CuStream stream) {
  if (const int error = injected(__func__)) return error;
  return submit({.kind = Collective::Kind::kAllReduce,
                 .name = __func__,
                 .source = source,
                 .target = target,
                 .count = count,
                 .type = type,
                 .op = op},
                comm, stream);
}

PERSEUS_STANDIN_API NcclResult ncclBroadcast(const void* source, void* target, size_t count,
                                             int type, int root, NcclHandle comm, CuStream stream) {
  if (const int error = injected(__func__)) return error;
  return submit({.kind = Collective::Kind::kBroadcast,
                 .name = __func__,
                 .source = source,
                 .target = target,
                 .count = count,
                 .type = type,
                 .root = root},
                comm, stream);
}

PERSEUS_STANDIN_API NcclResult ncclReduceScatter(const void* source, void* target,
                                                 size_t count_of_each, int type, int op,
                                                 NcclHandle comm, CuStream stream) {
  if (const int error = injected(__func__)) return error;
  return submit({.kind = Collective::Kind::kReduceScatter,
                 .name = __func__,
                 .source = source,
                 .target = target,
                 .count = count_of_each,
                 .type = type,
                 .op = op},
                comm, stream);
}

PERSEUS_STANDIN_API NcclResult ncclAllGather(const void* source, void* target, size_t count_of_each,
                                             int type, NcclHandle comm, CuStream stream) {
  if (const int error = injected(__func__)) return error;
  return submit({.kind = Collective::Kind::kAllGather,
                 .name = __func__,
                 .source = source,
                 .target = target,
                 .count = count_of_each,
                 .type = type},
                comm, stream);
}

PERSEUS_STANDIN_API NcclResult ncclRedOpCreatePreMulSum(int* op, void* scalar, int type,
                                                        int residence, NcclHandle comm) {
  if (const int error = injected(__func__)) return error;
  if (!Communicators::get().find(comm) || residence != kNcclScalarOfHost) {
    return kNcclInvalidArgument;
  }
  *op = ScaledSums::get().add(nccl_scalar(type, scalar));
  return kNcclSuccess;
}

PERSEUS_STANDIN_API NcclResult ncclRedOpDestroy(int op, NcclHandle comm) {
  if (const int error = injected(__func__)) return error;
  const bool is_known = Communicators::get().find(comm) != nullptr && ScaledSums::get().remove(op);
  return is_known ? kNcclSuccess : kNcclInvalidArgument;
}

PERSEUS_STANDIN_API NcclResult ncclSend(const void* source, size_t count, int type, int peer,
                                        NcclHandle comm, CuStream stream) {
  if (const int error = injected(__func__)) return error;
  return submit(Message{true, const_cast<void*>(source), count, type, peer}, comm, stream);
}

PERSEUS_STANDIN_API NcclResult ncclRecv(void* target, size_t count, int type, int peer,
                                        NcclHandle comm, CuStream stream) {
  if (const int error = injected(__func__)) return error;
  return submit(Message{false, target, count, type, peer}, comm, stream);
}

}  // extern "C"
