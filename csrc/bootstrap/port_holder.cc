#include "bootstrap/port_holder.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string_view>

#include "base/user_name.h"

namespace perseus {
namespace {

namespace fs = std::filesystem;

struct Listener {
  uid_t user = 0;
  std::string inode;
};

// Columns of proc(5): slot, local address, remote address, state, queues, timer, retransmissions,
// user, timeout, inode.
std::optional<Listener> listener_in(const char* table, uint16_t port) {
  std::ifstream lines(table);
  std::string line;
  std::getline(lines, line);  // the heads
  while (std::getline(lines, line)) {
    std::istringstream words(line);
    std::string local, state, skipped;
    Listener found;
    words >> skipped >> local >> skipped >> state >> skipped >> skipped >> skipped >> found.user >>
        skipped >> found.inode;
    const size_t colon = local.rfind(':');
    if (!words || state != "0A" || colon == local.npos) continue;
    unsigned here = 0;
    std::from_chars(local.data() + colon + 1, local.data() + local.size(), here, 16);
    if (here == port) return found;
  }
  return std::nullopt;
}

bool has_socket(const fs::path& process, const std::string& link) {
  std::error_code error;
  for (fs::directory_iterator at(process / "fd", error), end; !error && at != end;
       at.increment(error)) {
    std::error_code gone;
    if (fs::read_symlink(at->path(), gone) == link) return true;
  }
  return false;
}

// Empty if it is another user's.
std::string process_with(const std::string& inode) {
  const std::string link = "socket:[" + inode + "]";
  std::error_code error;
  for (fs::directory_iterator at("/proc", error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename();
    if (std::ranges::all_of(name, [](unsigned char c) { return std::isdigit(c) != 0; }) &&
        has_socket(at->path(), link)) {
      return name;
    }
  }
  return "";
}

}  // namespace

std::string holder_of_port(uint16_t port) {
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    const std::optional<Listener> found = listener_in(table, port);
    if (!found) continue;
    const std::string process = process_with(found->inode);
    return (process.empty() ? "a process" : "process " + process) + " of " + user_name(found->user);
  }
  return "";
}

}  // namespace perseus
