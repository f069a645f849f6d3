// Listens on all of this rank's endpoints and admits connections that prove to belong to the job.
// A connection has five seconds to do so. At most an eighth of the process's descriptors, and never
// more than 4096, are held by those that have not; see base/caller_pool.h for how the job's own get
// through a flood of others. One that has proved itself waits for its confirmation as long as it
// stays open, or until the rank calls again for the same channel. Loop thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/caller_pool.h"
#include "base/event_loop.h"
#include "base/status.h"
#include "transport/endpoint.h"
#include "transport/handshake.h"
#include "transport/resource_exhaustion.h"

namespace perseus {

// This rank's part of every handshake.
struct Credentials {
  std::string secret;
  Nonce job{};
  uint32_t rank = 0;
};

class AcceptorOwner {
 public:
  // Returns whether the authenticated rank may have what it asks for. The acceptor then tells it.
  virtual bool may_connect(const Hello& hello) = 0;
  // The rank has been told that it may; the owner now has the connection.
  virtual void on_connected(const Hello& hello, ProvenConnection connection) = 0;

 protected:
  ~AcceptorOwner() = default;
};

class Acceptor {
 public:
  Acceptor(EventLoop& loop, const Credentials& credentials, ResourceExhaustion& exhaustion,
           AcceptorOwner& owner);
  ~Acceptor();

  // Begins to listen. Connections are accepted from start() on.
  Status listen(Endpoint& where);
  // Stops listening at endpoints where no rank is expected to connect.
  void stop_listening_unless(const std::function<bool(const Endpoint&)>& is_expected);
  void start();
  void close();

 private:
  class ListeningSocket;
  class PendingConnection;
  void accept_connections(ListeningSocket& socket);
  // The connection has been welcomed, so strangers no longer push it out.
  void keep(PendingConnection& connection);
  void forget(PendingConnection& connection);
  void warn_of_stranger(const Hello& hello);

  EventLoop& loop_;
  const Credentials& credentials_;
  ResourceExhaustion& exhaustion_;
  AcceptorOwner& owner_;
  std::vector<std::unique_ptr<ListeningSocket>> sockets_;
  int warnings_ = 0;
  CallerPool<PendingConnection> pending_;
  std::vector<std::unique_ptr<PendingConnection>> welcomed_;
};

}  // namespace perseus
