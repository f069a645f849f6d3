// A TCP socket and the few things the rendezvous does with it. IPv4 and IPv6.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/file_descriptor.h"
#include "base/status.h"

struct addrinfo;

namespace perseus {

// Where a rendezvous is served.
struct HostPort {
  std::string host;
  uint16_t port = 0;
};
// "host:port", "1.2.3.4:port" or "[v6 address]:port".
Result<HostPort> parse_host_port(std::string_view text);
std::string to_string(const HostPort& where);

// One thread at a time.
class Socket {
 public:
  using Clock = std::chrono::steady_clock;

  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}

  // Listens without blocking; `address` empty means every interface, `port` 0 any free one.
  static Result<Socket> listen(const std::string& address, uint16_t port);
  // One attempt, to each address that the host's name stands for in turn. `final` (may be null) is
  // set if there is no such name: trying again is of no use.
  static Result<Socket> connect(const HostPort& where, Clock::time_point deadline,
                                bool* final = nullptr);

  int fd() const { return fd_.get(); }
  explicit operator bool() const { return static_cast<bool>(fd_); }
  uint16_t local_port() const;
  // "10.0.0.1:4711", or "?" once the connection is gone.
  std::string peer_name() const;

  // These wait, for sockets that do not block. kTimedOut at the deadline; kAborted when the other
  // end has closed or reset the connection.
  Status send_all(std::string_view bytes, Clock::time_point deadline);
  Status receive_exactly(char* bytes, size_t count, Clock::time_point deadline);

 private:
  // 0, or the errno of what failed.
  int connect_to(const addrinfo& address, Clock::time_point deadline);
  Status wait_for(short poll_events, Clock::time_point deadline);

  FileDescriptor fd_;
};

}  // namespace perseus
