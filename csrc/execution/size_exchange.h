// Where first dimensions may differ, ranks first tell each other their sizes. Engine thread.
#pragma once

#include <cstdint>
#include <span>

#include "base/task.h"
#include "execution/batch.h"

namespace perseus {

// For an allgather: stores how many rows every rank's tensors have in rows[rank * tensors +
// tensor].
Task exchange_row_counts(ShardRun& run, RunContext context, std::span<int64_t> rows);
// For an alltoall: stores how many rows go to each rank, and how many come from each.
Task exchange_splits(ShardRun& run, RunContext context, std::span<int64_t> send_rows,
                     std::span<int64_t> receive_rows);

}  // namespace perseus
