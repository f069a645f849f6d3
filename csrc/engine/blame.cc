#include "engine/blame.h"

#include <sys/socket.h>

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

void Blame::set_rank(int rank, bool has_left) {
  rank_ = rank;
  has_left_ = has_left;
}

void Blame::tell_launcher() {
  if (rank_ < 0 || rank_ == topology_.rank || std::exchange(is_told_, true)) return;
  send_message(std::to_string(topology_.launched[rank_]) + (has_left_ ? " left" : " lost"));
}

void tell_launcher_who_met(const Topology& topology) {
  std::string message = "met";
  for (const int rank : topology.launched) message += " " + std::to_string(rank);
  send_message(message);
}

}  // namespace perseus
