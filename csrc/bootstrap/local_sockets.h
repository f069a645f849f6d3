// The Unix sockets at which ranks of one host and user can meet under a name; see local_meeting.h.
// All have abstract names (unix(7)), which leave no file behind.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <string>
#include <vector>

namespace perseus {

struct LocalSocketName {
  sockaddr_un un{};
  socklen_t size = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&un); }
  std::string to_string() const;
};

// The name that everybody can know.
LocalSocketName known_socket_name(const std::string& name);
// One that nobody can know before a socket has it, for where another user has the known name.
LocalSocketName fresh_socket_name(const std::string& name);
// Those of that kind at which somebody listens now: anybody may.
std::vector<LocalSocketName> find_fresh_socket_names(const std::string& name);

// The process at the other end of a Unix socket, or that listens there.
struct LocalPeer {
  pid_t process = 0;  // 0: unknown
  uid_t user = 0;
  // Returns true if it is known to be a process of this user.
  bool is_ours() const;
  // Returns true if it is known to be one of another user who is not root. In a user namespace,
  // those who have no number there cannot be told apart.
  bool is_anothers() const;
  std::string to_string() const;  // "process 4711 of user 1001 (guest)"
};
LocalPeer peer_of(int socket);

}  // namespace perseus
