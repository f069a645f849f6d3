#include "device/cuda/nccl_comm.h"

#include <thread>

#include "device/cuda/cuda_error.h"

namespace perseus {
namespace {

constexpr std::chrono::microseconds kPause{100};
// Ranks that end in order do so at nearly the same time; who stays longer is not waited for.
constexpr std::chrono::milliseconds kFarewell{500};

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

Result<std::unique_ptr<NcclComm>> NcclComm::connect(const Nccl& nccl, GpuThread& thread,
                                                    const NcclUniqueId& id, int index, int size,
                                                    std::chrono::seconds patience) {
  std::unique_ptr<NcclComm> comm(new NcclComm(nccl, thread, patience));
  const CudaDriver& driver = thread.gpu().driver();
  PERSEUS_RETURN_IF_ERROR(cuda_status(driver,
                                      driver.create_stream(&comm->stream_, kCuStreamNonBlocking, 0),
                                      "making a stream for NCCL"));
  NcclConfig config;
  config.blocking = 0;     // so that it can be given up
  config.split_share = 0;  // lanes run side by side
  constexpr std::string_view kWhat = "connecting with NCCL";
  PERSEUS_RETURN_IF_ERROR(
      nccl_status(nccl, nccl.init_rank(&comm->comm_, size, id, index, &config), kWhat));
  const Status connected = comm->wait_until_settled(Clock::now() + patience, kWhat);
  if (!connected.is_ok()) {
    comm->abort();
    return connected;
  }
  thread.look_after(*comm);
  return comm;
}

Status NcclComm::wait_until_settled(Clock::time_point until, std::string_view what) {
  for (;;) {
    NcclResult result = kNcclSuccess;
    PERSEUS_RETURN_IF_ERROR(nccl_status(nccl_, nccl_.async_error(comm_, &result), what));
    if (result != kNcclInProgress) return nccl_status(nccl_, result, what);
    PERSEUS_RETURN_IF_ERROR(thread_.given_up());
    if (Clock::now() > until) {
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
  const bool is_well = comm_ != nullptr && thread_.given_up().is_ok();
  if (is_well && nccl_status(nccl_, nccl_.finalize(comm_), kWhat).is_ok() &&
      wait_until_settled(Clock::now() + kFarewell, kWhat).is_ok()) {
    nccl_.destroy(comm_);
  } else {
    abort();
  }
  if (stream_ != nullptr) thread_.gpu().driver().destroy_stream(stream_);
}

Status NcclComm::check() const {
  return comm_ != nullptr ? Status::ok() : Status::aborted("NCCL's communicator has been aborted");
}

// Without blocking, what is first to connect more is still about to be queued when the call
// returns.
Status NcclComm::finish_call(NcclResult result, std::string_view what) {
  if (result != kNcclInProgress) return nccl_status(nccl_, result, what);
  return wait_until_settled(Clock::now() + patience_, what);
}

Status NcclComm::health() {
  if (comm_ == nullptr) return {};
  NcclResult result = kNcclSuccess;
  constexpr std::string_view kWhat = "a collective of NCCL";
  PERSEUS_RETURN_IF_ERROR(nccl_status(nccl_, nccl_.async_error(comm_, &result), kWhat));
  return nccl_status(nccl_, result, kWhat);
}

void NcclComm::abort() {
  if (comm_ != nullptr) nccl_.abort(std::exchange(comm_, nullptr));
}

}  // namespace perseus
