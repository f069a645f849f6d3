#include "bootstrap/local_secret.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <thread>

#include "base/interruption.h"
#include "base/secret.h"
#include "base/start_thread.h"

namespace perseus {
namespace {

// A name in Linux's abstract namespace (unix(7)): it disappears with the socket and leaves no file.
struct Address {
  explicit Address(const std::string& name) {
    const std::string path = '\0' + ("perseus-" + name).substr(0, sizeof(un.sun_path) - 1);
    un.sun_family = AF_UNIX;
    std::memcpy(un.sun_path, path.data(), path.size());
    size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size());
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&un); }

  sockaddr_un un{};
  socklen_t size;
};

Socket open_socket(int flags) {
  return Socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | flags, 0));
}

// Returns whether the process that connected, or listens, runs as this user.
bool is_of_our_user(const Socket& socket) {
  ucred other{};
  socklen_t size = sizeof(other);
  return getsockopt(socket.fd(), SOL_SOCKET, SO_PEERCRED, &other, &size) == 0 &&
         other.uid == geteuid();
}

void serve(Socket listener, const std::string& secret) {
  while (true) {
    const Socket caller(accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!caller) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      // For example, out of descriptors. Callers try again.
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    } else if (is_of_our_user(caller)) {
      // So few bytes always fit into the socket's buffer as a whole.
      send(caller.fd(), secret.data(), secret.size(), MSG_NOSIGNAL);
    }
  }
}

}  // namespace

Result<std::string> serve_local_secret(const std::string& name) {
  const Address address(name);
  Socket listener = open_socket(0);
  if (!listener || bind(listener.fd(), address.get(), address.size) != 0 ||
      listen(listener.fd(), SOMAXCONN) != 0) {
    return Status::unreachable("the job's secret cannot be offered to the ranks of this host: " +
                               std::string(std::strerror(errno)) +
                               "; set PERSEUS_SECRET to one of your own, the same for all ranks");
  }
  const std::string secret = random_bytes(kSecretBytes);
  std::thread server;
  PERSEUS_RETURN_IF_ERROR(start_thread(
      server, "offering the job's secret",
      [listener = std::move(listener), secret]() mutable { serve(std::move(listener), secret); }));
  server.detach();
  return secret;
}

Result<std::string> fetch_local_secret(const std::string& name,
                                       Socket::Clock::time_point deadline) {
  const Address address(name);
  std::chrono::milliseconds pause{5};
  while (true) {
    Socket socket = open_socket(SOCK_NONBLOCK);
    if (socket && connect(socket.fd(), address.get(), address.size) == 0) {
      if (!is_of_our_user(socket)) {
        return Status::unreachable("a process of another user offers the job's secret");
      }
      std::string secret(kSecretBytes, '\0');
      if (socket.receive_exactly(secret.data(), secret.size(), deadline).is_ok()) return secret;
    }
    const int error = errno;
    if (Socket::Clock::now() + pause >= deadline) {
      return Status::unreachable("rank 0, on this host, did not offer the job's secret in time: " +
                                 std::string(std::strerror(error)));
    }
    if (is_interrupted()) return interrupted_status();
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, std::chrono::milliseconds(200));
  }
}

}  // namespace perseus
