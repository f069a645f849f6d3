#include <cstring>

#include "collectives/collective.h"
#include "collectives/message.h"
#include "collectives/parts.h"

namespace perseus {
namespace {

// Beyond these, everyone sending to everyone opens more connections than it saves hops.
constexpr int kDirectRanks = 8;
constexpr int kDirectLocalRanks = 32;

uint64_t offset_of(std::span<const uint64_t> bytes_of, int index) {
  uint64_t offset = 0;
  for (int i = 0; i < index; ++i) offset += bytes_of[i];
  return offset;
}

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
  const Wire wire(group, options);
  const std::byte* own = place_own(group, in, out, bytes_of);
  ScratchArray<Message> messages(*options.buffers, 2 * group.size);
  if (!messages) co_return out_of_scratch(2 * group.size * sizeof(Message));
  uint64_t offset = 0;
  for (int i = 0; i < group.size; offset += bytes_of[i++]) {
    if (i != group.index) wire.receive(messages.emplace(), i, 0, out + offset, bytes_of[i]);
  }
  for (int distance = 1; distance < group.size; ++distance) {
    const int to = (group.index + distance) % group.size;
    wire.send(messages.emplace(), to, 0, own, bytes_of[group.index]);
  }
  Status status;
  for (Message& message : messages.span()) {
    Status moved = co_await message;
    keep_first_error(status, moved);
  }
  co_return status;
}

// Each block goes round the ring from its owner.
Task allgather_ring(const Group& group, CollectiveOptions options, const void* in, std::byte* out,
                    std::span<const uint64_t> bytes_of) {
  const Wire wire(group, options);
  place_own(group, in, out, bytes_of);
  const int size = group.size;
  const int next = (group.index + 1) % size;
  const int previous = (group.index + size - 1) % size;
  for (int hop = 0; hop < size - 1; ++hop) {
    const int outgoing = (group.index - hop + size) % size;
    const int incoming = (group.index - hop - 1 + size) % size;
    Message sending, receiving;
    wire.receive(receiving, previous, hop, out + offset_of(bytes_of, incoming), bytes_of[incoming]);
    wire.send(sending, next, hop, out + offset_of(bytes_of, outgoing), bytes_of[outgoing]);
    Status sent = co_await sending;
    Status received = co_await receiving;
    PERSEUS_CO_RETURN_IF_ERROR(sent);
    PERSEUS_CO_RETURN_IF_ERROR(received);
  }
  co_return Status::ok();
}

}  // namespace

Task allgather(const Group& group, CollectiveOptions options, const void* in, void* out,
               std::span<const uint64_t> bytes_of) {
  auto* gathered = static_cast<std::byte*>(out);
  const int most = host_count(group) == 1 ? kDirectLocalRanks : kDirectRanks;
  if (group.size <= most) return allgather_direct(group, options, in, gathered, bytes_of);
  return allgather_ring(group, options, in, gathered, bytes_of);
}

}  // namespace perseus
