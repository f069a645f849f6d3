#include "engine/internal_operations.h"

#include <algorithm>
#include <string>
#include <thread>
#include <utility>

#include "base/interruption.h"
#include "state/process_set.h"

namespace perseus {
namespace {

constexpr std::string_view kInitBarrier = "perseus.init";
constexpr std::string_view kProcessSet = "perseus.process_set";

}  // namespace

OperationPtr InternalOperations::make(OperationKind kind, std::string_view name,
                                      std::vector<int32_t> ranks) {
  auto operation = std::make_shared<Operation>();
  operation->process_set = ProcessSet::kWorld;
  operation->key = operation_key(kind, name);
  operation->description.kind = kind;
  operation->description.ranks = std::move(ranks);
  return operation;
}

Status InternalOperations::run(const OperationPtr& operation,
                               std::optional<std::chrono::seconds> time_out) {
  PERSEUS_RETURN_IF_ERROR(queue_.submit(operation));
  return wait_for(*operation, time_out);
}

Status InternalOperations::wait_for(Operation& operation,
                                    std::optional<std::chrono::seconds> time_out) const {
  const auto deadline = time_out ? Clock::now() + *time_out : Clock::time_point::max();
  while (!operation.done.wait(kInterruptionCheck)) {
    if (is_interrupted()) return interrupted_status();
    if (Clock::now() < deadline) continue;
    return Status::timed_out("not all of the " + std::to_string(size_) +
                             " ranks completed init within " + std::to_string(time_out->count()) +
                             " s (PERSEUS_START_TIMEOUT)");
  }
  return operation.status;
}

Status InternalOperations::meet(std::chrono::seconds time_out) {
  return run(make(OperationKind::kBarrier, kInitBarrier, {}), time_out);
}

Status InternalOperations::check_ranks(std::vector<int32_t>& ranks) const {
  std::sort(ranks.begin(), ranks.end());
  if (ranks.empty() || ranks.front() < 0 || ranks.back() >= size_ ||
      std::adjacent_find(ranks.begin(), ranks.end()) != ranks.end()) {
    return Status::invalid_argument(
        "the ranks of a process set must be different numbers from 0 to " +
        std::to_string(size_ - 1));
  }
  return {};
}

Result<int32_t> InternalOperations::add_process_set(std::vector<int32_t> ranks) {
  const Status check = check_ranks(ranks);
  const auto added = administer(OperationKind::kAddProcessSet, std::move(ranks), check);
  if (!added.is_ok()) return added.status();
  return added.value()->new_set;
}

Status InternalOperations::remove_process_set(int32_t set) {
  return administer(OperationKind::kRemoveProcessSet, {set}, Status::ok()).status();
}

Result<OperationPtr> InternalOperations::administer(OperationKind kind, std::vector<int32_t> ranks,
                                                    const Status& check) {
  // Not a timed mutex, which ThreadSanitizer of older compilers does not know.
  std::unique_lock lock(mutex_, std::defer_lock);
  while (!lock.try_lock()) {
    if (is_interrupted()) return interrupted_status();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (last_admin_ != nullptr && !last_admin_->done.is_set()) {
    const Description& last = last_admin_->description;
    if (!check.is_ok() || last.kind != kind || last.ranks != ranks) {
      return Status::duplicate_name(
          "the last add_process_set or remove_process_set, which was interrupted, is still under "
          "way; make the same call again to wait for it");
    }
  } else if (!check.is_ok()) {
    queue_.refuse(ProcessSet::kWorld, operation_key(kind, kProcessSet), check.message());
    return check;
  } else {
    const OperationPtr operation = make(kind, kProcessSet, std::move(ranks));
    PERSEUS_RETURN_IF_ERROR(queue_.submit(operation));
    last_admin_ = operation;
  }
  PERSEUS_RETURN_IF_ERROR(wait_for(*last_admin_));
  return last_admin_;
}

Status InternalOperations::open_process_set(int32_t set, std::vector<int32_t> ranks) {
  PERSEUS_RETURN_IF_ERROR(check_ranks(ranks));
  if (set < ProcessSet::kFirstOpened || set > ProcessSet::kLastOpened) {
    return Status::invalid_argument("the id of an opened process set lies between " +
                                    std::to_string(ProcessSet::kFirstOpened) + " and " +
                                    std::to_string(ProcessSet::kLastOpened));
  }
  if (!std::binary_search(ranks.begin(), ranks.end(), rank_)) {
    return Status::invalid_argument("rank " + std::to_string(rank_) +
                                    " cannot open a process set that it does not belong to");
  }
  const auto operation = make(OperationKind::kAddProcessSet, kProcessSet, std::move(ranks));
  operation->new_set = set;
  return run(operation);
}

Status InternalOperations::close_process_set(int32_t set) {
  if (set < ProcessSet::kFirstOpened) {
    return Status::invalid_argument("process set " + std::to_string(set) + " was not opened");
  }
  const auto operation = make(OperationKind::kRemoveProcessSet, kProcessSet, {});
  operation->new_set = set;
  // If the engine accepts nothing more, the set has ended with the world.
  if (!queue_.submit(operation).is_ok()) return {};
  return wait_for(*operation);
}

}  // namespace perseus
