// Operations that the engine submits itself, under names that no user can give: the barrier that
// ends init, and those that add, remove, open and close process sets. May be called on any thread
// except the engine's.
#pragma once

#include <chrono>
#include <mutex>
#include <optional>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/submission_queue.h"
#include "state/operation.h"

namespace perseus {

class InternalOperations {
 public:
  // `rank`, `size`: of the world.
  InternalOperations(SubmissionQueue& queue, int rank, int size)
      : queue_(queue), rank_(rank), size_(size) {}

  // Blocks until every rank is there and can be reached; kTimedOut after `time_out`.
  Status meet(std::chrono::seconds time_out);

  // Both block until all ranks of the world have made the same call. If several threads of a
  // process call, the calls run one after the other.
  Result<int32_t> add_process_set(std::vector<int32_t> ranks);
  Status remove_process_set(int32_t set);
  // Open and close a set that only its members know. The members have agreed by other means on the
  // id, which is at least ProcessSet::kFirstOpened. No call waits for another rank to make it, too.
  Status open_process_set(int32_t set, std::vector<int32_t> ranks);
  Status close_process_set(int32_t set);

 private:
  static OperationPtr make(OperationKind kind, std::string_view name, std::vector<int32_t> ranks);
  Status run(const OperationPtr& operation, std::optional<std::chrono::seconds> time_out = {});
  Status wait_for(Operation& operation, std::optional<std::chrono::seconds> time_out = {}) const;
  // Adds or removes a set. If `check` is an error, tells the other ranks and returns it instead.
  Result<OperationPtr> administer(OperationKind kind, std::vector<int32_t> ranks,
                                  const Status& check);
  // Sorts the ranks. Returns an error if there are none, or if they are not different ranks of the
  // world.
  Status check_ranks(std::vector<int32_t>& ranks) const;

  SubmissionQueue& queue_;
  const int rank_;
  const int size_;
  std::mutex mutex_;         // held while a set is added or removed
  OperationPtr last_admin_;  // the last addition or removal; may be under way after an interruption
};

}  // namespace perseus
