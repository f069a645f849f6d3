// Pipelining: a collective that works on its data chunk by chunk runs several chunks side by side,
// so that one chunk is on the wire while another is being reduced.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>

#include "base/task.h"
#include "collectives/scratch_array.h"

namespace perseus {

// Enough to keep the wire busy, for algorithms with no better reason for a number.
inline constexpr size_t kDefaultLanes = 4;

template <typename ChunkTask>
Task run_lane(const ChunkTask& chunk_task, size_t first, size_t stride, size_t chunks) {
  for (size_t chunk = first; chunk < chunks; chunk += stride) {
    Task task = chunk_task(chunk);
    Status status = co_await std::move(task);
    if (!status.is_ok()) co_return status;
  }
  co_return Status::ok();
}

// Runs chunk_task(0) ... chunk_task(chunks - 1), each giving a Task, `lanes` at a time: a lane
// takes every lanes-th chunk. After an error a lane takes no further chunk. The other lanes end by
// themselves, since a link that fails makes the operation fail on all links.
template <typename ChunkTask>
Task run_in_lanes(BufferPool& buffers, size_t chunks, size_t lanes, const ChunkTask& chunk_task) {
  lanes = std::min(lanes, chunks);
  ScratchArray<Task> tasks(buffers, lanes);
  if (!tasks) co_return out_of_scratch(lanes * sizeof(Task));
  for (size_t lane = 0; lane < lanes; ++lane) {
    tasks.emplace(run_lane(chunk_task, lane, lanes, chunks));
  }
  AllTasks all(tasks.span());
  Status status = co_await all;
  co_return status;
}

}  // namespace perseus
