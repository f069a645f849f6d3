// The mesh: chooses how each peer is reached, makes links when first used or first asked for, and
// passes on their news. Loop thread, except counters().
//
// Of the channels to a peer the two ranks dial every other one, the lower rank the first: so
// neither sends all from the one port that it listens at, by which a network may tell flows apart.
// Where the lower rank dials the only one and the higher needs the link first, it knocks at the
// lower's door.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/buffer_pool.h"
#include "transport/acceptor.h"
#include "transport/address_card.h"
#include "transport/data_fabric.h"
#include "transport/dialer.h"
#include "transport/framed_link.h"
#include "transport/mesh.h"
#include "transport/resource_shortage.h"
#include "transport/shm/outbox.h"
#include "transport/tcp/interfaces.h"

namespace perseus {

class MeshImpl final : public Mesh, private AcceptorOwner, private LinkObserver {
 public:
  MeshImpl(EventLoop& loop, const Settings& settings);
  ~MeshImpl() override;
  // All of Mesh::create; to be called once.
  Status open(const Settings& settings, Bootstrap& bootstrap);

  void listen(MeshListener& listener) override { listener_ = &listener; }
  const Topology& topology() const override { return topology_; }
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
  void close_to_other_hosts();
  Status adopt(const std::vector<std::string>& gathered, Bootstrap& bootstrap);

  FramedLink& framed_link(int peer);
  FramedLink& make_link(int peer);
  void begin_connecting(int peer);
  bool uses_shm(int peer) const;
  // Of a link's channels those that the mesh connects; data over TCP has `connections_`, and
  // the express channel.
  int control_channels(int peer) const;
  // Whether this rank connects channel `index`, or the peer.
  bool dials(int peer, int index) const;
  void dial_channel(int peer, int index);
  void ask_to_connect(int peer);
  void dial(int peer, const Hello& hello, std::function<void(Result<FileDescriptor>)> done);
  std::vector<Endpoint> endpoints_of(int peer, int index) const;
  std::vector<Endpoint> sources_for(const std::vector<Endpoint>& endpoints) const;
  void attach(int peer, int index, FileDescriptor fd);

  bool may_connect(const Hello& hello) override;
  void on_connected(const Hello& hello, FileDescriptor fd) override;

  void connection_needed(int peer) override;
  void link_control(int peer, std::span<const std::byte> message) override;
  void link_lost(int peer, const Status& why) override;
  void link_closed(int peer) override;
  void on_lasting_shortage(int error);
  void finish_closing_if_done();
  void report_closed();
  // Runs in the loop's next turn, unless the mesh is gone by then: the listener may do anything,
  // and is called from nobody's middle.
  void post_if_alive(std::function<void()> function);

  EventLoop& loop_;
  MeshListener* listener_ = nullptr;  // once somebody listens, before the loop runs
  const TransportChoice transport_;
  const int connections_;
  const std::chrono::seconds start_timeout_, peer_timeout_;
  const bool interfaces_given_;

  Credentials credentials_;
  Topology topology_;
  std::vector<AddressCard> cards_;
  std::vector<LocalAddress> addresses_;

  // Outlives the links, which give their buffers and channels back to them.
  BufferPool buffers_;
  TrafficCounters counters_;
  Outbox outbox_;
  LinkEnvironment environment_;
  std::unique_ptr<DataFabric> fabric_;
  ResourceShortage shortage_;
  std::unique_ptr<Acceptor> acceptor_;
  std::vector<Peer> peers_;

  Status failed_;  // why all links are unusable; ok: they are not
  bool closing_ = false;
  std::function<void()> closed_;
  EventLoop::TimerId linger_timer_ = 0;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace perseus
