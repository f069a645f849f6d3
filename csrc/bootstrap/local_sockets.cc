#include "bootstrap/local_sockets.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "base/user_name.h"

namespace perseus {
namespace {

constexpr size_t kMostBytes = sizeof(sockaddr_un::sun_path) - 1;

LocalSocketName address_of(const std::string& path) {
  LocalSocketName address;
  address.un.sun_family = AF_UNIX;
  std::memcpy(address.un.sun_path, path.data(), path.size());
  const size_t end = path.size() + (path[0] == '\0' ? 0 : 1);
  address.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + end);
  return address;
}

// In a user namespace, all users that have no number there look like one user.
bool is_everybody(uid_t user) {
  std::ifstream map("/proc/self/uid_map");
  uint64_t inside = 0, outside = 0, count = 0;
  const bool has_map = static_cast<bool>(map >> inside >> outside >> count);
  const bool has_all = has_map && inside == 0 && outside == 0 && count == UINT32_MAX;
  uid_t overflow = 0;
  std::ifstream("/proc/sys/kernel/overflowuid") >> overflow;
  return !has_all && user == overflow;
}

// Returns whether nobody else can make or remove files there.
bool is_private(const std::string& folder) {
  struct stat found{};
  return lstat(folder.c_str(), &found) == 0 && S_ISDIR(found.st_mode) &&
         found.st_uid == geteuid() && (found.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

std::vector<std::string> private_folders(bool makes_folder) {
  std::vector<std::string> folders;
  const auto add = [&](const std::string& folder) {
    if (is_private(folder)) folders.push_back(folder);
  };
  if (const char* runtime = std::getenv("XDG_RUNTIME_DIR")) add(runtime);
  const std::string own = "/tmp/perseus-" + std::to_string(geteuid());
  if (makes_folder) mkdir(own.c_str(), S_IRWXU);  // it may be there
  add(own);
  if (const char* home = std::getenv("HOME")) add(home);
  return folders;
}

}  // namespace

std::string LocalSocketName::to_string() const {
  if (is_file()) return un.sun_path;
  return "@" + std::string(un.sun_path + 1, size - offsetof(sockaddr_un, sun_path) - 1);
}

LocalSocketName abstract_socket_name(const std::string& name) {
  return address_of('\0' + ("perseus-" + name).substr(0, kMostBytes));
}

std::vector<LocalSocketName> private_socket_names(const std::string& name, bool makes_folder) {
  std::vector<LocalSocketName> names;
  for (const std::string& folder : private_folders(makes_folder)) {
    const std::string path = folder + "/perseus-" + name.substr(0, 32);
    if (path.size() <= kMostBytes) names.push_back(address_of(path));
  }
  return names;
}

bool LocalPeer::is_ours() const { return process != 0 && user == geteuid() && !is_everybody(user); }

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
