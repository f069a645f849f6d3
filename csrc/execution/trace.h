// Shows the life of an operation in the timeline, under Horovod's names where it has them:
//
//   tensor's row   NEGOTIATE_ALLREDUCE | ALLREDUCE ( QUEUE | ... )
//   stream's row                                     SHARD 0 ( PACK | ... | UNPACK )
//
// Engine thread. Each call is a load and a branch while there is no timeline.
#pragma once

#include <string_view>

#include "execution/batch.h"
#include "observe/timeline.h"
#include "state/operation.h"

namespace perseus {

// A message between two ranks begins; it is over when the operation is complete.
void trace_message(Timeline& timeline, Operation& operation);
// The operation waits for other ranks.
void trace_negotiation(Timeline& timeline, Operation& operation);
// It is agreed on, and waits for a stream.
void trace_agreed(Timeline& timeline, Operation& operation);
void trace_complete(Timeline& timeline, Operation& operation);

// A shard is on its stream, so the operations that have a part in it no longer wait.
void trace_shard_begin(Timeline& timeline, const ShardRun& run);
void trace_shard_end(Timeline& timeline, const ShardRun& run);

// Shows a shard on its stream for as long as this object lives.
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

// Shows a step of a shard, such as PACK, for as long as this object lives.
class TracedStep {
 public:
  TracedStep(Timeline& timeline, const ShardRun& run, std::string_view step);
  TracedStep(const TracedStep&) = delete;
  ~TracedStep();

 private:
  Timeline* timeline_;  // null: there is no timeline
  const ShardRun& run_;
};

}  // namespace perseus
