// The state behind perseus.h that outlives engines: it lasts as long as the process. Any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>

#include "bootstrap/environment.h"
#include "engine/engine.h"
#include "engine/learned.h"
#include "observe/counters.h"
#include "observe/timeline.h"
#include "state/handles.h"
#include "state/names.h"

namespace perseus {

class Process {
 public:
  // Never destroyed: threads of the host program may call it until the process ends.
  static Process& instance();

  // Null when not initialised.
  std::shared_ptr<Engine> engine() const;

  // The request's generation is not looked at.
  Status init(WorldRequest request);
  Status shutdown(const std::string& why);
  // True once init has been called.
  bool has_tried_to_join() const { return calls_ != 0; }

  Names names;
  Learned learned;
  Handles handles;
  Timeline timeline;
  Counters counters;
  // How long a waiting thread yields before it sleeps, from the settings of the last init.
  std::atomic<std::chrono::microseconds> spin{std::chrono::microseconds(0)};

 private:
  Process();

  // A forked child has no engine thread. It starts without an engine and handles, and does not
  // touch its parent's.
  void before_fork();
  void after_fork_in_parent();
  void after_fork_in_child();

  // Init, with the rank taken.
  Status join(WorldRequest request);
  void give_rank_back();

  std::mutex lifecycle_;  // one init or shutdown at a time
  mutable std::mutex engine_mutex_;
  std::shared_ptr<Engine> engine_;
  std::atomic<int> calls_{0};  // of init
  int generation_ = 0;         // those of them that went by the environment
};

}  // namespace perseus
