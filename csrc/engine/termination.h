// Ends the engine's work, because the world breaks (some rank cannot go on) or because this rank
// shuts down. Either way every outstanding operation ends and the other ranks are told why. Once
// the agreed operations are done, the loop stops.
//
//   running -> broken -> shutting down -> closed: the links say goodbye, and the loop stops
//   running -----------> shutting down -> closed
//
// A world that is broken stays so until this rank shuts down as well. Engine thread.
#pragma once

#include <string>

#include "base/event_loop.h"
#include "device/cuda/gpu_thread.h"
#include "engine/blame.h"
#include "engine/departures.h"
#include "execution/executor.h"
#include "transport/mesh.h"

namespace perseus {

class Messenger;
class ProcessSets;
class SubmissionQueue;

class Termination final : public ShardFailureHandler {
 public:
  Termination(EventLoop& loop, Mesh& mesh, GpuThreads& gpus, SubmissionQueue& queue,
              Executor& executor, Messenger& messenger, ProcessSets& sets, Departures& departures,
              Blame& blame)
      : loop_(loop),
        mesh_(mesh),
        gpus_(gpus),
        queue_(queue),
        executor_(executor),
        messenger_(messenger),
        sets_(sets),
        departures_(departures),
        blame_(blame) {}

  // The error for operations that begin from now on; ok while they can.
  Status reason() const;
  bool is_broken() const { return !broken_.is_ok(); }
  bool is_closed() const { return closed_; }

  // Ends all operations, since none can complete any more, and tells the neighbours. Only the first
  // call has an effect.
  void break_world(const Broken& broken);
  // The news that this rank itself is the one that cannot go on.
  Broken failed_here(const Status& why) const;

  // Gives agreed operations 2 s to complete, and ends all others at once. `why`: the reason that
  // other ranks are given; empty if this rank shuts down normally.
  void begin_shutdown(const std::string& why);
  // Breaks a world that is just starting, and shuts down once the others have had time to hear why.
  void break_at_start(const Status& why);

  // ShardFailureHandler. Breaks the world: other ranks may wait for what this one cannot send.
  Status shard_failed(const Status& status) override;
  void shard_ended() override { close_when_idle(); }

 private:
  void end_operations(const Broken& news);
  void stop_taking_part();
  void close_when_idle();

  EventLoop& loop_;
  Mesh& mesh_;
  GpuThreads& gpus_;
  SubmissionQueue& queue_;
  Executor& executor_;
  Messenger& messenger_;
  ProcessSets& sets_;
  Departures& departures_;
  Blame& blame_;
  Status broken_;
  bool shutting_down_ = false;
  bool closed_ = false;
};

}  // namespace perseus
