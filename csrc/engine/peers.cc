#include "engine/peers.h"

#include <algorithm>
#include <string>
#include <utility>

namespace perseus {

void Peers::on_control(int from, std::span<const std::byte> message) {
  watches_.peers.heard(from);
  ByteReader reader(message);
  const auto kind = reader.get<ControlKind>();
  switch (kind) {
    case ControlKind::kBallot:
    case ControlKind::kRoundDemand:
    case ControlKind::kClosed: return sets_.on_control(from, message);
    case ControlKind::kLeaving:
      if (const auto leaving = Leaving::read(reader); leaving && is_rank(leaving->rank)) {
        return on_leaving(*leaving);
      }
      break;
    case ControlKind::kBroken:
      if (const auto broken = Broken::read(reader); broken && blames_ranks(*broken)) {
        return termination_.break_world(*broken);
      }
      break;
    case ControlKind::kStallQuery:
      if (const auto query = StallQuery::read(reader)) {
        return watches_.stalls.answer(from, *query, sets_.find(query->process_set).get());
      }
      break;
    case ControlKind::kStallAnswer:
      if (const auto answer = StallAnswer::read(reader)) {
        return watches_.stalls.on_answer(from, *answer);
      }
      break;
    case ControlKind::kWaitQuery:
      if (const auto query = WaitQuery::read(reader)) return watches_.judge.answer(from, *query);
      break;
    case ControlKind::kWaitAnswer:
      if (auto answer = WaitAnswer::read(reader)) {
        return watches_.judge.on_answer(from, std::move(*answer));
      }
      break;
    case ControlKind::kPing: return send_word(from, ControlKind::kPong);
    case ControlKind::kPong: return;
    case ControlKind::kEnvelope:
    case ControlKind::kClearance:
    case ControlKind::kWithdrawal:
    case ControlKind::kCredit: return messenger_.on_control(from, kind, reader);
  }
  termination_.break_world(
      {from, mesh_.topology().name(from) + " sent a malformed control message"});
}

bool Peers::is_rank(int rank) const { return 0 <= rank && rank < mesh_.topology().size; }

bool Peers::blames_ranks(const Broken& broken) const {
  return (broken.rank == -1 || is_rank(broken.rank)) &&
         std::ranges::all_of(broken.others_lost, [this](int rank) { return is_rank(rank); });
}

void Peers::on_leaving(const Leaving& leaving) {
  if (leaving.rank == mesh_.topology().rank || !departures_.add(leaving)) return;
  sets_.tell_neighbours(sets_.world(), leaving.write());
  sets_.on_leaving(leaving);
  messenger_.on_leaving(leaving.rank);
}

void Peers::on_rank_lost(int rank, const Status& why) {
  if (termination_.is_closed()) return;
  if (!departures_.contains(rank)) {
    // A rank that ended with an error before is to blame: others end because of it, and may be gone
    // sooner.
    const bool is_consequence = departures_.has_failed(blame_.rank());
    return termination_.break_world(is_consequence ? departures_.news_of(blame_.rank())
                                                   : Broken{rank, why.message()});
  }
  messenger_.on_cut_off(rank);
  // It ended before it had done what it still was to take part in.
  if (sets_.awaits(rank)) termination_.break_world(departures_.news_of(rank));
}

void Peers::on_connection_disturbed(int rank, const Status& why) {
  if (termination_.is_closed()) return;
  if (departures_.contains(rank) && !sets_.awaits(rank)) return;
  termination_.break_world({-1, why.message()});
}

void Peers::send_to(int rank, std::span<const std::byte> message) {
  mesh_.send_control(rank, message);
}

void Peers::send_word(int rank, ControlKind word) {
  send_to(rank, std::as_bytes(std::span(&word, 1)));
}

std::set<int> Peers::awaited_peers() const {
  if (termination_.is_broken()) return {};
  std::set<int> awaited = sets_.awaited_peers();
  for (const int peer : mesh_.awaited_peers()) {
    if (!departures_.contains(peer)) awaited.insert(peer);
  }
  messenger_.add_awaited(awaited);
  return awaited;
}

void Peers::ping(int rank) { send_word(rank, ControlKind::kPing); }

void Peers::on_silent_peer(int rank, std::chrono::milliseconds silent_for) {
  const std::string cause = mesh_.is_connected(rank)
                                ? "though its connections are open; its process is stopped or "
                                  "gets no processor time, or something between the hosts holds "
                                  "back what it says"
                                : "and does not connect; its process or host is stopped, or gets "
                                  "no processor time";
  termination_.break_world({rank, "lost " + mesh_.topology().name(rank) +
                                      ": it has said nothing for " +
                                      std::to_string(silent_for / std::chrono::seconds(1)) +
                                      " s (PERSEUS_PEER_TIMEOUT is " +
                                      std::to_string(peer_timeout_.count()) + "), " + cause});
}

void Peers::end_stalled(const StallVerdict& verdict) {
  Broken broken{-1, verdict.why};
  if (!verdict.given_up.empty()) {
    broken.rank = verdict.given_up.front();
    broken.others_lost.assign(verdict.given_up.begin() + 1, verdict.given_up.end());
  }
  termination_.break_world(broken);
}

}  // namespace perseus
