#include "engine/blame.h"

#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "bootstrap/launcher_sockets.h"

namespace perseus {

// If nobody listens any more, or does not read, nothing is lost that would be worth waiting for.
void Blame::send_news(const std::string& news) const {
  const int socket = news_socket();
  if (socket < 0) return;
  const std::string message = world_ + " " + news;
  send(socket, message.data(), message.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

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
  send_news(line + (has_left_ ? " left" : " lost"));
}

void Blame::tell_launcher_who_met() const {
  std::string news = "met";
  for (const int rank : topology_.launched) news += " " + std::to_string(rank);
  send_news(news);
}

}  // namespace perseus
