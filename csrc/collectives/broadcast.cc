#include <algorithm>
#include <bit>
#include <utility>

#include "collectives/collective.h"
#include "collectives/lanes.h"
#include "collectives/parts.h"
#include "collectives/running_collective.h"
#include "collectives/scratch_array.h"

namespace perseus {
namespace {

constexpr size_t kTreeBytes = 64 << 10;

// Binomial tree: in round k the ranks at distances below 2^k from the root each serve one more.
Task broadcast_tree(const Group& group, CollectiveOptions options, void* data, size_t bytes,
                    int root) {
  const RunningCollective run(group, options);
  const int distance = (group.index - root + group.size) % group.size;
  if (distance != 0) {
    const int parent = distance - static_cast<int>(std::bit_floor(static_cast<unsigned>(distance)));
    Message incoming;
    run.receive(incoming, (root + parent) % group.size, 0, data, bytes);
    Status received = co_await incoming;
    PERSEUS_CO_RETURN_IF_ERROR(received);
  }
  ScratchArray<Message> sends(*options.buffers, 32);
  if (!sends) co_return out_of_scratch(32 * sizeof(Message));
  const int first =
      distance == 0 ? 1 : 2 * static_cast<int>(std::bit_floor(static_cast<unsigned>(distance)));
  for (int64_t step = first; distance + step < group.size; step *= 2) {
    run.send(sends.emplace(), (root + distance + step) % group.size, 0, data, bytes);
  }
  Task all_sent = await_all(sends.span());
  Status status = co_await std::move(all_sent);
  co_return status;
}

// A rank's neighbours in the chain; -1 at its ends.
struct Neighbours {
  int previous = -1;
  int next = -1;
};

// The chain goes through one host after another, beginning with the root's, so that the data enter
// and leave each host once.
Neighbours chain_neighbours(const Group& group, int root) {
  const int hosts = 1 + *std::max_element(group.host_of.begin(), group.host_of.end());
  // A rank's place in the chain: its host's number, then its own, both counted from the root's.
  const auto place = [&](int i) {
    return std::pair((group.host_of[i] - group.host_of[root] + hosts) % hosts,
                     (i - root + group.size) % group.size);
  };
  const auto own = place(group.index);
  Neighbours neighbours;
  for (int i = 0; i < group.size; ++i) {
    const auto at = place(i);
    if (at < own && (neighbours.previous < 0 || at > place(neighbours.previous))) {
      neighbours.previous = i;
    }
    if (at > own && (neighbours.next < 0 || at < place(neighbours.next))) neighbours.next = i;
  }
  return neighbours;
}

struct ChainBroadcast : RunningCollective {
  Neighbours neighbours;
  std::byte* data;
  size_t bytes;
  size_t chunk_bytes;
};

Task pass_chunk(const ChainBroadcast& run, size_t index) {
  const Range chunk = chunk_of({0, run.bytes}, run.chunk_bytes, index);
  if (run.neighbours.previous >= 0) {
    Message incoming;
    run.receive(incoming, run.neighbours.previous, index, run.data + chunk.begin, chunk.size);
    Status received = co_await incoming;
    PERSEUS_CO_RETURN_IF_ERROR(received);
  }
  if (run.neighbours.next >= 0) {
    Message outgoing;
    run.send(outgoing, run.neighbours.next, index, run.data + chunk.begin, chunk.size);
    Status sent = co_await outgoing;
    PERSEUS_CO_RETURN_IF_ERROR(sent);
  }
  co_return Status::ok();
}

Task broadcast_chain(const Group& group, CollectiveOptions options, void* data, size_t bytes,
                     int root) {
  const ChainBroadcast run{{group, options},
                           chain_neighbours(group, root),
                           static_cast<std::byte*>(data),
                           bytes,
                           chunk_elements(group, bytes, 1, 1)};
  const auto chunk_task = [&run](size_t index) { return pass_chunk(run, index); };
  Task lanes =
      run_in_lanes(*options.buffers, divide_up(bytes, run.chunk_bytes), kDefaultLanes, chunk_task);
  Status status = co_await std::move(lanes);
  co_return status;
}

}  // namespace

Task broadcast(const Group& group, CollectiveOptions options, void* data, size_t bytes, int root) {
  if (bytes <= kTreeBytes || group.size <= 2)
    return broadcast_tree(group, options, data, bytes, root);
  return broadcast_chain(group, options, data, bytes, root);
}

}  // namespace perseus
