// The collectives. Each is a Task written once against links, in a file of its own. They run on the
// event loop's thread, any number side by side; they take memory of the caller's and scratch from
// the buffer pool, and return when this rank's part is done.
//
// Every rank of the group must call the same collective with the same arguments (but for the
// buffers) under the same operation and shard. Results of reductions are the same bits on every
// rank. 16-bit floats are accumulated in float32 and rounded as seldom as the algorithm allows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/event_loop.h"
#include "base/task.h"
#include "base/types.h"
#include "transport/link.h"

namespace perseus {

class BufferPool;

struct HostSplit;

// The ranks that take part, seen from this one. Indices count within the group.
struct Group {
  int index = 0;
  int size = 1;
  std::vector<Link*> links;  // by index; null at our own
  std::vector<int> host_of;  // host number of each index
  // What the hierarchical allreduce is built of; null unless every host holds the same number of
  // the group's ranks.
  std::shared_ptr<const HostSplit> by_host;
};

// The ranks on this host, and those at this rank's position on every host.
struct HostSplit {
  Group local;
  Group across;
};

// Whether there is something to do inside hosts and something between them, alike for all ranks.
bool can_be_hierarchical(const Group& group);

Group make_group(int index, std::vector<Link*> links, std::vector<int> host_of);

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

enum class AllreduceAlgorithm : uint8_t {
  kAuto,
  kDirect,
  kRecursiveDoubling,
  kRing,
  kHierarchical
};

// out = factor * reduction over ranks of in. in may equal out. An average is kSum with a factor of
// 1 / size: then no float16 needs to hold the sum, which may be out of its range.
Task allreduce(const Group& group, CollectiveOptions options, const void* in, void* out,
               size_t elements, DataType type, ReduceOp op, AllreduceAlgorithm algorithm,
               double factor = 1.0);
// The same where every rank's input is at hand, by index, one after the other; out must not overlap
// them. The bits are those that kAuto gives. Returns kOutOfMemory if there is none for scratch.
Status allreduce_gathered(const Group& group, BufferPool& buffers,
                          std::span<const std::byte> inputs, void* out, size_t elements,
                          DataType type, ReduceOp op, double factor);
// What kAuto stands for: a pure function of the group, the bytes and nothing else.
AllreduceAlgorithm choose_allreduce(const Group& group, size_t bytes);

// The root's `data` to every rank's `data`.
Task broadcast(const Group& group, CollectiveOptions options, void* data, size_t bytes, int root);

// Every rank's `in`, of bytes_of[index] bytes, to `out`, one after the other in index order.
Task allgather(const Group& group, CollectiveOptions options, const void* in, void* out,
               std::span<const uint64_t> bytes_of);

// send_bytes[i] bytes to rank i, receive_bytes[i] from it; both packed in index order.
Task alltoall(const Group& group, CollectiveOptions options, const void* in, void* out,
              std::span<const uint64_t> send_bytes, std::span<const uint64_t> receive_bytes);

// out = factor * this rank's part of the reduction: elements_of[index] elements, parts in index
// order.
Task reduce_scatter(const Group& group, CollectiveOptions options, const void* in, void* out,
                    std::span<const uint64_t> elements_of, DataType type, ReduceOp op,
                    double factor = 1.0);

}  // namespace perseus
