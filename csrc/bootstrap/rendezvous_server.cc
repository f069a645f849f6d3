#include "bootstrap/rendezvous_server.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <thread>
#include <utility>

#include "base/caller_pool.h"
#include "base/event_loop.h"
#include "base/hmac.h"
#include "base/secret.h"
#include "base/session.h"
#include "base/start_thread.h"
#include "bootstrap/rendezvous_protocol.h"
#include "bootstrap/rendezvous_world_table.h"
#include "bootstrap/socket.h"
#include "observe/log.h"

namespace perseus {
namespace {

using namespace rendezvous;

// A client that does not prove within this time that it knows the secret is dropped.
constexpr std::chrono::seconds kAuthenticationTime{5};
// How many clients that have not proved themselves are held; see base/caller_pool.h.
constexpr size_t kMaxUnauthenticated = 256;
// After descriptors have run out, accepting pauses for this long.
constexpr std::chrono::milliseconds kAcceptPause{100};
// Bounds the warnings about clients, so that a port scanner cannot fill the log.
constexpr int kMaxWarnings = 8;

// At one port; 0: any free one.
Result<std::vector<Socket>> listen_at_all(const std::vector<std::string>& addresses,
                                          uint16_t port) {
  std::vector<Socket> listeners;
  for (const std::string& address : addresses) {
    Result<Socket> listener = Socket::listen(address, port);
    if (!listener.is_ok()) return listener.status();
    port = listener.value().local_port();
    listeners.push_back(std::move(listener).value());
  }
  return listeners;
}

}  // namespace

// Runs on a thread of its own, except for the functions that are said to be for any thread.
class RendezvousServer::Service final : private FdHandler {
 public:
  // `listeners`: at least one, all at one port.
  Service(std::vector<Socket> listeners, int size, std::string secret, LaunchedRanks launched)
      : listeners_(std::move(listeners)),
        port_(listeners_[0].local_port()),
        size_(static_cast<uint32_t>(size)),
        secret_(std::move(secret)),
        loop_(std::chrono::microseconds(0)),
        met_(secret_),
        worlds_(loop_, size_, std::move(launched), met_) {}

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

  std::vector<int> left_out() const { return worlds_.left_out(); }
  const MetWorlds& met() const { return met_; }

  void note_ended(uint32_t rank, std::string how) {
    loop_.post(
        [this, rank, how = std::move(how)]() mutable { worlds_.note_ended(rank, std::move(how)); });
  }

 private:
  class Connection;

  void on_ready(uint32_t) override;
  void watch_listeners();
  // Returns false if descriptors have run out.
  bool accept_some(const Socket& listener);
  // The connection has proved itself.
  void promote(Connection& connection);
  void drop(Connection& connection);
  void warn(const std::string& text);

  std::vector<Socket> listeners_;
  const uint16_t port_;
  const uint32_t size_;
  const std::string secret_;
  EventLoop loop_;
  CallerPool<Connection> unauthenticated_{kMaxUnauthenticated};
  std::map<const Connection*, std::unique_ptr<Connection>> members_;
  MetWorlds met_;
  WorldTable worlds_;
  int warnings_ = 0;
  std::thread thread_;
};

class RendezvousServer::Service::Connection final : public FdHandler,
                                                    public World::Member,
                                                    public PooledCaller {
 public:
  Connection(Service& service, Socket socket)
      : service_(service),
        socket_(std::move(socket)),
        where_(socket_.peer_name()),
        challenge_(random_bytes(kChallengeBytes)) {}

  ~Connection() {
    service_.loop_.cancel_timer(deadline_);
    service_.loop_.unwatch(socket_.fd());
  }

  void begin() {
    service_.loop_.watch(socket_.fd(), EPOLLIN, this);
    deadline_ = service_.loop_.call_at(Clock::now() + kAuthenticationTime,
                                       [this] { service_.drop(*this); });
    send(std::string(kMagic) + challenge_);
  }

  bool is_member() const { return state_ == State::kMember; }
  void leave_world() { service_.worlds_.leave(world_, rank_); }

  void on_ready(uint32_t events) override {
    bool ended = true;
    try {
      if (events & EPOLLOUT) flush();
      ended = (events & ~EPOLLOUT) != 0 && (state_ == State::kRefused || !read_available());
    } catch (const std::bad_alloc&) {
      service_.warn("there is no memory for the connection from " + where_);
    }
    const bool refused_and_told = state_ == State::kRefused && outgoing_.empty();
    if (ended || refused_and_told) service_.drop(*this);  // destroys this
  }

 private:
  enum class State { kUnauthenticated, kMember, kRefused };

  // Returns false when the connection has ended or the client has broken the protocol.
  bool read_available() {
    char bytes[16384];
    while (true) {
      const ssize_t count = recv(socket_.fd(), bytes, sizeof(bytes), 0);
      if (count == 0) return false;
      if (count < 0) return errno == EAGAIN || errno == EINTR;
      incoming_.append(bytes, count);
      if (!take_frames()) return false;
      if (state_ == State::kRefused) return true;  // it is not heard any more
    }
  }

  bool take_frames() {
    while (incoming_.size() >= 4 && state_ != State::kRefused) {
      uint32_t bytes = 0;
      for (int i = 3; i >= 0; --i) bytes = bytes << 8 | static_cast<unsigned char>(incoming_[i]);
      const size_t most =
          is_member() ? max_contribution_frame_bytes() : max_hello_bytes(service_.size_);
      if (bytes > most) return false;
      if (incoming_.size() - 4 < bytes) return true;
      const std::string payload = incoming_.substr(4, bytes);
      incoming_.erase(0, 4 + size_t{bytes});
      if (!(is_member() ? on_contribution(payload) : on_hello(payload))) return false;
    }
    return true;
  }

  bool on_hello(const std::string& payload) {
    Hello hello;
    if (payload.size() < kMacBytes) return false;
    const std::string body = payload.substr(0, payload.size() - kMacBytes);
    if (!decode(body, hello)) return false;
    session_.emplace(make_session(service_.secret_, challenge_, payload, Role::kAcceptor));
    if (!equal_in_constant_time(payload.substr(body.size()),
                                client_mac(service_.secret_, challenge_, body))) {
      service_.warn("a client at " + where_ + " does not know the job's secret");
      // The client cannot tell that this is true, as it has another secret. It is told all the
      // same, and can say so.
      refuse(Status::invalid_argument("the secret is not this job's"));
      return true;
    }
    if (const std::string here = socket_.local_name(); hello.called != here) {
      refuse(Status::unreachable("this rank called " + hello.called + ", but came to " + here +
                                 ": a program in between passes on what it is sent. The ranks must "
                                 "call the host itself; PERSEUS_MASTER_ADDR may name it"));
      return true;
    }
    const Status admitted = service_.worlds_.join(hello, this, world_);
    if (!admitted.is_ok()) {
      refuse(admitted);
      return true;
    }
    state_ = State::kMember;
    rank_ = hello.rank;
    service_.loop_.cancel_timer(deadline_);
    service_.promote(*this);
    tell(encode_welcome());
    return true;
  }

  bool on_contribution(std::string payload) {
    Contribution contribution;
    if (!open_frame(payload, session_->incoming)) {
      service_.warn("something between rank " + std::to_string(rank_) + " at " + where_ +
                    " and here has changed what it sent");
      return false;
    }
    if (!decode(payload, contribution)) return false;
    service_.worlds_.contribute(world_, rank_, std::move(contribution));
    return true;
  }

  void refuse(const Status& why) {
    state_ = State::kRefused;
    tell(encode_error(Answer::kRefused, why));
  }

  // World::Member
  void tell(const std::string& payload) override { send(frame(payload, session_->outgoing)); }
  std::string where() const override { return where_; }

  void send(std::string bytes) {
    outgoing_.push_back(std::move(bytes));
    flush();
  }

  // Does not drop a broken connection, since a world may be sending to all its members now. That
  // happens when the loop reports it.
  void flush() {
    while (!outgoing_.empty()) {
      const std::string& front = outgoing_.front();
      const ssize_t sent =
          ::send(socket_.fd(), front.data() + sent_, front.size() - sent_, MSG_NOSIGNAL);
      if (sent < 0 && errno == EINTR) continue;
      if (sent < 0 && errno == EAGAIN) {
        service_.loop_.watch(socket_.fd(), awaited() | EPOLLOUT, this);
        return;
      }
      if (sent >= 0) sent_ += sent;
      if (sent < 0 || sent_ == front.size()) {
        outgoing_.pop_front();
        sent_ = 0;
      }
    }
    service_.loop_.watch(socket_.fd(), awaited(), this);
  }

  uint32_t awaited() const { return state_ == State::kRefused ? 0U : uint32_t{EPOLLIN}; }

  Service& service_;
  Socket socket_;
  const std::string where_;
  const std::string challenge_;
  State state_ = State::kUnauthenticated;
  std::optional<Session> session_;  // since the hello
  EventLoop::TimerId deadline_ = 0;
  WorldTable::Handle world_;
  uint32_t rank_ = 0;
  std::string incoming_;
  std::deque<std::string> outgoing_;
  size_t sent_ = 0;  // of the front of outgoing_
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
    if (!socket && (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)) {
      if (unauthenticated_.evict_one()) continue;
      warn(std::string("the rendezvous cannot accept connections: ") + std::strerror(errno));
      return false;
    }
    if (!socket) {
      if (errno == EAGAIN) return true;
      continue;  // this connection failed before it was accepted
    }
    if (!socket.is_open()) continue;  // as of a port scanner
    const int on = 1;
    setsockopt(socket.fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    setsockopt(socket.fd(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
    unauthenticated_.add(std::make_unique<Connection>(*this, std::move(socket))).begin();
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
    int least, std::vector<std::string> hosts) {
  auto server = listen(addresses, port, size, secret, least, std::move(hosts));
  if (server.is_ok()) PERSEUS_RETURN_IF_ERROR(server.value()->service_->start_thread());
  return server;
}

Result<std::unique_ptr<RendezvousServer>> RendezvousServer::listen(
    const std::vector<std::string>& addresses, uint16_t port, int size, const std::string& secret,
    int least, std::vector<std::string> hosts) {
  if (size < 1) {
    return Status::invalid_argument("a rendezvous needs a job of at least one rank, not " +
                                    std::to_string(size));
  }
  if (least < 1 || least > size) {
    return Status::invalid_argument("a job of " + std::to_string(size) +
                                    " ranks cannot need at least " + std::to_string(least) +
                                    " of them to go on");
  }
  if (!hosts.empty() && hosts.size() != static_cast<size_t>(size)) {
    return Status::invalid_argument("a rendezvous of " + std::to_string(size) +
                                    " ranks was given " + std::to_string(hosts.size()) + " hosts");
  }
  if (secret.empty()) return Status::invalid_argument("a rendezvous needs a secret");
  Result<std::vector<Socket>> listeners = listen_at_all(addresses, port);
  if (!listeners.is_ok()) return listeners.status();
  LaunchedRanks launched{static_cast<uint32_t>(least), std::move(hosts), {}};
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

std::vector<int> RendezvousServer::left_out() const { return service_->left_out(); }

bool RendezvousServer::has_met(const std::string& world, const std::vector<int>& ranks) const {
  return service_->met().has(world, ranks);
}

void RendezvousServer::note_ended(int rank, std::string how) {
  service_->note_ended(static_cast<uint32_t>(rank), std::move(how));
}

}  // namespace perseus
