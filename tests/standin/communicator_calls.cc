// The stand-in for NCCL: functions that make and end communicators.
#include <algorithm>
#include <cstddef>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "communicators.h"
#include "device.h"
#include "device/cuda/nccl.h"
#include "failure.h"
#include "group.h"
#include "injection.h"
#include "settings.h"
#include "version.h"

using namespace perseus;           // NOLINT: the exported functions belong to no namespace
using namespace perseus::standin;  // NOLINT

namespace {

std::string name_of(const NcclUniqueId& id) {
  constexpr int kNamingBytes = 16;
  std::string name = "perseus-standin-";
  for (int i = 0; i < kNamingBytes; ++i) {
    for (const int digit : {id.bytes[i] >> 4 & 15, id.bytes[i] & 15}) {
      name += "0123456789abcdef"[digit];
    }
  }
  return name + "-";
}

int cta_policy_of(const NcclConfig* config) {
  const bool has_policy = config != nullptr && config->size > offsetof(NcclConfig, cta_policy);
  return has_policy ? config->cta_policy : NcclConfig::kUndefined;
}

// Real NCCL would ignore fields of later versions.
bool is_valid(const NcclConfig* config) {
  constexpr unsigned kMagic = 0xcafebeef;
  if (config == nullptr) return true;
  size_t most = sizeof(NcclConfig);
  if (settings().nccl_version < kNcclWithLaunchOrder) most = offsetof(NcclConfig, graph_usage);
  if (settings().nccl_version < 22800) most = offsetof(NcclConfig, channels_per_net_peer);
  if (settings().nccl_version < kNcclWithCtaPolicy) most = offsetof(NcclConfig, traffic_class);
  const bool has_policy = settings().nccl_version >= kNcclWithCtaPolicyZero ||
                          cta_policy_of(config) <= kNcclCtaEfficiency;
  return has_policy && config->magic == kMagic && config->size <= most &&
         config->version <= static_cast<unsigned>(settings().nccl_version);
}

// The parts of a rank's configuration that matter here.
struct ConfigOfAll {
  bool is_blocking = true;
  static ConfigOfAll of(const NcclConfig* config) {
    const int policy = cta_policy_of(config);
    if (settings().cta_policy >= 0 && policy != settings().cta_policy) {
      fail("a communicator is made with the CTA policy " + std::to_string(policy));
    }
    return {config == nullptr || config->blocking != 0};
  }
};

NcclResult init_rank(NcclHandle* comm, int ranks, std::span<const NcclUniqueId> ids, int rank,
                     NcclConfig* config) {
  if (current_device() < 0) return kNcclUnhandledCudaError;
  if (ranks < 1 || rank < 0 || rank >= ranks || !is_valid(config)) return kNcclInvalidArgument;
  const bool is_blocking = ConfigOfAll::of(config).is_blocking;
  // Made from all ids, so that ranks with different lists do not meet.
  NcclUniqueId all{};
  for (const NcclUniqueId& id : ids) {
    for (size_t i = 0; i < sizeof(id.bytes); ++i) {
      all.bytes[i] = static_cast<char>(all.bytes[i] * 3 + id.bytes[i]);
    }
  }
  auto communicator =
      std::make_shared<Communicator>(name_of(all), rank, ranks, current_device(), is_blocking);
  communicator->start();
  *comm = Communicators::get().add(communicator);
  if (!is_blocking) return kNcclInProgress;
  if (Group::of_this_thread().is_open()) {
    Group::of_this_thread().add_start(std::move(communicator));
    return kNcclSuccess;
  }
  const NcclResult error = communicator->wait_for_start();
  if (error != kNcclSuccess) Communicators::get().remove(std::exchange(*comm, nullptr));
  return error;
}

// `members`: ranks of the parent, in their new order.
void make_of(const Communicator& parent, std::string name, const std::vector<int>& members,
             NcclHandle* made, ConfigOfAll config) {
  const auto place = std::find(members.begin(), members.end(), parent.rank);
  auto communicator = std::make_shared<Communicator>(
      std::move(name), static_cast<int>(place - members.begin()), static_cast<int>(members.size()),
      parent.device, config.is_blocking);
  communicator->start();
  *made = Communicators::get().add(std::move(communicator));
}

}  // namespace

extern "C" {

PERSEUS_STANDIN_API NcclResult ncclGetVersion(int* version) {
  if (const int error = injected(__func__)) return error;
  *version = settings().nccl_version;
  return kNcclSuccess;
}

PERSEUS_STANDIN_API NcclResult ncclGetUniqueId(NcclUniqueId* id) {
  if (const int error = injected(__func__)) return error;
  std::random_device random;
  for (char& byte : id->bytes) byte = static_cast<char>(random());
  return kNcclSuccess;
}

PERSEUS_STANDIN_API NcclResult ncclCommInitRankConfig(NcclHandle* comm, int ranks, NcclUniqueId id,
                                                      int rank, NcclConfig* config) {
  if (const int error = injected(__func__)) return error;
  return init_rank(comm, ranks, {&id, 1}, rank, config);
}

PERSEUS_STANDIN_API NcclResult ncclCommInitRankScalable(NcclHandle* comm, int ranks, int rank,
                                                        int count, NcclUniqueId* ids,
                                                        NcclConfig* config) {
  require_version(22300, __func__);
  if (const int error = injected(__func__)) return error;
  if (count < 1 || count > ranks) return kNcclInvalidArgument;
  return init_rank(comm, ranks, {ids, static_cast<size_t>(count)}, rank, config);
}

PERSEUS_STANDIN_API NcclResult ncclCommSplit(NcclHandle comm, int color, int key, NcclHandle* made,
                                             NcclConfig* config) {
  if (const int error = injected(__func__)) return error;
  const auto parent = Communicators::get().find(comm);
  if (!parent || color < 0 || !is_valid(config)) return kNcclInvalidArgument;
  const ConfigOfAll of_all = ConfigOfAll::of(config);
  parent->divide(__func__, [parent, color, key, made, of_all](const std::string& name) {
    struct Choice {
      int color;
      int key;
    };
    std::vector<Choice> choices;
    if (const NcclResult error = parent->share(Choice{color, key}, choices)) return error;
    std::vector<int> members;
    for (int rank = 0; rank < parent->ranks; ++rank) {
      if (choices[static_cast<size_t>(rank)].color == color) members.push_back(rank);
    }
    std::stable_sort(members.begin(), members.end(), [&](int a, int b) {
      return choices[static_cast<size_t>(a)].key < choices[static_cast<size_t>(b)].key;
    });
    make_of(*parent, name + std::to_string(color) + "-", members, made, of_all);
    return kNcclSuccess;
  });
  return parent->is_blocking ? parent->wait_for_start() : kNcclInProgress;
}

PERSEUS_STANDIN_API NcclResult ncclCommShrink(NcclHandle comm, int* excluded, int count,
                                              NcclHandle* made, NcclConfig* config, int flags) {
  require_version(22700, __func__);
  if (const int error = injected(__func__)) return error;
  const auto parent = Communicators::get().find(comm);
  if (!parent || flags != kNcclShrinkDefault || !is_valid(config)) return kNcclInvalidArgument;
  std::vector<int> members;
  std::string without = "x";
  for (int rank = 0; rank < parent->ranks; ++rank) {
    const bool is_excluded = std::find(excluded, excluded + count, rank) != excluded + count;
    if (!is_excluded) members.push_back(rank);
    without += is_excluded ? "1" : "0";
  }
  const auto in = static_cast<int>(members.size());
  if (in + count != parent->ranks ||
      std::count(members.begin(), members.end(), parent->rank) != 1) {
    return kNcclInvalidArgument;
  }
  const ConfigOfAll of_all = ConfigOfAll::of(config);
  // Ranks that are left out do not call this, so they do not count the same divisions.
  parent->divide(__func__, [parent, members, made, of_all, without](const std::string&) {
    make_of(*parent, parent->name + parent->next_shrink(without) + "-", members, made, of_all);
    return kNcclSuccess;
  });
  return parent->is_blocking ? parent->wait_for_start() : kNcclInProgress;
}

PERSEUS_STANDIN_API NcclResult ncclCommFinalize(NcclHandle comm) {
  if (const int error = injected(__func__)) return error;
  const auto communicator = Communicators::get().find(comm);
  if (!communicator) return kNcclInvalidArgument;
  communicator->finalize();
  return communicator->error() == kNcclInProgress ? kNcclInProgress : kNcclSuccess;
}

PERSEUS_STANDIN_API NcclResult ncclCommDestroy(NcclHandle comm) {
  if (const int error = injected(__func__)) return error;
  const auto communicator = Communicators::get().find(comm);
  if (!communicator) return kNcclInvalidArgument;
  if (communicator->has_registered())
    fail("a communicator is destroyed that has registered memory");
  communicator->wait_for_work();
  Communicators::get().remove(comm);
  return kNcclSuccess;
}

PERSEUS_STANDIN_API NcclResult ncclCommAbort(NcclHandle comm) {
  if (const int error = injected(__func__)) return error;
  const auto communicator = Communicators::get().find(comm);
  if (!communicator) return kNcclInvalidArgument;
  communicator->abort();
  Communicators::get().remove(comm);
  return kNcclSuccess;
}

PERSEUS_STANDIN_API NcclResult ncclCommGetAsyncError(NcclHandle comm, NcclResult* error) {
  if (const int injected_error = injected(__func__)) return injected_error;
  const auto communicator = Communicators::get().find(comm);
  if (!communicator) return kNcclInvalidArgument;
  *error = communicator->error();
  return kNcclSuccess;
}

}  // extern "C"
