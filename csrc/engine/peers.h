// This rank's dealings with the others: their control messages, their leaving and their death.
// Engine thread.
#pragma once

#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "engine/departures.h"
#include "engine/process_sets.h"
#include "engine/termination.h"
#include "engine/watches.h"
#include "messages/messenger.h"
#include "transport/mesh.h"

namespace perseus {

class Peers final : public MeshListener,
                    public StallWatchHost,
                    public StallJudgeHost,
                    public PeerWatchHost {
 public:
  Peers(Mesh& mesh, std::chrono::seconds peer_timeout, ProcessSets& sets, Messenger& messenger,
        Termination& termination, Departures& departures, const Blame& blame, Watches& watches)
      : mesh_(mesh),
        peer_timeout_(peer_timeout),
        sets_(sets),
        messenger_(messenger),
        termination_(termination),
        departures_(departures),
        blame_(blame),
        watches_(watches) {}

  // MeshListener.
  void on_control(int from, std::span<const std::byte> message) override;
  void on_rank_lost(int rank, const Status& why) override;
  void on_connection_disturbed(int rank, const Status& why) override;

  // StallWatchHost and StallJudgeHost.
  void send_to(int rank, std::span<const std::byte> message) override;
  const std::map<int32_t, ProcessSetPtr>& process_sets() const override { return sets_.all(); }
  bool has_left(int rank) const override { return departures_.contains(rank); }
  std::string name_of(int rank) const override { return mesh_.topology().name(rank); }
  std::vector<int> awaited_for_data() const override { return mesh_.awaited_peers(); }
  const Operation* longest_under_way() const override { return sets_.longest_under_way(); }
  void end_stalled(const StallVerdict& verdict) override;

  // PeerWatchHost.
  std::set<int> awaited_peers() const override;
  void ping(int rank) override;
  void on_silent_peer(int rank, std::chrono::milliseconds silent_for) override;

 private:
  bool is_rank(int rank) const;
  // Returns whether it blames ranks of the world, or nobody.
  bool blames_ranks(const Broken& broken) const;
  void on_leaving(const Leaving& leaving);
  void send_word(int rank, ControlKind word);

  Mesh& mesh_;
  const std::chrono::seconds peer_timeout_;
  ProcessSets& sets_;
  Messenger& messenger_;
  Termination& termination_;
  Departures& departures_;
  const Blame& blame_;
  Watches& watches_;
};

}  // namespace perseus
