#include "device/cuda/nccl_comm.h"

#include <algorithm>
#include <cstddef>
#include <thread>
#include <utility>

#include "device/cuda/cuda_error.h"

namespace perseus {
namespace {

// NCCL mostly needs a few microseconds, for which a thread should not sleep, or else waits for
// other ranks. So a thread yields for this long before it sleeps.
constexpr std::chrono::microseconds kSoon{100};
constexpr std::chrono::microseconds kPause{100};
// Ranks that end in order do so at nearly the same time; later ones are not waited for.
constexpr std::chrono::milliseconds kFarewell{500};
// The engine hears of another rank's failure within this time.
constexpr std::chrono::seconds kNewsOfOthers{1};
constexpr std::string_view kConnecting = "connecting with NCCL";

}  // namespace

Status nccl_status(const Nccl& nccl, NcclResult result, std::string_view what) {
  if (result == kNcclSuccess || result == kNcclInProgress) return {};
  return Status::internal(std::string(what) + " failed: NCCL says \"" + nccl.error_text(result) +
                          "\" (NCCL_DEBUG=WARN tells more)");
}

std::optional<int> nccl_type(DataType type) {
  switch (type) {
    case DataType::kInt8: return kNcclInt8;
    case DataType::kUint8: return kNcclUint8;
    case DataType::kInt32: return kNcclInt32;
    case DataType::kInt64: return kNcclInt64;
    case DataType::kFloat16: return kNcclFloat16;
    case DataType::kFloat32: return kNcclFloat32;
    case DataType::kFloat64: return kNcclFloat64;
    case DataType::kBfloat16: return kNcclBfloat16;
    default: return std::nullopt;
  }
}

std::optional<int> nccl_op(ReduceOp op) {
  switch (op) {
    case ReduceOp::kAverage:
    case ReduceOp::kSum: return kNcclSum;
    case ReduceOp::kMin: return kNcclMin;
    case ReduceOp::kMax: return kNcclMax;
    case ReduceOp::kProduct: return kNcclProduct;
    default: return std::nullopt;
  }
}

NcclComm::Made NcclComm::begin(const NcclSetup& setup, std::span<NcclUniqueId> ids, int index,
                               int size) {
  std::unique_ptr<NcclComm> made(new NcclComm(setup));
  NcclConfig config = setup.config;
  const Nccl& nccl = setup.nccl;
  const NcclResult result =
      ids.size() == 1 ? nccl.init_rank(&made->comm_, size, ids.front(), index, &config)
                      : nccl.init_rank_with_ids(&made->comm_, size, index,
                                                static_cast<int>(ids.size()), ids.data(), &config);
  PERSEUS_RETURN_IF_ERROR(nccl_status(nccl, result, kConnecting));
  return made;
}

NcclComm::Made NcclComm::split(int color, int key) {
  std::unique_ptr<NcclComm> made(new NcclComm(setup_));
  NcclConfig config = setup_.config;
  const NcclResult result = nccl().split(comm_, color, key, &made->comm_, &config);
  return finish_making(std::move(made), result);
}

NcclComm::Made NcclComm::shrink(std::vector<int> excluded) {
  std::unique_ptr<NcclComm> made(new NcclComm(setup_));
  NcclConfig config = setup_.config;
  const auto count = static_cast<int>(excluded.size());
  const NcclResult result =
      nccl().shrink(comm_, excluded.data(), count, &made->comm_, &config, kNcclShrinkDefault);
  return finish_making(std::move(made), result);
}

// The new communicator exists only after the call on the old one has ended.
NcclComm::Made NcclComm::finish_making(std::unique_ptr<NcclComm> made, NcclResult result) {
  PERSEUS_RETURN_IF_ERROR(nccl_status(nccl(), result, kConnecting));
  Status status = wait_until_connected();
  if (status.is_ok()) status = made->wait_until_connected();
  if (status.is_ok()) return made;
  unfinished_.push_back(std::move(made));
  return status;
}

Status NcclComm::wait_until_connected() const {
  return wait_until_settled(Clock::now() + setup_.patience, kConnecting);
}

Status NcclComm::wait_until_settled(Clock::time_point until, std::string_view what) const {
  const auto begin = Clock::now();
  for (;;) {
    NcclResult result = kNcclSuccess;
    PERSEUS_RETURN_IF_ERROR(nccl_status(nccl(), nccl().async_error(comm_, &result), what));
    if (result != kNcclInProgress) return outcome(result, what, until);
    PERSEUS_RETURN_IF_ERROR(setup_.thread.stop_reason());
    const auto now = Clock::now();
    if (now - begin < kSoon) {
      std::this_thread::yield();
      continue;
    }
    if (now > until) {
      return Status::timed_out(std::string(what) +
                               " has not ended in time; not all ranks of the "
                               "process set came, or NCCL's interface (NCCL_SOCKET_IFNAME) does "
                               "not reach them");
    }
    std::this_thread::sleep_for(kPause);
  }
}

NcclComm::~NcclComm() {
  constexpr std::string_view kWhat = "ending NCCL";
  if (comm_ == nullptr) return;
  if (setup_.thread.stop_reason().is_ok()) {
    for (void* registered : registered_) nccl().deregister_buffer(comm_, registered);
    if (nccl_status(nccl(), nccl().finalize(comm_), kWhat).is_ok() &&
        wait_until_settled(Clock::now() + kFarewell, kWhat).is_ok()) {
      nccl().destroy(comm_);
      return;
    }
  }
  abort();
}

Status NcclComm::check() const {
  return comm_ != nullptr ? Status::ok() : Status::aborted("NCCL's communicator has been aborted");
}

// In non-blocking mode, a collective that must first open more connections is not queued yet when
// the call returns.
Status NcclComm::finish_call(NcclResult result, std::string_view what) {
  if (result != kNcclInProgress) return nccl_status(nccl(), result, what);
  return wait_until_settled(Clock::now() + setup_.patience, what);
}

Status NcclComm::register_buffer(void* buffer, size_t bytes) {
  if (nccl().register_buffer == nullptr) return {};
  void* registered = nullptr;
  const NcclResult result = nccl().register_buffer(comm_, buffer, bytes, &registered);
  PERSEUS_RETURN_IF_ERROR(finish_call(result, "registering memory with NCCL"));
  // Null if NCCL has no use for the registration.
  if (registered != nullptr) registered_.push_back(registered);
  return {};
}

Status NcclComm::outcome(NcclResult result, std::string_view what, Clock::time_point until) const {
  if (result == kNcclRemoteError) {
    until = std::min(until, Clock::now() + kNewsOfOthers);
    while (Clock::now() < until) {
      PERSEUS_RETURN_IF_ERROR(setup_.thread.stop_reason());
      std::this_thread::sleep_for(kPause);
    }
  }
  return nccl_status(nccl(), result, what);
}

Status NcclComm::health() const {
  if (comm_ == nullptr) return {};
  NcclResult result = kNcclSuccess;
  constexpr std::string_view kWhat = "a collective of NCCL";
  PERSEUS_RETURN_IF_ERROR(nccl_status(nccl(), nccl().async_error(comm_, &result), kWhat));
  return outcome(result, kWhat, Clock::time_point::max());
}

void NcclComm::abort() {
  if (comm_ != nullptr) nccl().abort(std::exchange(comm_, nullptr));
  for (const auto& child : unfinished_) child->abort();
}

}  // namespace perseus
