// The Unix sockets at which ranks of one host and user can meet under a name; see local_meeting.h.
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
  bool is_file() const { return un.sun_path[0] != '\0'; }
  std::string to_string() const;
};

// The abstract name.
LocalSocketName abstract_socket_name(const std::string& name);
// A file in each folder that only this user can write to. The same on all ranks, once one of them
// has made the folder in /tmp.
std::vector<LocalSocketName> private_socket_names(const std::string& name, bool makes_folder);

// The process at the other end of a Unix socket, or that listens there.
struct LocalPeer {
  pid_t process = 0;  // 0: unknown
  uid_t user = 0;
  bool is_ours() const;
  std::string to_string() const;  // "process 4711 of user 1001 (guest)"
};
LocalPeer peer_of(int socket);

}  // namespace perseus
