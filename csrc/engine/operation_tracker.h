// Counts the operations under way on this rank, and completes them. Engine thread.
#pragma once

#include <vector>

#include "engine/blame.h"
#include "engine/thread_binding.h"
#include "execution/executor.h"
#include "observe/counters.h"
#include "observe/timeline.h"
#include "state/announcements.h"
#include "state/operation.h"

namespace perseus {

class OperationTracker final : public OperationObserver {
 public:
  OperationTracker(Names& names, Timeline& timeline, Counters& counters, ThreadBinding& binding,
                   Announcements& announcements, Blame& blame)
      : names_(names),
        timeline_(timeline),
        counters_(counters),
        binding_(binding),
        announcements_(announcements),
        blame_(blame) {}

  // The engine has taken up the operation.
  void begin(const Operation& operation);
  // Completes the operation: notes what was announced with it, gives back its name, calls back, and
  // wakes the threads that wait for it.
  void complete(const OperationPtr& operation, Status status);

  // OperationObserver. Waiting threads are woken by wake_waiters alone: a thread that waits for
  // many operations one by one is then woken once for all that were merged, and finds the others
  // done when it runs.
  void operation_done(const OperationPtr& operation, const Status& status) override;
  void wake_waiters() override;

  bool is_idle() const { return operations_ == 0; }
  // Bytes of the tensors of all operations under way.
  int64_t bytes() const { return bytes_; }

 private:
  // Returns whether a thread may be asleep, waiting for it.
  bool complete_silently(const OperationPtr& operation, Status status);

  Names& names_;
  Timeline& timeline_;
  Counters& counters_;
  ThreadBinding& binding_;
  Announcements& announcements_;
  Blame& blame_;
  int operations_ = 0;
  int64_t bytes_ = 0;
  std::vector<OperationPtr> to_wake_;  // done, with threads asleep for them
};

}  // namespace perseus
