#include "bootstrap/rendezvous_server.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <memory>
#include <thread>
#include <utility>

#include "base/caller_pool.h"
#include "base/event_loop.h"
#include "base/start_thread.h"
#include "bootstrap/rendezvous_connection.h"
#include "bootstrap/rendezvous_world_table.h"
#include "bootstrap/socket.h"
#include "observe/log.h"

namespace perseus {
namespace {

using namespace rendezvous;

// How many clients that have not proved themselves are held; see base/caller_pool.h.
constexpr size_t kMaxUnauthenticated = 256;
// After descriptors have run out, accepting pauses for this long.
constexpr std::chrono::milliseconds kAcceptPause{100};
// Bounds the warnings about clients, so that a port scanner cannot fill the log.
constexpr int kMaxWarnings = 8;
// To find a port that is free at several addresses.
constexpr int kMostAttempts = 20;

Result<std::vector<Socket>> listen_once(const std::vector<std::string>& addresses, uint16_t port) {
  std::vector<Socket> listeners;
  for (const std::string& address : addresses) {
    Result<Socket> listener = Socket::listen(address, port);
    if (!listener.is_ok()) return listener.status();
    port = listener.value().local_port();
    listeners.push_back(std::move(listener).value());
  }
  return listeners;
}

// At one port; 0: any that is free at all addresses. Another user may have it at some of them.
Result<std::vector<Socket>> listen_at_all(const std::vector<std::string>& addresses,
                                          uint16_t port) {
  const bool may_differ = port == 0 && addresses.size() > 1;
  for (int attempt = 1; may_differ && attempt < kMostAttempts; ++attempt) {
    Result<std::vector<Socket>> listeners = listen_once(addresses, port);
    if (listeners.is_ok()) return listeners;
  }
  return listen_once(addresses, port);
}

}  // namespace

// Runs on a thread of its own, except for the functions that are said to be for any thread.
class RendezvousServer::Service final : private FdHandler, private ConnectionOwner {
 public:
  // `listeners`: at least one, all at one port.
  Service(std::vector<Socket> listeners, int size, std::string secret, LaunchedRanks launched)
      : listeners_(std::move(listeners)),
        port_(listeners_[0].local_port()),
        secret_(std::move(secret)),
        loop_(std::chrono::microseconds(0)),
        met_(secret_),
        worlds_(loop_, static_cast<uint32_t>(size), std::move(launched), met_),
        shared_{loop_, worlds_, secret_} {}

  Status listen() {
    PERSEUS_RETURN_IF_ERROR(loop_.status());
    watch_listeners();
    return Status::ok();
  }
  Status start_thread() {
    return perseus::start_thread(thread_, "the rendezvous", [this] { loop_.run(); });
  }
  bool run_once() { return loop_.run_once(std::chrono::milliseconds(0)); }

  ~Service() {
    if (!thread_.joinable()) return;
    loop_.stop();
    thread_.join();
  }

  uint16_t port() const { return port_; }

  // Any thread, as are the next three.
  void add(Socket listener) {
    // A function that is posted must be copyable.
    auto shared = std::make_shared<Socket>(std::move(listener));
    loop_.post([this, shared] {
      loop_.watch(shared->fd(), EPOLLIN, this);
      listeners_.push_back(std::move(*shared));
    });
  }

  const MetWorlds& met() const { return met_; }

  void add_rank(std::string host) {
    loop_.post([this, host = std::move(host)]() mutable { worlds_.add_rank(std::move(host)); });
  }

  void note_ended(uint32_t rank, std::string how) {
    loop_.post(
        [this, rank, how = std::move(how)]() mutable { worlds_.note_ended(rank, std::move(how)); });
  }

 private:
  void on_ready(uint32_t) override;
  void watch_listeners();
  // Returns false if descriptors have run out.
  bool accept_some(const Socket& listener);
  // ConnectionOwner
  void promote(Connection& connection) override;
  void drop(Connection& connection) override;
  void warn(const std::string& text) override;

  std::vector<Socket> listeners_;
  const uint16_t port_;
  const std::string secret_;
  EventLoop loop_;
  MetWorlds met_;
  WorldTable worlds_;
  const Server shared_;
  CallerPool<Connection> unauthenticated_{kMaxUnauthenticated};
  std::map<const Connection*, std::unique_ptr<Connection>> members_;
  int warnings_ = 0;
  std::thread thread_;
};

void RendezvousServer::Service::watch_listeners() {
  for (const Socket& listener : listeners_) loop_.watch(listener.fd(), EPOLLIN, this);
}

void RendezvousServer::Service::on_ready(uint32_t) {
  if (std::ranges::all_of(listeners_, [this](const Socket& one) { return accept_some(one); })) {
    return;
  }
  for (const Socket& listener : listeners_) loop_.unwatch(listener.fd());
  loop_.call_at(Clock::now() + kAcceptPause, [this] { watch_listeners(); });
}

bool RendezvousServer::Service::accept_some(const Socket& listener) {
  for (int i = 0; i < kAcceptedAtOnce; ++i) {
    Socket socket(accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) {
      const int error = errno;
      if (error == EAGAIN || !has_caller(listener.fd())) return true;
      if (is_exhaustion(error)) {
        if (unauthenticated_.evict_one()) continue;
        warn(std::string("the rendezvous cannot accept connections: ") + std::strerror(error));
        return false;
      }
      continue;  // this connection failed before it was accepted
    }
    if (!socket.is_open()) continue;  // as of a port scanner
    const int on = 1;
    setsockopt(socket.fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    setsockopt(socket.fd(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
    ConnectionOwner& owner = *this;
    unauthenticated_.add(std::make_unique<Connection>(shared_, owner, std::move(socket))).begin();
  }
  return true;
}

void RendezvousServer::Service::promote(Connection& connection) {
  members_.emplace(&connection, unauthenticated_.take(connection));
}

void RendezvousServer::Service::drop(Connection& connection) {
  if (connection.is_member()) {
    connection.leave_world();
    members_.erase(&connection);
  } else {
    unauthenticated_.take(connection);
  }
}

void RendezvousServer::Service::warn(const std::string& text) {
  if (warnings_++ < kMaxWarnings) PERSEUS_LOG(kWarning, "rendezvous: " << text);
}

Result<std::unique_ptr<RendezvousServer>> RendezvousServer::start(
    const std::vector<std::string>& addresses, uint16_t port, int size, const std::string& secret,
    std::vector<std::string> hosts) {
  auto server = listen(addresses, port, size, secret, std::move(hosts));
  if (server.is_ok()) PERSEUS_RETURN_IF_ERROR(server.value()->service_->start_thread());
  return server;
}

Result<std::unique_ptr<RendezvousServer>> RendezvousServer::listen(
    const std::vector<std::string>& addresses, uint16_t port, int size, const std::string& secret,
    std::vector<std::string> hosts) {
  if (size < 0) {
    return Status::invalid_argument("a rendezvous cannot have " + std::to_string(size) + " ranks");
  }
  if (!hosts.empty() && hosts.size() != static_cast<size_t>(size)) {
    return Status::invalid_argument("a rendezvous of " + std::to_string(size) +
                                    " ranks was given " + std::to_string(hosts.size()) + " hosts");
  }
  if (secret.empty()) return Status::invalid_argument("a rendezvous needs a secret");
  Result<std::vector<Socket>> listeners = listen_at_all(addresses, port);
  if (!listeners.is_ok()) return listeners.status();
  LaunchedRanks launched{std::move(hosts), {}};
  auto service =
      std::make_unique<Service>(std::move(listeners).value(), size, secret, std::move(launched));
  PERSEUS_RETURN_IF_ERROR(service->listen());
  return std::unique_ptr<RendezvousServer>(new RendezvousServer(std::move(service)));
}

RendezvousServer::RendezvousServer(std::unique_ptr<Service> service)
    : service_(std::move(service)) {}

RendezvousServer::~RendezvousServer() = default;

bool RendezvousServer::run_once() { return service_->run_once(); }

uint16_t RendezvousServer::port() const { return service_->port(); }

Status RendezvousServer::also_listen(const std::vector<std::string>& addresses, uint16_t port) {
  Result<std::vector<Socket>> listeners = listen_at_all(addresses, port);
  if (!listeners.is_ok()) return listeners.status();
  for (Socket& listener : listeners.value()) service_->add(std::move(listener));
  return Status::ok();
}

bool RendezvousServer::has_met(const std::string& world, const std::vector<int>& ranks) const {
  return service_->met().has(world, ranks);
}

void RendezvousServer::add_rank(std::string host) { service_->add_rank(std::move(host)); }

void RendezvousServer::note_ended(int rank, std::string how) {
  service_->note_ended(static_cast<uint32_t>(rank), std::move(how));
}

}  // namespace perseus
