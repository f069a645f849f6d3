#include "execution/gpu/nccl_group.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "base/settings.h"
#include "collectives/parts.h"
#include "execution/finite_check.h"
#include "execution/run_options.h"
#include "observe/log.h"

namespace perseus {
namespace {

// From this NCCL on several ranks may share a GPU, if NCCL_MULTI_RANK_GPU_ENABLE is set.
constexpr int kFirstToShareGpus = 23003;

// Returns whether this version of NCCL can be given the policy.
bool has_cta_policy(CtaPolicy policy, int version) {
  return version >= (policy == CtaPolicy::kZero ? kNcclWithCtaPolicyZero : kNcclWithCtaPolicy);
}

// The policy as NCCL numbers it.
int nccl_cta_policy(CtaPolicy policy) {
  switch (policy) {
    case CtaPolicy::kDefault: return NcclConfig::kUndefined;
    case CtaPolicy::kEfficiency: return kNcclCtaEfficiency;
    case CtaPolicy::kZero: return kNcclCtaZero;
  }
  return NcclConfig::kUndefined;
}

// The two exchanges run under the same options, so each takes message numbers of its own.
constexpr uint32_t kCapabilitiesPart = 0, kIdsPart = 1;

bool is_set(const char* variable) {
  const char* value = std::getenv(variable);
  return value != nullptr && std::string_view(value) == "1";
}

NcclConfig config_of(const Settings& settings, int version) {
  NcclConfig config = NcclConfig::of(version);
  config.blocking = 0;     // so that waiting for it can end in an error
  config.split_share = 0;  // lanes run side by side
  config.shrink_share = 0;
  if (has_cta_policy(settings.nccl_cta_policy, version)) {
    config.cta_policy = nccl_cta_policy(settings.nccl_cta_policy);
  }
  config.launch_order_implicit = 1;
  return config;
}

// How many ranks make ids, each for itself and the ranks after it.
int roots_of(const FoundLibrary<Nccl>& library, const Settings& settings, int size) {
  if (library.functions.init_rank_with_ids == nullptr) return 1;
  const auto of_each = static_cast<int>(settings.nccl_ranks_per_root);
  return (size + of_each - 1) / of_each;
}

}  // namespace

// A rank tells these to the others.
struct NcclGroup::Capabilities {
  int32_t version = 0;  // of NCCL; 0: there is none that can be used
  uint8_t has_kernels = 0;
  uint8_t shares_gpus = 0;
  CuUuid uuid{};
};

NcclGroup::NcclGroup(const Settings& settings, GpuThread& thread, const ProcessSet& set)
    : settings_(settings),
      thread_(thread),
      set_(set),
      library_(load_cuda(settings.cuda_library_path).nccl),
      setup_{library_.functions, thread, config_of(settings, library_.version),
             std::chrono::seconds(settings.start_timeout)},
      is_hierarchical_(wanted_algorithm(settings) == AllreduceAlgorithm::kHierarchical &&
                       can_be_hierarchical_over_hosts(set.group)),
      ids_(settings.nccl_lanes),
      lanes_(settings.nccl_lanes) {}

NcclGroup::~NcclGroup() {
  for (std::unique_ptr<NcclLane>& lane : lanes_) {
    if (lane != nullptr) thread_.retire(std::move(lane));
  }
}

NcclGroup::Capabilities NcclGroup::own_capabilities() const {
  Capabilities own;
  if (library_.is_usable()) own.version = library_.version;
  own.has_kernels = gpu().kernels() != nullptr;
  own.shares_gpus = is_set("NCCL_MULTI_RANK_GPU_ENABLE") && own.version >= kFirstToShareGpus;
  own.uuid = gpu().uuid();
  return own;
}

Task NcclGroup::exchange(CollectiveOptions options) {
  const Group& group = set_.group;
  std::vector<Capabilities> all(group.size);
  std::vector<uint64_t> bytes_of(group.size, sizeof(Capabilities));
  const Capabilities mine = own_capabilities();
  Status status = co_await allgather(group, options_of_part(options, kCapabilitiesPart), &mine,
                                     all.data(), bytes_of);
  PERSEUS_CO_RETURN_IF_ERROR(status);
  compare(all);
  if (staging_reason_.empty()) status = co_await exchange_ids(options_of_part(options, kIdsPart));
  co_return status;
}

// Some ranks, evenly spread over the set, make ids. The ranks up to the next one connect through
// it.
Task NcclGroup::exchange_ids(CollectiveOptions options) {
  struct LaneId {
    uint64_t is_error = 0;
    NcclUniqueId id{};
  };
  const Group& group = set_.group;
  const int roots = roots_of(library_, settings_, group.size);
  std::vector<LaneId> all(roots * lanes());
  std::vector<uint64_t> bytes_of(group.size, 0);
  for (int root = 0; root < roots; ++root) {
    bytes_of[root * group.size / roots] = lanes() * sizeof(LaneId);
  }
  std::vector<LaneId> mine(lanes());
  Status made;
  if (bytes_of[group.index] > 0) {
    AwaitableGpuWork making(thread_, nullptr, [&]() -> Status {
      for (LaneId& lane : mine) {
        const NcclResult result = setup_.nccl.unique_id(&lane.id);
        PERSEUS_RETURN_IF_ERROR(nccl_status(setup_.nccl, result, "beginning with NCCL"));
      }
      return {};
    });
    made = co_await making;
    mine.front().is_error = !made.is_ok();
  }
  const Status sent = co_await allgather(group, options, mine.data(), all.data(), bytes_of);
  PERSEUS_CO_RETURN_IF_ERROR(made);
  PERSEUS_CO_RETURN_IF_ERROR(sent);
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i].is_error != 0) {
      co_return Status::aborted("a rank of the process set could not begin with NCCL");
    }
    ids_[i % lanes()].push_back(all[i].id);
  }
  co_return Status::ok();
}

// All ranks compare the same capabilities, so they come to the same result.
void NcclGroup::compare(std::span<const Capabilities> all) {
  const auto rank_text = [](size_t index) {
    return "rank " + std::to_string(index) + " of the process set";
  };
  has_kernels_ =
      std::ranges::all_of(all, [](const Capabilities& rank) { return rank.has_kernels != 0; });
  for (const Capabilities& rank : all) gpus_.push_back(rank.uuid);
  if (settings_.wire != WireChoice::kPlain && spans_hosts(set_.group)) {
    staging_reason_ = "NCCL does not protect what goes between hosts, as PERSEUS_WIRE asks";
  }
  for (size_t i = 0; i < all.size() && staging_reason_.empty(); ++i) {
    if (all[i].version == 0) {
      staging_reason_ = rank_text(i) + " has no NCCL that can be used";
    } else if (all[i].has_kernels == 0 && FiniteCheck::is_on(settings_)) {
      staging_reason_ =
          rank_text(i) + " lacks the CUDA kernels that PERSEUS_ALLREDUCE_NANCHECK needs";
    } else if (all[i].version != all[0].version) {
      staging_reason_ =
          "the ranks have different versions of NCCL: " + std::to_string(all[0].version) +
          " and, on " + rank_text(i) + ", " + std::to_string(all[i].version);
    }
    for (size_t j = 0; j < i && staging_reason_.empty(); ++j) {
      const bool is_same = gpus_[i] == gpus_[j];
      if (!is_same || (all[i].shares_gpus != 0 && all[j].shares_gpus != 0)) continue;
      staging_reason_ =
          rank_text(j) + " and " + rank_text(i) +
          " share a GPU, which NCCL allows only with NCCL_MULTI_RANK_GPU_ENABLE=1, from 2.30.3 "
          "on; give each process a GPU of its own (torch.cuda.set_device(hvd.local_rank()))";
    }
  }
  if (set_.index != 0) return;
  // With kNccl the operations' errors say so.
  if (!staging_reason_.empty() && settings_.gpu_operations == GpuOperations::kNccl) return;
  if (!staging_reason_.empty()) {
    PERSEUS_LOG(kWarning, "tensors on GPUs go by way of the host's memory: " << staging_reason_);
  } else if (settings_.nccl_cta_policy != CtaPolicy::kDefault &&
             !has_cta_policy(settings_.nccl_cta_policy, library_.version)) {
    PERSEUS_LOG(kWarning,
                "PERSEUS_NCCL_CTA_POLICY has no effect: it needs NCCL 2.27 or newer, and zero "
                "needs 2.28; this is "
                    << library_.version);
  }
}

void NcclGroup::task_finished(const Status& status) {
  is_ready_ = true;
  status_ = status;
  for (const std::coroutine_handle<> waiter : std::exchange(waiters_, {})) waiter.resume();
}

Status check_same_gpu(const Operation& operation, const Gpu& gpu) {
  if (operation.gpu == &gpu) return {};
  return Status::invalid_argument(
      title(operation.key) + ": its tensor is on GPU " + std::to_string(operation.gpu->ordinal()) +
      ", and earlier ones of its process set are on GPU " + std::to_string(gpu.ordinal()) +
      "; a process uses one GPU for NCCL (torch.cuda.set_device(hvd.local_rank())), or "
      "PERSEUS_GPU_OPERATIONS=staged for several");
}

Status NcclGroup::check(const Operation& operation) const {
  const bool may_go_by_nccl =
      is_ready_ ? status_.is_ok() && staging_reason_.empty() : library_.is_usable();
  return may_go_by_nccl ? check_same_gpu(operation, gpu()) : Status::ok();
}

Result<NcclLane*> NcclGroup::lane(int number, const NcclGroup* world) {
  std::unique_ptr<NcclLane>& lane = lanes_[number];
  if (lane == nullptr) {
    const bool registers =
        settings_.nccl_register_buffers && setup_.nccl.register_buffer != nullptr;
    auto made = NcclLane::make(setup_, {.registers_memory = registers});
    PERSEUS_RETURN_IF_ERROR(made.status());
    lane = std::move(made).value();
    PERSEUS_RETURN_IF_ERROR(connect(*lane, number, world));
  }
  PERSEUS_RETURN_IF_ERROR(lane->check());
  return lane.get();
}

Status NcclGroup::connect(NcclLane& lane, int number, const NcclGroup* world) {
  NcclLane* const whole = world != nullptr ? lane_to_shrink(*world, number) : nullptr;
  if (whole != nullptr) {
    std::vector<int> excluded;
    for (int rank = 0; rank < static_cast<int>(world->gpus_.size()); ++rank) {
      if (!set_.has(rank)) excluded.push_back(rank);
    }
    PERSEUS_RETURN_IF_ERROR(lane.shrink_from(*whole, std::move(excluded)));
  } else {
    PERSEUS_RETURN_IF_ERROR(lane.connect(ids_[number], set_.group.index, set_.group.size));
  }
  if (!is_hierarchical_) return {};
  const GroupSplit& hosts = *set_.group.by_host;
  return lane.split_by_host(hosts.across.index, hosts.local.index);
}

// All ranks of this set decide alike, since launches come in one order on all of them.
NcclLane* NcclGroup::lane_to_shrink(const NcclGroup& world, int number) const {
  const std::unique_ptr<NcclLane>& lane = world.lanes_[number];
  if (&world == this || setup_.nccl.shrink == nullptr || lane == nullptr) return nullptr;
  for (size_t i = 0; i < set_.ranks.size(); ++i) {
    if (!(gpus_[i] == world.gpus_[set_.ranks[i]])) return nullptr;
  }
  return lane.get();
}

}  // namespace perseus
