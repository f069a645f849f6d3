// Runs a shard by NCCL: from tensors on GPUs to tensors on GPUs, on one stream. The GPU's thread
// queues all of it in the shard's turn. The host waits only for the end.
//
//   stream of the lane:  wait for the framework's streams, pack, collective, unpack
//
// An allreduce in hierarchical mode has two halves, which are launched in turns of their own:
//
//   upper:  wait, pack, reduce-scatter inside hosts, allreduce between them
//   lower:  allgather inside hosts, unpack
//
// Engine thread.
#pragma once

#include "base/task.h"
#include "execution/batch.h"
#include "execution/gpu/gpu_launches.h"

namespace perseus {

// Returns whether NCCL can do such operations. Depends only on what all ranks describe alike.
bool nccl_supports(const Description& description, const Settings& settings);

// Returns whether the shard, which goes by NCCL, has halves; the same on all ranks.
bool has_halves(const ShardRun& run, const Settings& settings);

// Prepares the shard, waits for its turn, and runs it to its end. If NCCL turns out not to work for
// all ranks, the shard is staged through the host's memory. Call after the set's NcclGroup has
// begun to exchange capabilities.
Task run_in_turn(ShardRun& run, RunContext context, GpuLaunches& launches);

}  // namespace perseus
