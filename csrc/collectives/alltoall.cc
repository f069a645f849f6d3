// Pairwise exchange: at distance d everyone sends to the rank d after it and receives from the rank
// d before it, so that no rank is everybody's target at once.
#include <cstring>

#include "collectives/collective.h"
#include "collectives/lanes.h"
#include "collectives/message.h"

namespace perseus {
namespace {

constexpr size_t kPairsAtOnce = 4;

struct Job {
  const Group& group;
  Wire wire;
  const std::byte* in;
  std::byte* out;
  std::span<const uint64_t> send_bytes;
  std::span<const uint64_t> receive_bytes;
};

uint64_t offset_of(std::span<const uint64_t> bytes, int index) {
  uint64_t offset = 0;
  for (int i = 0; i < index; ++i) offset += bytes[i];
  return offset;
}

// Distance 0 is the own part.
Task exchange(const Job& job, size_t distance) {
  const int size = job.group.size;
  const int to = (job.group.index + static_cast<int>(distance)) % size;
  const int from = (job.group.index - static_cast<int>(distance) + size) % size;
  const std::byte* source = job.in + offset_of(job.send_bytes, to);
  std::byte* target = job.out + offset_of(job.receive_bytes, from);
  if (distance == 0) {
    if (job.send_bytes[to] != 0) std::memcpy(target, source, job.send_bytes[to]);
    co_return Status::ok();
  }
  Message outgoing, incoming;
  job.wire.receive(incoming, from, 0, target, job.receive_bytes[from]);
  job.wire.send(outgoing, to, 0, source, job.send_bytes[to]);
  Status sent = co_await outgoing;
  Status received = co_await incoming;
  keep_first_error(sent, received);
  co_return sent;
}

}  // namespace

Task alltoall(const Group& group, CollectiveOptions options, const void* in, void* out,
              std::span<const uint64_t> send_bytes, std::span<const uint64_t> receive_bytes) {
  const Job job{group,
                Wire(group, options),
                static_cast<const std::byte*>(in),
                static_cast<std::byte*>(out),
                send_bytes,
                receive_bytes};
  const auto pair_task = [&job](size_t distance) { return exchange(job, distance); };
  Task lanes = run_in_lanes(*options.buffers, group.size, kPairsAtOnce, pair_task);
  Status status = co_await std::move(lanes);
  co_return status;
}

}  // namespace perseus
