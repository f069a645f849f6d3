// Runs a shard: from the tensors to the wire and back. There is one Task for each kind of
// operation. Engine thread.
#pragma once

#include "base/task.h"
#include "execution/batch.h"

namespace perseus {

// Runs the shard to its end.
Task run_shard(ShardRun& run, RunContext context);

}  // namespace perseus
