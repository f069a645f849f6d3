// Where first dimensions may differ, ranks first tell each other their sizes, unless these have
// come with the agreement (negotiation/piggyback.h). Engine thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/task.h"
#include "execution/batch.h"

namespace perseus {

// Returns the sizes that this rank's ballot may take along for the operation, the same number on
// all ranks, or nothing if its ranks need not tell each other sizes. They are in the operation's
// memory, or in `scratch`.
std::span<const std::byte> sizes_for_agreement(const Operation& operation,
                                               std::vector<std::byte>& scratch);

// For an allgather: stores how many rows every rank's tensors have in rows[rank * tensors +
// tensor].
Task exchange_row_counts(ShardRun& run, RunContext context, std::span<int64_t> rows);
// For an alltoall: stores how many rows go to each rank, and how many come from each.
Task exchange_splits(ShardRun& run, RunContext context, std::span<int64_t> send_rows,
                     std::span<int64_t> receive_rows);

}  // namespace perseus
