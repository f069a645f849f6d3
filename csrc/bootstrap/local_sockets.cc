#include "bootstrap/local_sockets.h"

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string_view>

#include "base/secret.h"
#include "base/user_name.h"

namespace perseus {
namespace {

LocalSocketName address_of(const std::string& name) {
  LocalSocketName address;
  address.un.sun_family = AF_UNIX;
  // Abstract names begin with a zero.
  const size_t size = std::min(name.size(), sizeof(sockaddr_un::sun_path) - 2);
  std::memcpy(address.un.sun_path + 1, name.data(), size);
  address.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + size);
  return address;
}

// In a user namespace, all users that have no number there look like this one.
uid_t overflow_user() {
  static const uid_t user = [] {
    uid_t read = 65534;
    std::ifstream("/proc/sys/kernel/overflowuid") >> read;
    return read;
  }();
  return user;
}

bool is_everybody(uid_t user) {
  std::ifstream map("/proc/self/uid_map");
  uint64_t inside = 0, outside = 0, count = 0;
  const bool has_map = static_cast<bool>(map >> inside >> outside >> count);
  const bool has_all = has_map && inside == 0 && outside == 0 && count == UINT32_MAX;
  return !has_all && user == overflow_user();
}

// All fresh names begin with it, and no known one does.
std::string fresh_prefix(const std::string& name) { return "perseus-" + name.substr(0, 48) + "-"; }

}  // namespace

std::string LocalSocketName::to_string() const {
  return "@" + std::string(un.sun_path + 1, size - offsetof(sockaddr_un, sun_path) - 1);
}

LocalSocketName known_socket_name(const std::string& name) { return address_of("perseus-" + name); }

LocalSocketName fresh_socket_name(const std::string& name) {
  return address_of(fresh_prefix(name) + to_hex(random_bytes(16)));
}

std::vector<LocalSocketName> find_fresh_socket_names(const std::string& name) {
  // Columns of /proc/net/unix: number, references, protocol, flags, type, state, inode, name. The
  // flag is that of a socket that listens, __SO_ACCEPTCON.
  constexpr std::string_view kListens = "00010000";
  const std::string prefix = "@" + fresh_prefix(name);
  std::vector<LocalSocketName> found;
  std::ifstream lines("/proc/net/unix");
  std::string line;
  while (std::getline(lines, line)) {
    const size_t at = line.find(prefix);
    if (at == line.npos) continue;
    std::istringstream words(line);
    std::string flags, skipped;
    words >> skipped >> skipped >> skipped >> flags;
    if (flags == kListens) found.push_back(address_of(line.substr(at + 1)));
  }
  return found;
}

bool LocalPeer::is_ours() const { return process != 0 && user == geteuid() && !is_everybody(user); }

bool LocalPeer::is_anothers() const {
  return user != geteuid() && user != 0 && user != overflow_user();
}

std::string LocalPeer::to_string() const {
  if (process == 0) return "a process that does not answer";
  return "process " + std::to_string(process) + " of " + user_name(user);
}

LocalPeer peer_of(int socket) {
  ucred other{};
  socklen_t size = sizeof(other);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &other, &size) != 0) return {};
  return {other.pid, other.uid};
}

}  // namespace perseus
