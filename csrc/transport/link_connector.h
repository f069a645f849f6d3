// Makes the connections of links: takes those that were kept from the world before, dials the
// channels that this rank is to dial, takes those that the peers dial, and gives up a link that is
// not connected in time. PeerRoutes says which is which.
//
// If the lower rank dials a link's only channel and the higher rank needs the link first, the
// higher one asks it to connect. Loop thread.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/buffer_pool.h"
#include "base/event_loop.h"
#include "transport/acceptor.h"
#include "transport/data_fabric.h"
#include "transport/dialer.h"
#include "transport/framed_link.h"
#include "transport/kept_links.h"
#include "transport/link_renewal.h"
#include "transport/meeting.h"
#include "transport/resource_exhaustion.h"

namespace perseus {

// The connector's view of the mesh.
class LinkOwner {
 public:
  // The link to the peer, which is made if there is none.
  virtual FramedLink& framed_link(int peer) = 0;
  // The same, or null.
  virtual FramedLink* find_link(int peer) = 0;
  // Returns whether new links can be used.
  virtual bool takes_links() const = 0;
  // This rank has for long had no descriptors or memory for connections; see errno(3).
  virtual void on_lasting_exhaustion(int error) = 0;

 protected:
  ~LinkOwner() = default;
};

class LinkConnector final : private AcceptorOwner, private LinkRenewalOwner {
 public:
  // The channels that it makes must be gone before it is, or in `kept`.
  LinkConnector(EventLoop& loop, KeptLinks& kept, TrafficCounters& counters,
                const PeerRoutes::Options& options, const Settings& settings, LinkOwner& owner);
  ~LinkConnector();

  // Has the ranks meet, and begins to accept their connections. Call once.
  Status open(const Settings& settings, Bootstrap& bootstrap, const std::string& experience);
  void close();
  // Puts the links that neither end has needed back. Call before close(), once no more are needed.
  void put_back_unused();

  const Met& met() const { return met_; }
  // Returns whether MPI moves the data.
  bool uses_fabric() const { return fabric_ != nullptr; }

  // Connects the link, which this rank needs.
  void connect(int peer);
  // The link is over, so nothing waits for its connections any more.
  void stop_waiting(int peer) { loop_.cancel_timer(peers_[peer].timer); }

 private:
  struct Peer {
    std::vector<std::unique_ptr<Dialer>> dialers;
    std::vector<std::unique_ptr<LinkRenewal>> renewals;  // by channel; empty or null: none
    EventLoop::TimerId timer = 0;                        // until the link is connected
  };

  // Takes the links to these ranks that were kept.
  void take_kept(const Settings& settings, const Bootstrap& bootstrap);
  void take_kept(int peer);
  LinkRenewal* renewal(int peer, int index);
  void begin_connecting(FramedLink& link);
  // Makes a new connection, or has the peer make it.
  void make_channel(int peer, int index);
  void dial_channel(int peer, int index);
  void ask_to_connect(int peer);
  void dial(int peer, const Hello& hello, Dialer::Done done);
  void attach(FramedLink& link, int index, ProvenConnection connection);
  void attach(FramedLink& link, int index, std::unique_ptr<Channel> channel);

  void on_renewal_ended(int peer, int index, std::unique_ptr<Channel> channel) override;
  bool may_connect(const Hello& hello) override;
  void on_connected(const Hello& hello, ProvenConnection connection) override;

  EventLoop& loop_;
  KeptLinks& kept_;
  TrafficCounters& counters_;
  const PeerRoutes::Options options_;
  const std::chrono::seconds start_timeout_, peer_timeout_;
  LinkOwner& owner_;

  Credentials credentials_;
  Met met_;
  std::unique_ptr<DataFabric> fabric_;
  ResourceExhaustion exhaustion_;
  std::unique_ptr<Acceptor> acceptor_;
  std::vector<Peer> peers_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace perseus
