// Operations of the engine itself, which have no user's name: the barrier that ends init, and those
// that add, remove, open and close process sets. Any thread but the loop's.
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

class OwnOperations {
 public:
  // `rank`, `size`: of the world.
  OwnOperations(SubmissionQueue& queue, int rank, int size)
      : queue_(queue), rank_(rank), size_(size) {}

  // Blocks until every rank is there and can be reached; kTimedOut after `time_out`.
  Status meet(std::chrono::seconds time_out);

  // Both block until all ranks of the world have called; one call at a time in a process.
  Result<int32_t> add_process_set(std::vector<int32_t> ranks);
  Status remove_process_set(int32_t set);
  // The same for sets that only their members know. The members have agreed on the id, from
  // ProcessSet::kFirstOpened on; nobody else is asked.
  Status open_process_set(int32_t set, std::vector<int32_t> ranks);
  Status close_process_set(int32_t set);

 private:
  static OperationPtr make(OperationKind kind, std::string_view name, std::vector<int32_t> ranks);
  Status run(const OperationPtr& operation, std::optional<std::chrono::seconds> time_out = {});
  Status wait_for(Operation& operation, std::optional<std::chrono::seconds> time_out = {}) const;
  // Adds or removes a set. If `check` is an error, tells the other ranks and returns it instead.
  Result<OperationPtr> administer(OperationKind kind, std::vector<int32_t> ranks,
                                  const Status& check);
  // Sorts them.
  Status check_ranks(std::vector<int32_t>& ranks) const;

  SubmissionQueue& queue_;
  const int rank_;
  const int size_;
  std::mutex mutex_;         // held while a set is added or removed
  OperationPtr last_admin_;  // the last that did; still under way if its call was interrupted
};

}  // namespace perseus
