#include "bootstrap/port_holder.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <utility>
#include <vector>

#include "base/free_port.h"
#include "base/user_name.h"

namespace perseus {
namespace {

namespace fs = std::filesystem;

struct Listener {
  int port = 0;
  uid_t user = 0;
  std::string inode;
};

// All that listen in this network namespace. Columns of proc(5): slot, local address, remote
// address, state, queues, timer, retransmissions, user, timeout, inode.
std::vector<Listener> all_listeners() {
  std::vector<Listener> all;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream lines(table);
    std::string line;
    std::getline(lines, line);  // the heads
    while (std::getline(lines, line)) {
      std::istringstream words(line);
      std::string local, state, skipped;
      Listener found;
      words >> skipped >> local >> skipped >> state >> skipped >> skipped >> skipped >>
          found.user >> skipped >> found.inode;
      const size_t colon = local.rfind(':');
      if (!words || state != "0A" || colon == local.npos) continue;
      std::from_chars(local.data() + colon + 1, local.data() + local.size(), found.port, 16);
      all.push_back(std::move(found));
    }
  }
  return all;
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
  const std::vector<Listener> all = all_listeners();
  const auto found = std::ranges::find(all, port, &Listener::port);
  if (found == all.end()) return "";
  const std::string process = process_with(found->inode);
  return (process.empty() ? "a process" : "process " + process) + " of " + user_name(found->user);
}

std::string holder_of_assigned_ports() {
  const PortRange assigned = assigned_ports();
  std::map<uid_t, std::set<int>> held;
  for (const Listener& one : all_listeners()) {
    if (assigned.has(one.port)) held[one.user].insert(one.port);
  }
  const auto most = std::ranges::max_element(
      held, {}, [](const auto& user_and_ports) { return user_and_ports.second.size(); });
  if (most == held.end()) return "";
  return user_name(most->first) + " listens at " + std::to_string(most->second.size()) +
         " of the " + std::to_string(assigned.size()) + " ports that the system assigns";
}

}  // namespace perseus
