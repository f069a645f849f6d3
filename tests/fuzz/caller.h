// One end of a connection to a server under test, which never blocks.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <string>
#include <string_view>

#include "base/file_descriptor.h"
#include "fuzz/input.h"
#include "transport/endpoint.h"

namespace perseus::fuzz {

inline Endpoint loopback(uint16_t port = 0) {
  Endpoint endpoint;
  auto& address = reinterpret_cast<sockaddr_in&>(endpoint.address);
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  endpoint.length = sizeof address;
  endpoint.set_port(port);
  return endpoint;
}

class Caller {
 public:
  explicit Caller(const Endpoint& to) {
    fd_ = FileDescriptor(socket(to.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!fd_) return;
    if (to.family() == AF_INET) {
      bind_to_new_address();
      // No connection is remembered after its end, so ports do not run out.
      const linger reset{1, 0};
      setsockopt(fd_.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
      // One that does not read is soon full.
      const int room = 64 << 10;
      setsockopt(fd_.get(), SOL_SOCKET, SO_RCVBUF, &room, sizeof room);
    }
    const bool connects =
        connect(fd_.get(), to.get(), to.length) == 0 || errno == EINPROGRESS || errno == EAGAIN;
    if (!connects) fd_.reset();
  }
  explicit Caller(FileDescriptor fd) : fd_(std::move(fd)) {}

  bool is_open() const { return static_cast<bool>(fd_); }
  // Returns whether the other end has closed the connection.
  bool is_at_end() const { return at_end_; }
  const std::string& received() const { return received_; }

  // Sends as much as there is room for, and the rest later.
  void send(std::string_view bytes) {
    unsent_ += bytes;
    flush();
  }
  // Returns whether something was sent.
  bool flush() {
    bool moved = false;
    while (fd_ && !unsent_.empty()) {
      const ssize_t sent =
          ::send(fd_.get(), unsent_.data(), unsent_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent < 0 && errno != EAGAIN) unsent_.clear();
      if (sent <= 0) break;
      unsent_.erase(0, static_cast<size_t>(sent));
      moved = true;
    }
    return moved;
  }
  // Returns whether something came.
  bool read() {
    char bytes[65536];
    const size_t before = received_.size();
    while (fd_ && !at_end_) {
      const ssize_t count = recv(fd_.get(), bytes, sizeof bytes, MSG_DONTWAIT);
      if (count < 0 && (errno == EAGAIN || errno == ENOTCONN)) break;
      at_end_ = count <= 0;
      if (count > 0) received_.append(bytes, static_cast<size_t>(count));
    }
    return received_.size() != before;
  }
  std::string take_received(size_t count) {
    std::string taken = received_.substr(0, count);
    received_.erase(0, count);
    return taken;
  }
  void close_one_way() {
    if (fd_) shutdown(fd_.get(), SHUT_WR);
  }
  void close() { fd_.reset(); }

 private:
  // Each connection comes from an address of its own, so that none waits for a port.
  void bind_to_new_address() {
    static uint32_t next = 1;
    sockaddr_in from{};
    from.sin_family = AF_INET;
    from.sin_addr.s_addr = htonl(0x7f010000 | (next++ & 0xffff));
    const int on = 1;
    setsockopt(fd_.get(), IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on);
    bind(fd_.get(), reinterpret_cast<const sockaddr*>(&from), sizeof from);
  }

  FileDescriptor fd_;
  std::string unsent_;
  std::string received_;
  bool at_end_ = false;
};

}  // namespace perseus::fuzz
