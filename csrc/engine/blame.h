// Tells the launcher which rank caused operations to fail here. A rank that fails because another
// one ended must not be taken for the culprit, though it may well be the first to exit. Each
// message begins with the world's name, which only its engines know: so the launcher believes them
// alone, and not what else has inherited the socket (perseus/run/worlds.py). Engine thread.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "transport/topology.h"

namespace perseus {

class Blame {
 public:
  // `world`: WorldKey::name.
  Blame(const Topology& topology, std::string world)
      : topology_(topology), world_(std::move(world)) {}

  // Tells the launcher which ranks make up this world, which has begun. That cancels whatever it
  // was told about these ranks before. Before the engine thread begins.
  void tell_launcher_who_met() const;

  // The rank whose end makes operations fail here; -1 if there is none so far.
  int rank() const { return rank_; }
  // `has_left`: the rank shut down normally or told the others why it ended; otherwise it was lost.
  // `others_lost`: more ranks that are given up together with that one.
  void set_rank(int rank, bool has_left, std::vector<int> others_lost = {});

  // Tells the launcher; only the first call has an effect.
  void tell_launcher();
  // An operation has failed because a rank ended. Tells the launcher, unless this rank itself is
  // shutting down.
  void operation_aborted() {
    if (!is_closing_) tell_launcher();
  }
  void begin_shutdown() { is_closing_ = true; }

 private:
  void send_news(const std::string& news) const;

  const Topology& topology_;
  const std::string world_;
  int rank_ = -1;
  std::vector<int> others_lost_;
  bool has_left_ = false;
  bool is_told_ = false;
  bool is_closing_ = false;
};

}  // namespace perseus
