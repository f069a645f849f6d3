// A shard on its way by NCCL: from tensors on GPUs to tensors on GPUs, all of it on one stream. The
// GPU's thread queues it in the shard's turn; nothing waits on the host but for the end.
//
//   stream of the lane:  wait for the framework's streams, pack, collective, unpack
//
// An allreduce in hierarchical mode comes in two halves, launched in turns of their own:
//
//   upper:  wait, pack, reduce-scatter inside hosts, allreduce between them
//   lower:  allgather inside hosts, unpack
//
// Engine thread.
#pragma once

#include "base/task.h"
#include "execution/gpu/gpu_launches.h"
#include "execution/shard_run.h"

namespace perseus {

// Whether NCCL does such operations: what all ranks say alike decides.
bool nccl_supports(const Description& description, const Settings& settings);

// Whether the shard, which goes by NCCL, has halves; the same on all ranks.
bool has_halves(const ShardRun& run, const Settings& settings);

// Prepares the shard, waits for its turn, and runs it to its end; where NCCL turns out not to reach
// all ranks, by way of the host. The set's NcclGroup must have begun to meet.
Task run_in_turn(ShardRun& run, RunContext context, GpuLaunches& launches);

}  // namespace perseus
