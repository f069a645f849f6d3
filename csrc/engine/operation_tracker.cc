#include "engine/operation_tracker.h"

#include <unistd.h>

#include <utility>

#include "engine/engine_scope.h"
#include "execution/trace.h"
#include "observe/log.h"

namespace perseus {

void OperationTracker::begin(const Operation& operation) {
  counters_.operations_submitted.add();
  ++operations_;
  bytes_ += operation.description.bytes();
}

void OperationTracker::complete(const OperationPtr& operation, Status status) {
  if (complete_silently(operation, std::move(status))) operation->done.wake();
}

bool OperationTracker::complete_silently(const OperationPtr& operation, Status status) {
  (status.is_ok() ? counters_.operations_completed : counters_.operations_failed).add();
  if (status.code() == StatusCode::kAborted) blame_.operation_aborted();
  // Before anybody can learn that it is done, and read the number.
  if (status.is_ok()) announcements_.note_completed(operation->announced);
  // The ranks that had joined have used fewer names.
  if (status.is_ok() && operation->description.kind == OperationKind::kJoin) names_.reset_uses();
  trace_complete(timeline_, *operation);
  operation->status = status_for(*operation, std::move(status));
  operation->give_back_name(names_);
  --operations_;
  bytes_ -= operation->description.bytes();
  const OperationCallback callback = std::move(operation->callback);
  const bool has_waiters = operation->done.set_silently();
  if (operation->gpu != nullptr) operation->launched.set();
  if (callback) {
    callback(*operation);
    if (EngineScope::is_child_of_callback()) {
      PERSEUS_LOG(kError,
                  "a callback forked, and the child process returned from it; the child ends now");
      _exit(1);
    }
  }
  if (operation->is_bound) binding_.remove_operation();
  return has_waiters;
}

void OperationTracker::operation_done(const OperationPtr& operation, const Status& status) {
  if (complete_silently(operation, status)) to_wake_.push_back(operation);
}

void OperationTracker::wake_waiters() {
  for (const OperationPtr& operation : to_wake_) operation->done.wake();
  to_wake_.clear();
}

}  // namespace perseus
