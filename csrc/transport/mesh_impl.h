// The mesh: makes links when they are first used or a peer first asks for one, and passes on their
// news. LinkConnector connects them. Loop thread, except counters().
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "base/alarm.h"
#include "transport/framed_link.h"
#include "transport/kept_links.h"
#include "transport/link_connector.h"
#include "transport/mesh.h"

namespace perseus {

class MeshImpl final : public Mesh, private LinkOwner, private LinkObserver {
 public:
  MeshImpl(EventLoop& loop, const Settings& settings, KeptLinks* kept);
  ~MeshImpl() override;
  // Does all that Mesh::create does. Call once.
  Status open(const Settings& settings, Bootstrap& bootstrap, const std::string& experience);

  void listen(MeshListener& listener) override { listener_ = &listener; }
  const Topology& topology() const override { return connector_.met().topology; }
  const WorldKey& world_key() const override { return *connector_.met().key; }
  const std::string& experience() const override { return connector_.met().experience; }
  bool shares_all_memory() const override { return shares_all_memory_; }
  std::vector<SharedBoard> boards() override;
  Link& link(int peer) override { return framed_link(peer); }
  bool needs_one_thread() const override { return connector_.uses_fabric(); }
  bool is_connected(int peer) const override;
  bool has_left(int peer) const override;
  std::vector<int> awaited_peers() const override;
  void send_control(int peer, std::span<const std::byte> message) override;
  void set_chunk(uint64_t bytes) override;
  void set_connections(int number) override;
  void cut_all(const Status& why, const std::set<int>& lost) override;
  void fail_all(const Status& why) override;
  void close(std::chrono::milliseconds linger, std::function<void()> closed) override;
  Counters counters() const override;

 private:
  FramedLink& make_link(int peer);
  bool is_connected_to_all() const;

  FramedLink& framed_link(int peer) override;
  FramedLink* find_link(int peer) override { return links_[peer].get(); }
  bool takes_links() const override { return failed_.is_ok() && !closing_; }
  void on_lasting_exhaustion(int error) override;

  void connection_needed(int peer) override { connector_.connect(peer); }
  void link_control(int peer, std::span<const std::byte> message) override;
  void link_lost(int peer, const Status& why) override;
  void link_closed(int peer) override;
  void finish_closing_if_done();
  void report_closed();
  // Hands the links that have parted on to the next world, and ends all others.
  void keep_links();
  // Calls `function` in the loop's next turn, unless the mesh no longer exists then. The listener
  // is called this way, since it may do anything, even destroy the mesh.
  void post_if_alive(std::function<void()> function);

  EventLoop& loop_;
  MeshListener* listener_ = nullptr;  // set by listen(), before the loop runs
  const int most_connections_;        // that carry data, between two ranks of different hosts
  bool shares_all_memory_ = false;

  // These outlive the links, which return their buffers and channels to them.
  const std::unique_ptr<KeptLinks> own_links_;  // null if others outlive the mesh
  KeptLinks& kept_;
  TrafficCounters counters_;
  LinkEnvironment environment_;
  LinkConnector connector_;
  std::vector<std::unique_ptr<FramedLink>> links_;  // by rank; null until first used

  Status failed_;  // not ok once all links are unusable
  bool closing_ = false;
  std::function<void()> closed_;
  Alarm linger_, parting_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace perseus
