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
#include <list>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <tuple>
#include <utility>

#include "base/event_loop.h"
#include "base/hmac.h"
#include "base/secret.h"
#include "base/start_thread.h"
#include "bootstrap/rendezvous_protocol.h"
#include "bootstrap/rendezvous_world.h"
#include "bootstrap/socket.h"
#include "observe/log.h"

namespace perseus {
namespace {

using namespace rendezvous;

// A client proves that it knows the secret within this time or is dropped.
constexpr std::chrono::seconds kAuthenticationTime{5};
// Beyond, the stranger that has been here longest makes room for the newest.
constexpr size_t kMostStrangers = 256;
// When descriptors run out, accepting rests for this long.
constexpr std::chrono::milliseconds kAcceptPause{100};
// Strangers that are warned of; a scanner shall not fill the log.
constexpr int kMostWarnings = 8;

}  // namespace

// Everything but the constructor and stop() runs on the service's own thread.
class RendezvousServer::Service final : private FdHandler {
 public:
  // At least one listener, all at one port.
  Service(std::vector<Socket> listeners, int size, std::string secret, LaunchedRanks launched)
      : listeners_(std::move(listeners)),
        port_(listeners_[0].local_port()),
        size_(static_cast<uint32_t>(size)),
        secret_(std::move(secret)),
        loop_(std::chrono::microseconds(0)),
        launched_(std::move(launched)) {}

  Status start() {
    PERSEUS_RETURN_IF_ERROR(loop_.status());
    watch_listeners();
    return start_thread(thread_, "the rendezvous", [this] { loop_.run(); });
  }

  ~Service() {
    if (!thread_.joinable()) return;
    loop_.stop();
    thread_.join();
  }

  uint16_t port() const { return port_; }

  // Any thread, as the next one.
  std::vector<int> left_out() const {
    std::lock_guard lock(left_out_mutex_);
    return {left_out_.begin(), left_out_.end()};
  }

  void note_ended(uint32_t rank, std::string how) {
    loop_.post([this, rank, how = std::move(how)]() mutable {
      launched_.ended.try_emplace(rank, std::move(how));
      for (auto& [key, place] : worlds_) {
        place.world.note_ended();
        settle(place);
      }
    });
  }

 private:
  class Connection;
  using Connections = std::list<std::unique_ptr<Connection>>;
  // Who is to meet: whether survivors, launched ranks.
  using Circle = std::pair<bool, std::vector<uint32_t>>;
  // And which of their worlds: its generation, and how many meetings have timed out before it.
  using WorldKey = std::tuple<Circle, uint32_t, uint32_t>;
  struct MeetingPlace {
    MeetingPlace(const Hello& first, const LaunchedRanks& launched) : world(first, launched) {}
    World world;
    EventLoop::TimerId timer = 0;  // 0: none is set
    Clock::time_point began;
  };
  using Worlds = std::map<WorldKey, MeetingPlace>;

  void on_ready(uint32_t) override;
  void watch_listeners();
  // False if descriptors have run out.
  bool accept_all(const Socket& listener);
  Status check(const Hello& hello) const;
  Status admit(const Hello& hello, Connection* connection, Worlds::iterator& world);
  void contribute(Worlds::iterator world, uint32_t rank, Contribution contribution);
  void leave(Worlds::iterator world, uint32_t rank);
  // The round may have ended.
  void settle(MeetingPlace& place);
  void time_out(Worlds::iterator world);
  void drop(Connections::iterator connection);
  void warn(const std::string& text);

  const std::vector<Socket> listeners_;
  const uint16_t port_;
  const uint32_t size_;
  const std::string secret_;
  EventLoop loop_;
  Connections strangers_;  // oldest first
  Connections members_;
  LaunchedRanks launched_;
  // By circle, and there by launched rank: meetings that timed out before all had come. To a rank
  // each was a generation, but others may not have been there.
  struct TimedOut {
    uint32_t meetings = 0;
    std::map<uint32_t, uint32_t> of_rank;
  };
  std::map<Circle, TimedOut> timed_out_;
  mutable std::mutex left_out_mutex_;
  std::set<int> left_out_;  // launched ranks
  Worlds worlds_;
  int warnings_ = 0;
  std::thread thread_;
};

class RendezvousServer::Service::Connection final : public FdHandler, public World::Member {
 public:
  Connection(Service& service, Socket socket)
      : service_(service),
        socket_(std::move(socket)),
        where_(socket_.peer_name()),
        challenge_(random_bytes(kChallengeBytes)) {}

  void begin(Connections::iterator self) {
    self_ = self;
    service_.loop_.watch(socket_.fd(), EPOLLIN, this);
    deadline_ = service_.loop_.call_at(Clock::now() + kAuthenticationTime,
                                       [this] { service_.drop(self_); });
    send(std::string(kMagic) + challenge_);
  }

  // Leaves its world and the loop; the owner then destroys it.
  void end() {
    service_.loop_.cancel_timer(deadline_);
    service_.loop_.unwatch(socket_.fd());
    if (state_ == State::kMember) service_.leave(world_, rank_);
  }

  bool is_member() const { return state_ == State::kMember; }

  void on_ready(uint32_t events) override {
    if (events & EPOLLOUT) flush();
    const bool ended = (events & ~EPOLLOUT) != 0 && !read_available();
    const bool refused_and_told = state_ == State::kRefused && outgoing_.empty();
    if (ended || refused_and_told) service_.drop(self_);  // destroys this
  }

 private:
  enum class State { kStranger, kMember, kRefused };

  // False when the connection has ended or broken the protocol.
  bool read_available() {
    char bytes[16384];
    while (true) {
      const ssize_t count = recv(socket_.fd(), bytes, sizeof(bytes), 0);
      if (count == 0) return false;
      if (count < 0) return errno == EAGAIN || errno == EINTR;
      incoming_.append(bytes, count);
      if (!take_frames()) return false;
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
    if (!equal_in_constant_time(payload.substr(body.size()),
                                client_mac(service_.secret_, challenge_, body))) {
      service_.warn("a client at " + where_ + " does not know the job's secret");
      refuse(Status::invalid_argument(
          "the secret is not this job's; PERSEUS_SECRET must be the same for all ranks, and the "
          "rendezvous address that of this job"));
      return true;
    }
    const Status admitted = service_.admit(hello, this, world_);
    if (!admitted.is_ok()) {
      refuse(admitted);
      return true;
    }
    state_ = State::kMember;
    rank_ = hello.rank;
    service_.loop_.cancel_timer(deadline_);
    service_.members_.splice(service_.members_.end(), service_.strangers_, self_);
    send(frame(encode_welcome(server_mac(service_.secret_, challenge_, hello.challenge))));
    return true;
  }

  bool on_contribution(const std::string& payload) {
    Contribution contribution;
    if (!decode(payload, contribution)) return false;
    service_.contribute(world_, rank_, std::move(contribution));
    return true;
  }

  void refuse(const Status& why) {
    state_ = State::kRefused;
    send(frame(encode_error(Answer::kRefused, why)));
  }

  // World::Member
  void tell(const std::string& payload) override { send(frame(payload)); }
  std::string where() const override { return where_; }

  void send(std::string bytes) {
    outgoing_.push_back(std::move(bytes));
    flush();
  }

  // A broken connection is not dropped here, where a world may be telling all its members
  // something, but when the loop reports it.
  void flush() {
    while (!outgoing_.empty()) {
      const std::string& front = outgoing_.front();
      const ssize_t sent =
          ::send(socket_.fd(), front.data() + sent_, front.size() - sent_, MSG_NOSIGNAL);
      if (sent < 0 && errno == EINTR) continue;
      if (sent < 0 && errno == EAGAIN) {
        service_.loop_.watch(socket_.fd(), EPOLLIN | EPOLLOUT, this);
        return;
      }
      if (sent >= 0) sent_ += sent;
      if (sent < 0 || sent_ == front.size()) {
        outgoing_.pop_front();
        sent_ = 0;
      }
    }
    service_.loop_.watch(socket_.fd(), EPOLLIN, this);
  }

  Service& service_;
  Socket socket_;
  const std::string where_;
  const std::string challenge_;
  Connections::iterator self_;
  State state_ = State::kStranger;
  EventLoop::TimerId deadline_ = 0;
  Worlds::iterator world_;
  uint32_t rank_ = 0;
  std::string incoming_;
  std::deque<std::string> outgoing_;
  size_t sent_ = 0;  // of the front of outgoing_
};

void RendezvousServer::Service::watch_listeners() {
  for (const Socket& listener : listeners_) loop_.watch(listener.fd(), EPOLLIN, this);
}

void RendezvousServer::Service::on_ready(uint32_t) {
  if (std::ranges::all_of(listeners_, [this](const Socket& one) { return accept_all(one); })) {
    return;
  }
  for (const Socket& listener : listeners_) loop_.unwatch(listener.fd());
  loop_.call_at(Clock::now() + kAcceptPause, [this] { watch_listeners(); });
}

bool RendezvousServer::Service::accept_all(const Socket& listener) {
  while (true) {
    Socket socket(accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket && (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)) {
      warn(std::string("the rendezvous cannot accept connections: ") + std::strerror(errno));
      return false;
    }
    if (!socket) {
      if (errno == EAGAIN) return true;
      continue;  // this one connection failed before it was accepted
    }
    const int on = 1;
    setsockopt(socket.fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    setsockopt(socket.fd(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
    if (strangers_.size() >= kMostStrangers) drop(strangers_.begin());
    strangers_.push_back(std::make_unique<Connection>(*this, std::move(socket)));
    strangers_.back()->begin(std::prev(strangers_.end()));
  }
}

Status RendezvousServer::Service::check(const Hello& hello) const {
  const std::string sizes = "rank " + std::to_string(hello.rank) + " of " +
                            std::to_string(hello.size) + " in a job of " + std::to_string(size_);
  const bool whole = hello.ranks.empty();
  if (hello.survivors && !whole) {
    return Status::invalid_argument("survivors are those of all ranks, not of some");
  }
  if (hello.rank >= hello.size ||
      (whole ? hello.size != size_ : hello.ranks.size() != hello.size)) {
    return Status::invalid_argument("the rendezvous has no place for " + sizes +
                                    "; PERSEUS_SIZE must be the same for all ranks");
  }
  for (const uint32_t launched : hello.ranks) {
    if (launched >= size_) {
      return Status::invalid_argument("rank " + std::to_string(launched) +
                                      " was asked for in a job of " + std::to_string(size_));
    }
  }
  return Status::ok();
}

Status RendezvousServer::Service::admit(const Hello& hello, Connection* connection,
                                        Worlds::iterator& world) {
  PERSEUS_RETURN_IF_ERROR(check(hello));
  const Circle circle(hello.survivors, hello.ranks);
  TimedOut& before = timed_out_[circle];
  const uint32_t launched = hello.ranks.empty() ? hello.rank : hello.ranks[hello.rank];
  const WorldKey key(circle, hello.generation - before.of_rank[launched], before.meetings);
  world = worlds_.try_emplace(key, hello, launched_).first;
  return world->second.world.join(hello, connection);
}

void RendezvousServer::Service::contribute(Worlds::iterator world, uint32_t rank,
                                           Contribution contribution) {
  MeetingPlace& place = world->second;
  if (!place.world.is_waiting()) place.began = Clock::now();
  const Clock::time_point deadline =
      Clock::now() + std::chrono::milliseconds(contribution.time_out_ms);
  place.world.contribute(rank, std::move(contribution));
  // The first rank's time-out counts: it started first, and all end together.
  if (place.world.is_waiting() && place.timer == 0) {
    place.timer = loop_.call_at(deadline, [this, world] { time_out(world); });
  }
  settle(place);
}

void RendezvousServer::Service::settle(MeetingPlace& place) {
  if (!place.world.is_waiting() && place.timer != 0) {
    loop_.cancel_timer(std::exchange(place.timer, 0));
  }
}

void RendezvousServer::Service::time_out(Worlds::iterator world) {
  MeetingPlace& place = world->second;
  place.timer = 0;
  const std::chrono::duration<double> waited = Clock::now() - place.began;
  const std::vector<uint32_t> left_out = place.world.time_out(waited.count());
  if (!place.world.has_met()) {
    TimedOut& timed_out = timed_out_[std::get<Circle>(world->first)];
    timed_out.meetings += 1;
    for (const uint32_t rank : place.world.members()) timed_out.of_rank[rank] += 1;
  }
  std::lock_guard lock(left_out_mutex_);
  left_out_.insert(left_out.begin(), left_out.end());
}

void RendezvousServer::Service::leave(Worlds::iterator world, uint32_t rank) {
  MeetingPlace& place = world->second;
  place.world.leave(rank);
  settle(place);
  // The record ends with its last member, so that a world may meet again.
  if (place.world.is_empty()) worlds_.erase(world);
}

void RendezvousServer::Service::drop(Connections::iterator connection) {
  Connections& list = (*connection)->is_member() ? members_ : strangers_;
  (*connection)->end();
  list.erase(connection);
}

void RendezvousServer::Service::warn(const std::string& text) {
  if (warnings_++ < kMostWarnings) PERSEUS_LOG(kWarning, "rendezvous: " << text);
}

Result<std::unique_ptr<RendezvousServer>> RendezvousServer::start(
    const std::vector<std::string>& addresses, uint16_t port, int size, const std::string& secret,
    int least, std::vector<std::string> hosts) {
  if (size < 1) {
    return Status::invalid_argument("a rendezvous needs a job of at least one rank, not " +
                                    std::to_string(size));
  }
  if (least < 1 || least > size) {
    return Status::invalid_argument("of " + std::to_string(size) + " ranks, " +
                                    std::to_string(least) + " cannot be the least that go on");
  }
  if (!hosts.empty() && hosts.size() != static_cast<size_t>(size)) {
    return Status::invalid_argument("a rendezvous of " + std::to_string(size) +
                                    " ranks was given " + std::to_string(hosts.size()) + " hosts");
  }
  if (secret.empty()) return Status::invalid_argument("a rendezvous needs a secret");
  std::vector<Socket> listeners;
  for (const std::string& address : addresses) {
    Result<Socket> listener = Socket::listen(address, port);
    if (!listener.is_ok()) return listener.status();
    port = listener.value().local_port();
    listeners.push_back(std::move(listener).value());
  }
  LaunchedRanks launched{static_cast<uint32_t>(least), std::move(hosts), {}};
  auto service = std::make_unique<Service>(std::move(listeners), size, secret, std::move(launched));
  PERSEUS_RETURN_IF_ERROR(service->start());
  return std::unique_ptr<RendezvousServer>(new RendezvousServer(std::move(service)));
}

RendezvousServer::RendezvousServer(std::unique_ptr<Service> service)
    : service_(std::move(service)) {}

RendezvousServer::~RendezvousServer() = default;

uint16_t RendezvousServer::port() const { return service_->port(); }

std::vector<int> RendezvousServer::left_out() const { return service_->left_out(); }

void RendezvousServer::note_ended(int rank, std::string how) {
  service_->note_ended(static_cast<uint32_t>(rank), std::move(how));
}

}  // namespace perseus
