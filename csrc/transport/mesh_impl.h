// The mesh: makes links when they are first used or a peer first asks for one, and passes on their
// news. PeerRoutes says how each peer is reached. Loop thread, except counters().
//
// If the lower rank dials a link's only channel and the higher rank needs the link first, the
// higher one asks it to connect.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/buffer_pool.h"
#include "base/world_key.h"
#include "transport/acceptor.h"
#include "transport/address_card.h"
#include "transport/data_fabric.h"
#include "transport/dialer.h"
#include "transport/framed_link.h"
#include "transport/mesh.h"
#include "transport/peer_routes.h"
#include "transport/resource_exhaustion.h"
#include "transport/shm/outbox.h"
#include "transport/tcp/frame_guard.h"
#include "transport/tcp/local_addresses.h"

namespace perseus {

class MeshImpl final : public Mesh, private AcceptorOwner, private LinkObserver {
 public:
  MeshImpl(EventLoop& loop, const Settings& settings);
  ~MeshImpl() override;
  // Does all that Mesh::create does. Call once.
  Status open(const Settings& settings, Bootstrap& bootstrap);

  void listen(MeshListener& listener) override { listener_ = &listener; }
  const Topology& topology() const override { return topology_; }
  const WorldKey& world_key() const override { return *world_key_; }
  bool shares_all_memory() const override;
  Link& link(int peer) override { return framed_link(peer); }
  bool needs_one_thread() const override { return fabric_ != nullptr; }
  bool is_connected(int peer) const override;
  bool has_left(int peer) const override;
  void send_control(int peer, std::span<const std::byte> message) override;
  void set_chunk(uint64_t bytes) override;
  void set_connections(int number) override;
  void fail_all(const Status& why) override;
  void close(std::chrono::milliseconds linger, std::function<void()> closed) override;
  Counters counters() const override;

 private:
  struct Peer {
    std::unique_ptr<FramedLink> link;
    std::vector<std::unique_ptr<Dialer>> dialers;
    EventLoop::TimerId connect_timer = 0;
  };

  Status listen(const Settings& settings, AddressCard& card);
  // Returns an error if the ranks cannot protect what goes between hosts.
  Status check_protection(const Bootstrap& bootstrap) const;
  void close_to_other_hosts(const AddressCard& own);
  Status adopt(const std::vector<std::string>& gathered, Bootstrap& bootstrap);

  FramedLink& framed_link(int peer);
  FramedLink& make_link(int peer);
  void begin_connecting(int peer);
  void dial_channel(int peer, int index);
  void ask_to_connect(int peer);
  void dial(int peer, const Hello& hello, std::function<void(Result<ProvenConnection>)> done);
  void attach(int peer, int index, ProvenConnection connection);

  bool may_connect(const Hello& hello) override;
  void on_connected(const Hello& hello, ProvenConnection connection) override;

  void connection_needed(int peer) override;
  void link_control(int peer, std::span<const std::byte> message) override;
  void link_lost(int peer, const Status& why) override;
  void link_closed(int peer) override;
  void on_lasting_exhaustion(int error);
  void finish_closing_if_done();
  void report_closed();
  // Calls `function` in the loop's next turn, unless the mesh no longer exists then. The listener
  // is called this way, since it may do anything, even destroy the mesh.
  void post_if_alive(std::function<void()> function);

  EventLoop& loop_;
  MeshListener* listener_ = nullptr;  // set by listen(), before the loop runs
  const PeerRoutes::Options options_;
  const std::chrono::seconds start_timeout_, peer_timeout_;
  WireProtection protection_;

  Credentials credentials_;
  std::optional<WorldKey> world_key_;  // once the ranks have met
  Topology topology_;
  std::vector<LocalAddress> addresses_;  // until the routes are known
  PeerRoutes routes_;

  // These outlive the links, which return their buffers and channels to them.
  BufferPool buffers_;
  TrafficCounters counters_;
  Outbox outbox_;
  LinkEnvironment environment_;
  std::unique_ptr<DataFabric> fabric_;
  ResourceExhaustion exhaustion_;
  std::unique_ptr<Acceptor> acceptor_;
  std::vector<Peer> peers_;

  Status failed_;  // not ok once all links are unusable
  bool closing_ = false;
  std::function<void()> closed_;
  EventLoop::TimerId linger_timer_ = 0;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace perseus
