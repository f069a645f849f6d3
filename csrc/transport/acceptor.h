// Listens on all of this rank's endpoints and admits those connections that prove to belong to the
// job. Strangers get five seconds, never more than a bounded number of them at once, and disturb
// nobody. Loop thread.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <vector>

#include "base/event_loop.h"
#include "base/status.h"
#include "transport/endpoint.h"
#include "transport/handshake.h"
#include "transport/resource_shortage.h"

namespace perseus {

// What both sides of a handshake know about this rank.
struct Credentials {
  std::string secret;
  Nonce job{};
  uint32_t rank = 0;
};

class AcceptorOwner {
 public:
  // Whether the authenticated rank may have what it asks for; tells the other side.
  virtual bool may_connect(const Hello& hello) = 0;
  // It has been told that it may; the connection is the owner's.
  virtual void on_connected(const Hello& hello, FileDescriptor fd) = 0;

 protected:
  ~AcceptorOwner() = default;
};

class Acceptor {
 public:
  Acceptor(EventLoop& loop, const Credentials& credentials, ResourceShortage& shortage,
           AcceptorOwner& owner);
  ~Acceptor();

  // Begins to listen at once; connections are taken in from start() on.
  Status listen(Endpoint& where);
  // Listens no more where nobody is expected.
  void stop_listening_unless(const std::function<bool(const Endpoint&)>& is_expected);
  void start();
  void close();

 private:
  class ListeningSocket;
  class PendingConnection;
  void accept_connections(ListeningSocket& socket);
  // Sends away who has been here longest, if that is long enough for those of the job.
  bool drop_oldest();
  void forget(PendingConnection* connection);

  EventLoop& loop_;
  const Credentials& credentials_;
  ResourceShortage& shortage_;
  AcceptorOwner& owner_;
  std::vector<std::unique_ptr<ListeningSocket>> sockets_;
  const size_t max_pending_;
  std::list<std::unique_ptr<PendingConnection>> pending_;  // oldest first
};

}  // namespace perseus
