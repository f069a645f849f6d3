// Fuzzes a link: an authenticated connection sends anything at all, in pieces of any size, while
// some messages are awaited. Each of them must end, well or with an error, without memory errors.
#include <sys/socket.h>

#include <array>
#include <memory>
#include <vector>

#include "fuzz/input.h"
#include "transport/framed_link.h"
#include "transport/tcp/tcp_channel.h"

using namespace perseus;

namespace {

constexpr uint64_t kChunk = 4096;

struct Observer final : LinkObserver {
  void connection_needed(int) override {}
  void link_control(int, std::span<const std::byte>) override {}
  void link_lost(int, const Status&) override {}
  void link_closed(int) override {}
};

void add(void* accumulator, const void* arriving, size_t elements) {
  auto* sums = static_cast<float*>(accumulator);
  const auto* terms = static_cast<const float*>(arriving);
  for (size_t i = 0; i < elements; ++i) sums[i] += terms[i];
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  int ends[2];
  MUST(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
  FileDescriptor peer(ends[1]);
  EventLoop loop;
  BufferPool buffers;
  Observer observer;
  TrafficCounters counters;
  LinkEnvironment environment{loop, buffers, observer, counters, kChunk, kChunk};
  FramedLink link(environment, 1, "rank 1 on host", /*control_channels=*/1,
                  /*has_data_channel=*/false);
  ProvenConnection connection{FileDescriptor(ends[0]), Session("", "", Role::kAcceptor)};
  link.attach(0, std::make_unique<TcpChannel>(loop, buffers, std::move(connection), link.port(0),
                                              std::chrono::seconds(30)));

  const Reduction sum{add, sizeof(float), sizeof(float)};
  std::array<Transfer, 4> awaited;
  std::array<std::vector<std::byte>, 4> memory;
  for (uint32_t i = 0; i < awaited.size(); ++i) {
    memory[i].resize(kChunk << i);
    link.receive(awaited[i], Tag{1, 0, i}, memory[i].data(), memory[i].size(),
                 i % 2 == 0 ? &sum : nullptr);
  }
  fuzz::Input input(data, size);
  while (!input.empty() && !link.is_over()) {
    const auto piece = input.piece();
    if (send(peer.get(), piece.data(), piece.size(), MSG_NOSIGNAL | MSG_DONTWAIT) < 0) break;
    loop.run_once(std::chrono::milliseconds(0));
  }
  peer.reset();
  for (int turn = 0; turn < 4; ++turn) loop.run_once(std::chrono::milliseconds(0));
  link.abort(Status::aborted("the end"));
  for (const Transfer& transfer : awaited) MUST(transfer.done());
  return 0;
}
