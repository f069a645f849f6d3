// One client's connection to the rendezvous server: has it prove that it knows the job's secret,
// lets it join a world, and carries its contributions and the answers. Server's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "base/caller_pool.h"
#include "base/event_loop.h"
#include "base/session.h"
#include "bootstrap/rendezvous_world.h"
#include "bootstrap/rendezvous_world_table.h"
#include "bootstrap/socket.h"

namespace perseus::rendezvous {

class Connection;

// The parts of the server that a connection uses.
struct Server {
  EventLoop& loop;
  WorldTable& worlds;
  const std::string& secret;
};

class ConnectionOwner {
 public:
  // The connection has proved itself.
  virtual void promote(Connection& connection) = 0;
  // It has ended. Destroys it.
  virtual void drop(Connection& connection) = 0;
  virtual void warn(const std::string& text) = 0;

 protected:
  ~ConnectionOwner() = default;
};

class Connection final : public FdHandler, public World::Member, public PooledCaller {
 public:
  Connection(const Server& server, ConnectionOwner& owner, Socket socket);
  ~Connection();

  // Greets the client.
  void begin();
  bool is_member() const { return state_ == State::kMember; }
  void leave_world() {
    if (!is_replaced_) server_.worlds.leave(world_, rank_, how_it_left_);
  }

 private:
  enum class State { kUnauthenticated, kMember, kRefused };

  void on_ready(uint32_t events) override;
  // World::Member
  void tell(const std::string& payload) override;
  std::string where() const override { return where_; }
  void replaced() override;

  // Returns false when the connection has ended or the client has broken the protocol, as do the
  // three that follow.
  bool read_available();
  bool take_frames();
  bool on_hello(const std::string& payload);
  bool on_contribution(std::string payload);
  void refuse(const Status& why);
  // Something between the member and here has changed what it sent.
  void disturbed();
  void send(std::string bytes);
  // Does not drop a broken connection, since a world may be sending to all its members now. That
  // happens when the loop reports it.
  void flush();
  uint32_t awaited() const;

  const Server& server_;
  ConnectionOwner& owner_;
  Socket socket_;
  const std::string where_;
  const std::string challenge_;
  State state_ = State::kUnauthenticated;
  std::optional<Session> session_;  // since the hello
  EventLoop::TimerId deadline_ = 0;
  WorldTable::Handle world_;
  uint32_t rank_ = 0;
  std::string how_it_left_ =
      "left or died, or its connection was cut, while the ranks were meeting";
  bool is_replaced_ = false;
  std::string incoming_;
  std::deque<std::string> outgoing_;
  size_t sent_ = 0;  // of the front of outgoing_
};

}  // namespace perseus::rendezvous
