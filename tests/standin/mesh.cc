#include "mesh.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

namespace perseus::standin {
namespace {

constexpr int kRetryMs = 1;
constexpr int kForEver = -1;

struct Address {
  sockaddr_un address{};
  socklen_t length;

  explicit Address(const std::string& name) {
    address.sun_family = AF_UNIX;
    // A name that begins with a zero is abstract.
    name.copy(address.sun_path + 1, sizeof(address.sun_path) - 1);
    length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
};

int new_socket() { return socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0); }

void close_if_open(int descriptor) {
  if (descriptor >= 0) close(descriptor);
}

bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

}  // namespace

// The bytes still to be sent one way between two ranks.
struct Mesh::Flow {
  std::vector<Transfer> transfers;
  size_t next = 0;
  size_t done = 0;  // bytes of the next one

  bool is_done() {
    while (next < transfers.size() && done == transfers[next].count) {
      ++next;
      done = 0;
    }
    return next == transfers.size();
  }
  char* at() const { return static_cast<char*>(transfers[next].bytes) + done; }
  size_t left() const { return transfers[next].count - done; }
};

Mesh::Mesh(std::string name, int rank, int ranks)
    : name_(std::move(name)),
      rank_(rank),
      abort_event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      sockets_(static_cast<size_t>(ranks), -1) {}

Mesh::~Mesh() {
  for (int socket : sockets_) close_if_open(socket);
  close_if_open(listener_);
  close_if_open(abort_event_);
}

void Mesh::abort() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(abort_event_, &one, sizeof(one));
}

Mesh::End Mesh::connect() {
  listener_ = new_socket();
  const Address own(name_ + std::to_string(rank_));
  if (bind(listener_, own.get(), own.length) != 0) return End::kLost;
  if (listen(listener_, static_cast<int>(sockets_.size())) != 0) return End::kLost;
  for (int peer = 0; peer < rank_; ++peer) {
    if (const End end = connect_to(peer); end != End::kDone) return end;
  }
  for (size_t peer = static_cast<size_t>(rank_) + 1; peer < sockets_.size(); ++peer) {
    if (const End end = accept_one(); end != End::kDone) return end;
  }
  close(std::exchange(listener_, -1));
  return End::kDone;
}

bool Mesh::is_aborted_within(int milliseconds) {
  pollfd waited{abort_event_, POLLIN, 0};
  return poll(&waited, 1, milliseconds) > 0;
}

Mesh::End Mesh::connect_to(int peer) {
  const Address theirs(name_ + std::to_string(peer));
  for (;;) {
    const int socket = new_socket();
    if (::connect(socket, theirs.get(), theirs.length) == 0) {
      sockets_[static_cast<size_t>(peer)] = socket;
      // It fits into the empty socket.
      return send(socket, &rank_, sizeof(rank_), MSG_NOSIGNAL) == sizeof(rank_) ? End::kDone
                                                                                : End::kLost;
    }
    close(socket);
    // The peer is not listening yet, or its backlog is full.
    if (is_aborted_within(kRetryMs)) return End::kAborted;
  }
}

Mesh::End Mesh::accept_one() {
  int socket = -1;
  const auto wait_for = [&](int descriptor) {
    pollfd waited[] = {{abort_event_, POLLIN, 0}, {descriptor, POLLIN, 0}};
    while (poll(waited, 2, kForEver) < 0) continue;
    return waited[0].revents == 0;
  };
  while (socket < 0) {
    if (!wait_for(listener_)) return End::kAborted;
    socket = accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
  }
  int peer = -1;
  const bool is_told = wait_for(socket);
  if (!is_told || recv(socket, &peer, sizeof(peer), 0) != sizeof(peer) ||
      sockets_[static_cast<size_t>(peer)] >= 0) {
    close(socket);
    return is_told ? End::kLost : End::kAborted;
  }
  sockets_[static_cast<size_t>(peer)] = socket;
  return End::kDone;
}

Mesh::End Mesh::exchange(const std::vector<Transfer>& sends,
                         const std::vector<Transfer>& receives) {
  std::vector<Flow> out(sockets_.size());
  std::vector<Flow> in(sockets_.size());
  for (const Transfer& each : sends) out[static_cast<size_t>(each.peer)].transfers.push_back(each);
  for (const Transfer& each : receives) {
    in[static_cast<size_t>(each.peer)].transfers.push_back(each);
  }
  for (;;) {
    std::vector<pollfd> waited{{abort_event_, POLLIN, 0}};
    std::vector<size_t> peers{0};
    for (size_t peer = 0; peer < sockets_.size(); ++peer) {
      const int events = (in[peer].is_done() ? 0 : POLLIN) | (out[peer].is_done() ? 0 : POLLOUT);
      if (events == 0) continue;
      waited.push_back({sockets_[peer], static_cast<short>(events), 0});
      peers.push_back(peer);
    }
    if (waited.size() == 1) return End::kDone;
    if (poll(waited.data(), waited.size(), kForEver) < 0) continue;
    if (waited[0].revents != 0) return End::kAborted;
    for (size_t i = 1; i < waited.size(); ++i) {
      Flow& from = in[peers[i]];
      Flow& to = out[peers[i]];
      // Reads what a peer sent before it ended, which may tell why.
      if ((waited[i].revents & (POLLIN | POLLHUP | POLLERR)) != 0 && !from.is_done()) {
        const ssize_t got = recv(waited[i].fd, from.at(), from.left(), 0);
        if (got == 0 || (got < 0 && !would_block())) return End::kLost;
        if (got > 0) from.done += static_cast<size_t>(got);
      } else if (waited[i].revents != 0 && !to.is_done()) {
        const ssize_t sent = send(waited[i].fd, to.at(), to.left(), MSG_NOSIGNAL);
        if (sent < 0 && !would_block()) return End::kLost;
        if (sent > 0) to.done += static_cast<size_t>(sent);
      }
    }
  }
}

}  // namespace perseus::standin
