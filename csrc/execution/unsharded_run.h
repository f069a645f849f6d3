// Runs operations that are not sharded, since their parts differ from rank to rank, or are not
// known before the ranks have exchanged their sizes: allgather, alltoall, reduce-scatter. Engine
// thread.
#pragma once

#include "base/task.h"
#include "execution/batch.h"

namespace perseus {

Task run_unsharded(ShardRun& run, RunContext context);

}  // namespace perseus
