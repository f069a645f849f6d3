// A process set as this rank sees it. Engine thread; kept alive by the batches that run on it.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "base/name_map.h"
#include "collectives/collective.h"
#include "negotiation/negotiator.h"
#include "schedule/launch_order.h"
#include "schedule/step_counter.h"
#include "state/operation.h"

namespace perseus {

class NcclGroup;

struct ProcessSet : std::enable_shared_from_this<ProcessSet> {
  static constexpr int32_t kWorld = 0;  // id of the set of all ranks
  // The ids of sets that only their members know of.
  static constexpr int32_t kFirstOpened = 1 << 20;
  static constexpr int32_t kLastOpened = (1 << 23) - 1;

  int32_t id = kWorld;
  std::vector<int> ranks;                  // of the world, ascending
  int index = -1;                          // this rank's among them; -1: not a member
  Group group;                             // members only
  std::unique_ptr<NegotiatorHost> host;    // members only
  std::unique_ptr<Negotiator> negotiator;  // members only

  NameMap<OperationPtr> pending;          // submitted and not yet agreed, by key
  uint64_t agreed_operations = 0;         // how many there have been
  uint64_t next_series = 0;               // of messages; see ShardRun
  StepCounter steps;                      // counts only where steps are needed
  std::unique_ptr<LaunchOrder> launches;  // once there are tensors on GPUs
  std::shared_ptr<NcclGroup> nccl;        // likewise; a class of a room above, not defined here
  const Gpu* gpu = nullptr;               // of this rank's first tensors that may go by NCCL
  uint64_t demanded_round = 0;            // the last round that this rank has demanded
  Status broken;                          // why no further operation is possible; ok: they are
  int departed = -1;                      // the first rank to leave the set; -1: none has

  bool has(int rank) const { return std::binary_search(ranks.begin(), ranks.end(), rank); }
  // The ranks that this one's ballots go to or come from. Members only.
  std::vector<int> neighbours() const {
    const int size = static_cast<int>(ranks.size());
    std::vector<int> found;
    for (int distance = 1; distance < size; distance *= 2) {
      for (const int peer : {(index + distance) % size, (index - distance + size) % size}) {
        if (std::find(found.begin(), found.end(), ranks[peer]) == found.end()) {
          found.push_back(ranks[peer]);
        }
      }
    }
    return found;
  }
  int index_of(int rank) const {
    const auto place = std::lower_bound(ranks.begin(), ranks.end(), rank);
    return place != ranks.end() && *place == rank ? static_cast<int>(place - ranks.begin()) : -1;
  }
};
using ProcessSetPtr = std::shared_ptr<ProcessSet>;
using SharedRanks = std::shared_ptr<const std::vector<int>>;  // of a set, ascending

}  // namespace perseus
