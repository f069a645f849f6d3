#include "engine/blame.h"

#include <sys/socket.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

namespace perseus {
namespace {

// Each message says which process it is from, so that the launcher believes the engine alone and
// not what else has inherited the socket (perseus/run/news_socket.py). If nobody listens any more,
// or does not read, nothing is lost that would be worth waiting for.
void send_message(const std::string& message) {
  const char* fd = std::getenv("PERSEUS_NEWS_FD");
  if (fd == nullptr) return;
  send(std::atoi(fd), message.data(), message.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

}  // namespace

void Blame::set_rank(int rank, bool has_left, std::vector<int> others_lost) {
  rank_ = rank;
  has_left_ = has_left;
  others_lost_ = std::move(others_lost);
}

void Blame::tell_launcher() {
  const bool is_accused = rank_ == topology_.rank ||
                          std::ranges::find(others_lost_, topology_.rank) != others_lost_.end();
  if (rank_ < 0 || is_accused || std::exchange(is_told_, true)) return;
  std::string line = std::to_string(topology_.launched[rank_]);
  for (const int rank : others_lost_) line += " " + std::to_string(topology_.launched[rank]);
  send_message(line + (has_left_ ? " left" : " lost"));
}

void tell_launcher_who_met(const Topology& topology) {
  std::string message = "met";
  for (const int rank : topology.launched) message += " " + std::to_string(rank);
  send_message(message);
}

}  // namespace perseus
