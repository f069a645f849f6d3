// Ranks that dial one acceptor.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "fuzz/input.h"
#include "transport/dialer.h"

namespace perseus::fuzz {

class Dialers {
 public:
  Dialers(EventLoop& loop, const Credentials& credentials, ResourceExhaustion& exhaustion)
      : loop_(loop), credentials_(credentials), exhaustion_(exhaustion) {}

  size_t size() const { return dialings_.size(); }
  // `ends_at_once`: the dialer is destroyed as soon as it has called back.
  void dial(const std::vector<Endpoint>& endpoints, uint32_t to, bool ends_at_once) {
    Hello hello;
    hello.to = to;
    hello.purpose = Hello::kTcpChannel;
    hello.index = static_cast<uint16_t>(dialings_.size());
    Dialing& dialing = *dialings_.emplace_back(std::make_unique<Dialing>());
    dialing.dialer = std::make_unique<Dialer>(
        loop_, credentials_, exhaustion_, endpoints, std::vector<Endpoint>(), hello,
        Clock::now() + std::chrono::hours(1), [&dialing, ends_at_once](auto outcome) {
          MUST(!dialing.outcome);
          dialing.outcome.emplace(std::move(outcome));
          if (ends_at_once) dialing.dialer.reset();
        });
    dialing.dialer->start();
  }

  // The acceptor's owner has not let this one in.
  void note_refused(const Hello& hello) { refused_.insert(hello.index); }
  // The acceptor has handed over its end.
  void note_connected(const Hello& hello, ProvenConnection connection) {
    MUST(connections_.try_emplace(hello.index, std::move(connection)).second);
  }

  bool are_done() const {
    for (uint16_t index = 0; index < dialings_.size(); ++index) {
      const bool has_other_end = connections_.contains(index) || refused_.contains(index);
      if (!dialings_[index]->outcome || !has_other_end) return false;
    }
    return true;
  }
  // Both ends of each connection have the same keys.
  void check() {
    for (uint16_t index = 0; index < dialings_.size(); ++index) {
      if (refused_.contains(index)) continue;
      MUST(dialings_[index]->outcome->is_ok());
      Session& mine = dialings_[index]->outcome->value().session;
      Session& acceptors = connections_.at(index).session;
      MUST(acceptors.incoming.is_next(view(mine.outgoing.next({"a"})), {"a"}));
      MUST(mine.incoming.is_next(view(acceptors.outgoing.next({"b"})), {"b"}));
    }
  }
  void close() {
    dialings_.clear();
    connections_.clear();
  }

 private:
  struct Dialing {
    std::unique_ptr<Dialer> dialer;
    std::optional<Result<ProvenConnection>> outcome;
  };

  EventLoop& loop_;
  const Credentials& credentials_;
  ResourceExhaustion& exhaustion_;
  std::vector<std::unique_ptr<Dialing>> dialings_;    // by the index in their hellos
  std::map<uint16_t, ProvenConnection> connections_;  // at the acceptor
  std::set<uint16_t> refused_;
};

}  // namespace perseus::fuzz
