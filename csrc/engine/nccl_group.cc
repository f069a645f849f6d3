#include "engine/nccl_group.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "collectives/message.h"
#include "collectives/parts.h"
#include "device/cuda/libraries.h"
#include "observe/log.h"

namespace perseus {
namespace {

// The first NCCL of which several ranks may share a GPU, if NCCL_MULTI_RANK_GPU_ENABLE is set.
constexpr int kSharesGpus = 23003;

// Numbers of the swaps' messages under the one call.
constexpr uint32_t kCardsPart = 0, kIdsPart = 1;

bool is_set(const char* variable) {
  const char* value = std::getenv(variable);
  return value != nullptr && std::string_view(value) == "1";
}

}  // namespace

// What a rank tells the others.
struct NcclGroup::Card {
  int32_t version = 0;  // of NCCL; 0: none that can be used
  uint8_t has_kernels = 0;
  uint8_t shares_gpus = 0;
  CuUuid uuid{};
};

NcclGroup::NcclGroup(const Settings& settings, GpuThread& thread)
    : settings_(settings),
      thread_(thread),
      lanes_(static_cast<int>(settings.nccl_lanes)),
      ids_(lanes_),
      comms_(lanes_) {
  const CudaLibraries& libraries = load_cuda(settings.cuda_library_path);
  if (libraries.nccl.is_usable()) nccl_ = &libraries.nccl.functions;
}

NcclGroup::~NcclGroup() {
  for (std::unique_ptr<NcclComm>& comm : comms_) {
    if (comm != nullptr) thread_.retire(std::move(comm));
  }
}

void NcclGroup::meet(const Group& group, const Call& call) {
  index_ = group.index;
  size_ = group.size;
  swap(group, call).start(this);
}

NcclGroup::Card NcclGroup::own_card() const {
  Card card;
  if (nccl_ != nullptr) nccl_->version(&card.version);
  card.has_kernels = gpu().kernels() != nullptr;
  card.shares_gpus = is_set("NCCL_MULTI_RANK_GPU_ENABLE") && card.version >= kSharesGpus;
  card.uuid = gpu().uuid();
  return card;
}

Task NcclGroup::swap(const Group& group, Call call) {
  std::vector<Card> cards(group.size);
  std::vector<uint64_t> bytes_of(group.size, sizeof(Card));
  const Card mine = own_card();
  Status status =
      co_await allgather(group, part_of_call(call, kCardsPart), &mine, cards.data(), bytes_of);
  PERSEUS_CO_RETURN_IF_ERROR(status);
  judge(cards, group);
  if (!why_not_.empty()) co_return Status::ok();
  // The first rank makes the ids.
  struct Ids {
    uint64_t is_error = 0;
    std::array<NcclUniqueId, kMostNcclLanes> ids{};
  } swapped;
  if (group.index == 0) {
    GpuWork making(thread_, nullptr, [&]() -> Status {
      for (int lane = 0; lane < lanes_; ++lane) {
        PERSEUS_RETURN_IF_ERROR(
            nccl_status(*nccl_, nccl_->unique_id(&swapped.ids[lane]), "beginning with NCCL"));
      }
      return {};
    });
    status = co_await making;
    swapped.is_error = !status.is_ok();
  }
  const Status sent =
      co_await broadcast(group, part_of_call(call, kIdsPart), &swapped, sizeof swapped, 0);
  PERSEUS_CO_RETURN_IF_ERROR(status);
  PERSEUS_CO_RETURN_IF_ERROR(sent);
  if (swapped.is_error != 0) {
    co_return Status::aborted("the first rank of the process set could not begin with NCCL");
  }
  std::copy_n(swapped.ids.begin(), lanes_, ids_.begin());
  co_return Status::ok();
}

// The same cards give the same verdict on all ranks.
void NcclGroup::judge(std::span<const Card> cards, const Group& group) {
  const auto rank_text = [](size_t index) {
    return "rank " + std::to_string(index) + " of the process set";
  };
  has_kernels_ = std::ranges::all_of(cards, [](const Card& card) { return card.has_kernels != 0; });
  for (size_t i = 0; i < cards.size() && why_not_.empty(); ++i) {
    if (cards[i].version == 0) {
      why_not_ = rank_text(i) + " has no NCCL that can be used";
    } else if (cards[i].version != cards[0].version) {
      why_not_ = "the ranks have different versions of NCCL: " + std::to_string(cards[0].version) +
                 " and, on " + rank_text(i) + ", " + std::to_string(cards[i].version);
    }
    for (size_t j = 0; j < i && why_not_.empty(); ++j) {
      const bool is_same = std::memcmp(&cards[i].uuid, &cards[j].uuid, sizeof(CuUuid)) == 0;
      if (!is_same || (cards[i].shares_gpus != 0 && cards[j].shares_gpus != 0)) continue;
      why_not_ =
          rank_text(j) + " and " + rank_text(i) +
          " share a GPU, which NCCL does only with NCCL_MULTI_RANK_GPU_ENABLE=1, from 2.30.3 "
          "on; give each process a GPU of its own (torch.cuda.set_device(hvd.local_rank()))";
    }
  }
  if (!why_not_.empty() && group.index == 0) {
    PERSEUS_LOG(kWarning, "tensors on GPUs go by way of the host's memory: " << why_not_);
  }
}

void NcclGroup::task_finished(const Status& status) {
  has_met_ = true;
  status_ = status;
  for (const std::coroutine_handle<> waiter : std::exchange(waiters_, {})) waiter.resume();
}

Status check_same_gpu(const Operation& operation, const Gpu& gpu) {
  if (operation.gpu == &gpu) return {};
  return Status::invalid_argument(
      title(operation.key) + ": its tensor is on GPU " + std::to_string(operation.gpu->ordinal()) +
      ", and those before in its process set on GPU " + std::to_string(gpu.ordinal()) +
      "; a process uses one GPU for NCCL (torch.cuda.set_device(hvd.local_rank())), or "
      "PERSEUS_GPU_OPERATIONS=staged for several");
}

Status NcclGroup::check(const Operation& operation) const {
  const bool may_go_by_nccl = has_met_ ? status_.is_ok() && why_not_.empty() : nccl_ != nullptr;
  return may_go_by_nccl ? check_same_gpu(operation, gpu()) : Status::ok();
}

Result<NcclComm*> NcclGroup::lane(int number) {
  std::unique_ptr<NcclComm>& comm = comms_[number];
  if (comm == nullptr) {
    auto connected = NcclComm::connect(*nccl_, thread_, ids_[number], index_, size_,
                                       std::chrono::seconds(settings_.start_timeout));
    if (!connected.is_ok()) return connected.status();
    comm = std::move(connected).value();
  }
  PERSEUS_RETURN_IF_ERROR(comm->check());
  return comm.get();
}

}  // namespace perseus
