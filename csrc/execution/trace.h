// What the timeline shows of an operation's life, in Horovod's words where it has them:
//
//   tensor's row   NEGOTIATE_ALLREDUCE | ALLREDUCE ( QUEUE | ... )
//   stream's row                                     SHARD 0 ( PACK | ... | UNPACK )
//
// Engine thread. Each call is a load and a branch while there is no timeline.
#pragma once

#include <string_view>

#include "execution/shard_run.h"
#include "observe/timeline.h"
#include "state/operation.h"

namespace perseus {

// The operation waits for other ranks.
void trace_negotiation(Timeline& timeline, Operation& operation);
// It is agreed on, and waits for a stream.
void trace_agreed(Timeline& timeline, Operation& operation);
void trace_complete(Timeline& timeline, Operation& operation);

// A shard is on its stream; the operations that it carries a part of wait no more.
void trace_shard_begin(Timeline& timeline, const ShardRun& run);
void trace_shard_end(Timeline& timeline, const ShardRun& run);

// A shard on its stream while this lives.
class TracedShard {
 public:
  TracedShard(Timeline& timeline, const ShardRun& run) : timeline_(timeline), run_(run) {
    trace_shard_begin(timeline_, run_);
  }
  TracedShard(const TracedShard&) = delete;
  ~TracedShard() { trace_shard_end(timeline_, run_); }

 private:
  Timeline& timeline_;
  const ShardRun& run_;
};

// A step of a shard, such as PACK, while this lives.
class TracedStep {
 public:
  TracedStep(Timeline& timeline, const ShardRun& run, std::string_view step);
  TracedStep(const TracedStep&) = delete;
  ~TracedStep();

 private:
  Timeline* timeline_;  // null: nothing is shown
  const ShardRun& run_;
};

}  // namespace perseus
