#include "device/cuda/nccl_lane.h"

#include <algorithm>
#include <bit>
#include <thread>
#include <utility>

#include "device/cuda/cuda_error.h"

namespace perseus {
namespace {

constexpr std::chrono::microseconds kIdlePause{100};
constexpr size_t kLeastBlock = 2 << 20;  // the driver's own unit
// How long aborted collectives may take to end.
constexpr std::chrono::milliseconds kLastWork{500};

}  // namespace

LaneMemory::~LaneMemory() {
  for (const Block& block : blocks_) {
    if (is_registered_) {
      setup_.nccl.free(block.data);
    } else {
      setup_.thread.gpu().driver().free(reinterpret_cast<CuPointer>(block.data));
    }
  }
}

Result<std::byte*> LaneMemory::take(size_t bytes, std::span<NcclComm* const> comms) {
  if (!blocks_.empty() && blocks_.back().bytes >= bytes) return blocks_.back().data;
  const size_t capacity = std::bit_ceil(std::max(bytes, kLeastBlock));
  const auto data = allocate(capacity);
  if (!data.is_ok()) return data;
  blocks_.push_back({data.value(), capacity});
  if (!is_registered_) return data;
  for (NcclComm* comm : comms) {
    PERSEUS_RETURN_IF_ERROR(comm->register_buffer(data.value(), capacity));
  }
  return data;
}

Result<std::byte*> LaneMemory::allocate(size_t bytes) {
  Gpu& gpu = setup_.thread.gpu();
  const std::string what =
      "allocating " + std::to_string(bytes) + " bytes on GPU " + std::to_string(gpu.ordinal());
  if (is_registered_) {
    void* data = nullptr;
    PERSEUS_RETURN_IF_ERROR(nccl_status(setup_.nccl, setup_.nccl.allocate(&data, bytes), what));
    return static_cast<std::byte*>(data);
  }
  CuPointer data = 0;
  PERSEUS_RETURN_IF_ERROR(cuda_status(gpu.driver(), gpu.driver().allocate(&data, bytes), what));
  return reinterpret_cast<std::byte*>(data);
}

Result<std::unique_ptr<NcclLane>> NcclLane::make(const NcclSetup& setup, Options options) {
  std::unique_ptr<NcclLane> lane(new NcclLane(setup, options));
  const CudaDriver& driver = setup.thread.gpu().driver();
  // Ahead of computation, since the next step waits for this stream.
  const CuResult made = driver.create_stream(&lane->stream_, kCuStreamNonBlocking, kCuMostUrgent);
  PERSEUS_RETURN_IF_ERROR(cuda_status(driver, made, "making a stream for NCCL"));
  setup.thread.monitor(*lane);
  return lane;
}

NcclLane::~NcclLane() {
  if (stream_ == nullptr) return;
  // Destroys communicators before the one that they were made from.
  across_.reset();
  local_.reset();
  all_.reset();
  if (!wait_until_idle(Clock::now() + kLastWork, /*gives_up=*/false).is_ok()) memory_.leave();
  setup_.thread.gpu().driver().destroy_stream(stream_);
}

Status NcclLane::connect(std::span<NcclUniqueId> ids, int index, int size) {
  auto begun = NcclComm::begin(setup_, ids, index, size);
  PERSEUS_RETURN_IF_ERROR(begun.status());
  all_ = std::move(begun).value();
  return all_->wait_until_connected();
}

Status NcclLane::shrink_from(NcclLane& other, std::vector<int> excluded) {
  PERSEUS_RETURN_IF_ERROR(other.check());
  PERSEUS_RETURN_IF_ERROR(other.wait_until_idle(Clock::now() + setup_.patience, /*gives_up=*/true));
  auto made = other.all().shrink(std::move(excluded));
  PERSEUS_RETURN_IF_ERROR(made.status());
  all_ = std::move(made).value();
  return {};
}

Status NcclLane::split_by_host(int host, int position) {
  auto local = all_->split(host, position);
  PERSEUS_RETURN_IF_ERROR(local.status());
  local_ = std::move(local).value();
  auto across = all_->split(position, host);
  PERSEUS_RETURN_IF_ERROR(across.status());
  across_ = std::move(across).value();
  return {};
}

Status NcclLane::check() const {
  return all_ != nullptr ? all_->check() : Status::aborted("NCCL has not connected");
}

std::vector<NcclComm*> NcclLane::comms() const {
  std::vector<NcclComm*> found;
  for (const auto* comm : {&all_, &local_, &across_}) {
    if (*comm != nullptr) found.push_back(comm->get());
  }
  return found;
}

Status NcclLane::wait_until_idle(Clock::time_point until, bool gives_up) const {
  Gpu& gpu = setup_.thread.gpu();
  const auto event = gpu.take_event();
  PERSEUS_RETURN_IF_ERROR(event.status());
  PERSEUS_RETURN_IF_ERROR(cuda_status(
      gpu.driver(), gpu.driver().record_event(event.value().get(), stream_), "recording an event"));
  for (;;) {
    const auto is_done = gpu.is_done(event.value());
    PERSEUS_RETURN_IF_ERROR(is_done.status());
    if (is_done.value()) return {};
    if (gives_up) PERSEUS_RETURN_IF_ERROR(setup_.thread.stop_reason());
    if (Clock::now() > until) return Status::timed_out("work on the GPU has not ended in time");
    std::this_thread::sleep_for(kIdlePause);
  }
}

Status NcclLane::health() {
  for (const NcclComm* comm : comms()) PERSEUS_RETURN_IF_ERROR(comm->health());
  return {};
}

std::vector<std::function<void()>> NcclLane::aborts() {
  std::vector<std::function<void()>> aborts;
  for (NcclComm* comm : comms()) aborts.emplace_back([comm] { comm->abort(); });
  return aborts;
}

}  // namespace perseus
