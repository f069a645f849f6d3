// What ranks tell each other first where their first dimensions may differ. Engine thread.
#pragma once

#include <cstdint>
#include <span>

#include "base/task.h"
#include "execution/shard_run.h"

namespace perseus {

// Of an allgather: the rows of every rank's tensors, into rows[rank * tensors + tensor].
Task exchange_row_counts(ShardRun& run, RunContext context, std::span<int64_t> rows);
// Of an alltoall: the rows for each rank, and those from each.
Task exchange_splits(ShardRun& run, RunContext context, std::span<int64_t> send_rows,
                     std::span<int64_t> receive_rows);

}  // namespace perseus
