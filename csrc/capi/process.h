// What perseus.h keeps for the life of the process, whatever engines come and go. Any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>

#include "engine/engine.h"
#include "observe/counters.h"
#include "observe/timeline.h"
#include "perseus/perseus.h"
#include "state/handles.h"
#include "state/names.h"

namespace perseus {

class Process {
 public:
  // Never destroyed: threads of the host program may call until the very end.
  static Process& instance();

  // Null when not initialised.
  std::shared_ptr<Engine> engine() const;

  Status init(const std::vector<int>& ranks);
  Status shutdown(const std::string& why);

  Names names;
  Handles handles;
  Timeline timeline;
  Counters counters;
  // How long a waiting thread yields before it sleeps, as the last init was told.
  std::atomic<std::chrono::microseconds> spin{std::chrono::microseconds(0)};

 private:
  Process();

  // A forked child has no engine thread: it starts without an engine or handles, and leaves the
  // parent's alone.
  void before_fork();
  void after_fork_in_parent();
  void after_fork_in_child();

  std::mutex lifecycle_;  // one init or shutdown at a time
  mutable std::mutex engine_mutex_;
  std::shared_ptr<Engine> engine_;
  int generation_ = 0;  // init calls
};

// What perseus.h has told, as a value.
Status from_c(perseus_status_t status, const char* message);
// While it lives, another message is perseus_last_error's: a callback may run within a call.
class KeptError {
 public:
  KeptError();
  KeptError(const KeptError&) = delete;
  ~KeptError();

 private:
  std::string error_;
};
// Keeps the message for perseus_last_error and gives the code.
perseus_status_t to_c(const Status& status);
Status not_initialized();

}  // namespace perseus
