// The collectives. Each is a Task written once against links, in a file of its own. Any number of
// them run side by side on the event loop's thread. They work on the caller's memory, take scratch
// from the buffer pool, and return when this rank's part is done.
//
// Every rank of the group must call the same collective with the same operation, shard and other
// arguments; only the buffers may differ. The results of reductions are the same bits on every
// rank. 16-bit floats are accumulated in float32 and rounded as rarely as the algorithm allows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/event_loop.h"
#include "base/setting_choices.h"
#include "base/task.h"
#include "base/types.h"
#include "transport/link.h"

namespace perseus {

class BufferPool;

struct GroupSplit;

// The ranks that take part, seen from this one. Indices count within the group.
struct Group {
  int index = 0;
  int size = 1;
  std::vector<Link*> links;  // by index; null at our own
  std::vector<int> host_of;  // host number of each index
  // Null unless every host holds the same number of the group's ranks.
  std::shared_ptr<const GroupSplit> by_host;
  // Null unless all ranks are on one host, and each last-level cache over them has the same number
  // of them, of several, under it.
  std::shared_ptr<const GroupSplit> by_cache;
};

// The ranks on this host or under this cache, and the ranks at this rank's position in every one.
struct GroupSplit {
  Group local;
  Group across;
};

// The groups that the hierarchical allreduce works in: over hosts or, inside one host, over caches.
// Null if it works in none.
const GroupSplit* levels_of(const Group& group);
// Returns whether a hierarchical allreduce is worth while here: there are several hosts or caches,
// and as many ranks in each, more than one.
bool can_be_hierarchical(const Group& group);
bool can_be_hierarchical_over_hosts(const Group& group);

// Returns whether its ranks are on several hosts.
bool spans_hosts(const Group& group);

// `cache_of`: a number for the last-level cache over each index; empty, or below 0, if it is not
// known.
Group make_group(int index, std::vector<Link*> links, std::vector<int> host_of,
                 const std::vector<int>& cache_of = {});

// How many message numbers one collective may use.
inline constexpr uint32_t kStepsPerCollective = 1u << 24;

// How one collective is to run: the tags of its messages, their priority, and its memory.
struct CollectiveOptions {
  // Together they tell this collective's messages from those of all others; see Tag.
  uint64_t operation = 0;
  uint32_t shard = 0;
  int32_t priority = 0;
  // A collective numbers its messages from here on, and uses at most kStepsPerCollective numbers.
  // A collective that is built of others gives each of them numbers of its own.
  uint32_t first_step = 0;
  BufferPool* buffers = nullptr;  // where its scratch comes from
  // More is under way than the caches hold, so results are written past them.
  bool streaming = false;
};

// out = factor * reduction over ranks of in. in may equal out. An average is kSum with a factor of
// 1 / size: then no float16 has to hold the sum, which may be out of its range.
Task allreduce(const Group& group, CollectiveOptions options, const void* in, void* out,
               size_t elements, DataType type, ReduceOp op, AllreduceAlgorithm algorithm,
               double factor = 1.0);
// The same where the inputs of all ranks are in this rank's memory already: `inputs` holds them by
// index, one after the other. out must not overlap them. Computes the same bits as kAuto. Returns
// kOutOfMemory if there is no memory for scratch.
Status allreduce_gathered(const Group& group, BufferPool& buffers,
                          std::span<const std::byte> inputs, void* out, size_t elements,
                          DataType type, ReduceOp op, double factor);
// The algorithm that kAuto stands for. It depends on the group and the bytes alone, so that all
// ranks choose the same.
AllreduceAlgorithm choose_allreduce(const Group& group, size_t bytes);
// The same where ranks that are near each other are not to reduce first among themselves.
AllreduceAlgorithm choose_flat_allreduce(const Group& group, size_t bytes);

// Copies the root's `data` to every rank's `data`.
Task broadcast(const Group& group, CollectiveOptions options, void* data, size_t bytes, int root);

// Gathers every rank's `in`, of bytes_of[index] bytes, in `out`, one after the other by index.
Task allgather(const Group& group, CollectiveOptions options, const void* in, void* out,
               std::span<const uint64_t> bytes_of);

// Sends send_bytes[i] bytes to rank i, and receives receive_bytes[i] from it. Both `in` and `out`
// are packed in index order.
Task alltoall(const Group& group, CollectiveOptions options, const void* in, void* out,
              std::span<const uint64_t> send_bytes, std::span<const uint64_t> receive_bytes);

// out = factor * this rank's part of the reduction: elements_of[index] elements, parts in index
// order.
Task reduce_scatter(const Group& group, CollectiveOptions options, const void* in, void* out,
                    std::span<const uint64_t> elements_of, DataType type, ReduceOp op,
                    double factor = 1.0);

}  // namespace perseus
