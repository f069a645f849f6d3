// How the engine's work comes to its end: the world breaks, since some rank cannot go on, or this
// rank shuts down. Either way every outstanding operation ends, the other ranks hear why, and the
// loop stops once what had been agreed on is done.
//
//   running -> broken -> shutting down -> closed: the links say goodbye, and the loop stops
//   running -----------> shutting down -> closed
//
// A world that is broken stays so until this rank shuts down as well. Loop thread.
#pragma once

#include <string>

#include "base/event_loop.h"
#include "device/cuda/gpu_thread.h"
#include "engine/blame.h"
#include "engine/departures.h"
#include "execution/executor.h"
#include "transport/mesh.h"

namespace perseus {

class ProcessSets;
class SubmissionQueue;

class Termination final : public ShardFailureHandler {
 public:
  Termination(EventLoop& loop, Mesh& mesh, GpuThreads& gpus, SubmissionQueue& queue,
              Executor& executor, ProcessSets& sets, Departures& departures, Blame& blame)
      : loop_(loop),
        mesh_(mesh),
        gpus_(gpus),
        queue_(queue),
        executor_(executor),
        sets_(sets),
        departures_(departures),
        blame_(blame) {}

  // Why no operation can begin here any more; ok while some can.
  Status reason() const;
  bool is_broken() const { return !broken_.is_ok(); }
  bool is_closed() const { return closed_; }

  // No operation can complete any more: ends all of them, and tells the neighbours. Only the first
  // call has an effect.
  void break_world(const Broken& broken);
  // The news that this rank itself is the one that cannot go on.
  Broken failed_here(const Status& why) const;

  // Lets what has been agreed on end, for 2 s, and all else at once. `why`: for the other ranks, if
  // it is no shutdown in order.
  void begin_shutdown(const std::string& why);
  // Breaks the world for all as it starts, and shuts down when the others have had time to hear
  // why.
  void break_at_start(const Status& why);

  // ShardFailureHandler. Other ranks may wait for what this one can no longer send.
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
  ProcessSets& sets_;
  Departures& departures_;
  Blame& blame_;
  Status broken_;
  bool shutting_down_ = false;
  bool closed_ = false;
};

}  // namespace perseus
