#include <cstring>
#include <utility>

#include "collectives/collective.h"
#include "collectives/parts.h"
#include "collectives/running_collective.h"
#include "collectives/scratch_array.h"

namespace perseus {
namespace {

// Copies this rank's block to its place.
const std::byte* place_own(const Group& group, const void* in, std::byte* out,
                           std::span<const uint64_t> bytes_of) {
  std::byte* own = out + offset_of(bytes_of, group.index);
  const size_t bytes = bytes_of[group.index];
  if (own != in && bytes != 0) std::memmove(own, in, bytes);
  return own;
}

Task allgather_direct(const Group& group, CollectiveOptions options, const void* in, std::byte* out,
                      std::span<const uint64_t> bytes_of) {
  const RunningCollective run(group, options);
  const std::byte* own = place_own(group, in, out, bytes_of);
  ScratchArray<Message> messages(*options.buffers, 2 * group.size);
  if (!messages) co_return out_of_scratch(2 * group.size * sizeof(Message));
  uint64_t offset = 0;
  for (int i = 0; i < group.size; offset += bytes_of[i++]) {
    if (i != group.index) run.receive(messages.emplace(), i, 0, out + offset, bytes_of[i]);
  }
  for (int distance = 1; distance < group.size; ++distance) {
    run.send(messages.emplace(), run.rank_after(distance), 0, own, bytes_of[group.index]);
  }
  Task all_moved = await_all(messages.span());
  Status status = co_await std::move(all_moved);
  co_return status;
}

// Each block travels round the ring from its owner.
Task allgather_ring(const Group& group, CollectiveOptions options, const void* in, std::byte* out,
                    std::span<const uint64_t> bytes_of) {
  const RunningCollective run(group, options);
  place_own(group, in, out, bytes_of);
  for (int hop = 0; hop < group.size - 1; ++hop) {
    const int outgoing = run.rank_before(hop);
    const int incoming = run.rank_before(hop + 1);
    Task exchanged = run.exchange(
        hop, {run.rank_after(1), out + offset_of(bytes_of, outgoing), bytes_of[outgoing]},
        {run.rank_before(1), out + offset_of(bytes_of, incoming), bytes_of[incoming]});
    Status status = co_await std::move(exchanged);
    PERSEUS_CO_RETURN_IF_ERROR(status);
  }
  co_return Status::ok();
}

}  // namespace

Task allgather(const Group& group, CollectiveOptions options, const void* in, void* out,
               std::span<const uint64_t> bytes_of) {
  auto* gathered = static_cast<std::byte*>(out);
  if (is_small_group(group)) return allgather_direct(group, options, in, gathered, bytes_of);
  return allgather_ring(group, options, in, gathered, bytes_of);
}

}  // namespace perseus
