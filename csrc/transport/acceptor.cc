#include "transport/acceptor.h"

#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <optional>

#include "bootstrap/local_sockets.h"
#include "observe/log.h"

namespace perseus {
namespace {

constexpr auto kPatience = std::chrono::seconds(5);
constexpr size_t kMaxPending = 4096;
constexpr auto kPauseWithoutDescriptors = std::chrono::milliseconds(100);
// So that a stranger cannot fill the log.
constexpr int kMostWarnings = 8;

// Leaves most descriptors to the script.
size_t max_pending() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  return std::clamp<size_t>(limit.rlim_cur / 8, 16, kMaxPending);
}

// Returns whether the caller has not closed the connection already, as port scanners do.
bool is_open(const FileDescriptor& fd) {
  char byte;
  const ssize_t count = recv(fd.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return count > 0 || (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK));
}

}  // namespace

// One listening socket.
class Acceptor::ListeningSocket final : public FdHandler {
 public:
  ListeningSocket(Acceptor& acceptor, const Endpoint& where, FileDescriptor fd)
      : acceptor_(acceptor), where_(where), fd_(std::move(fd)) {}
  ~ListeningSocket() {
    acceptor_.loop_.unwatch(fd_.get());
    acceptor_.loop_.cancel_timer(pause_);
  }
  void open() { acceptor_.loop_.watch(fd_.get(), EPOLLIN, this); }
  void on_ready(uint32_t) override { acceptor_.accept_connections(*this); }

  // While there is no descriptor for a connection the socket stays readable, so watching it would
  // make the loop spin.
  void pause(Clock::duration pause) {
    acceptor_.loop_.unwatch(fd_.get());
    pause_ = acceptor_.loop_.call_at(Clock::now() + pause, [this] { open(); });
  }
  int fd() const { return fd_.get(); }
  const Endpoint& where() const { return where_; }

 private:
  Acceptor& acceptor_;
  const Endpoint where_;
  FileDescriptor fd_;
  EventLoop::TimerId pause_ = 0;
};

// A connection until its caller has confirmed it.
class Acceptor::PendingConnection final : public FdHandler, public PooledCaller {
 public:
  PendingConnection(Acceptor& acceptor, FileDescriptor fd)
      : acceptor_(acceptor), fd_(std::move(fd)) {
    acceptor_.loop_.watch(fd_.get(), EPOLLIN, this);
    timer_ = acceptor_.loop_.call_at(Clock::now() + kPatience, [this] { acceptor_.forget(*this); });
  }
  ~PendingConnection() {
    acceptor_.loop_.cancel_timer(timer_);
    if (fd_) acceptor_.loop_.unwatch(fd_.get());
  }

  // Returns whether a rank has been welcomed, which takes the connection for made from then on.
  bool is_welcomed() const { return is_welcomed_; }
  // Returns whether both are to become the same channel, or the same request.
  bool is_same_call(const PendingConnection& other) const {
    const Hello &mine = introduction_.hello, &theirs = other.introduction_.hello;
    return mine.from == theirs.from && mine.purpose == theirs.purpose && mine.index == theirs.index;
  }

  void begin() {
    greeting_.nonce = random_nonce();
    if (!send_message(fd_.get(), greeting_)) acceptor_.forget(*this);
  }

  void on_ready(uint32_t) override {
    if (!session_ && !has_introduced_itself()) return;
    const auto outcome = reader_.read(fd_.get(), confirmation_);
    if (outcome == MessageReader::Outcome::kPartial) return;
    if (outcome == MessageReader::Outcome::kComplete) hand_over();
    acceptor_.forget(*this);
  }

 private:
  // Returns whether the caller has proved itself and been welcomed. This may have been destroyed
  // otherwise.
  bool has_introduced_itself() {
    const auto outcome = reader_.read(fd_.get(), introduction_);
    if (outcome == MessageReader::Outcome::kPartial) return false;
    if (outcome == MessageReader::Outcome::kComplete && welcome()) {
      // However long the rank may be stopped now, it will take the connection for made.
      acceptor_.loop_.cancel_timer(timer_);
      is_welcomed_ = true;
      acceptor_.keep(*this);
      return true;
    }
    acceptor_.forget(*this);
    return false;
  }

  bool welcome() {
    const Credentials& mine = acceptor_.credentials_;
    const Hello& hello = introduction_.hello;
    // It may belong to another job, which had this address before.
    if (hello.job != mine.job || hello.to != mine.rank) return false;
    if (!is_proven(mine.secret, greeting_, introduction_)) {
      acceptor_.warn_of_stranger(hello);
      return false;
    }
    session_.emplace(make_session(mine.secret, greeting_, introduction_, Role::kAcceptor));
    Welcome welcome{verdict(), {}};
    welcome.tag = session_->outgoing.next({bytes_of(welcome.verdict)});
    return send_message(fd_.get(), welcome) && welcome.verdict == Welcome::kWelcome;
  }

  Welcome::Verdict verdict() {
    Endpoint here;
    here.length = sizeof here.address;
    const bool is_known =
        getsockname(fd_.get(), reinterpret_cast<sockaddr*>(&here.address), &here.length) == 0;
    if (!is_known || digest_of(here) != introduction_.hello.called) return Welcome::kNotCalledHere;
    return acceptor_.owner_.may_connect(introduction_.hello) ? Welcome::kWelcome : Welcome::kNotNow;
  }

  void hand_over() {
    if (!session_->incoming.is_next(view(confirmation_.tag), {})) return;
    // It may have connected in another way meanwhile.
    if (!acceptor_.owner_.may_connect(introduction_.hello)) return;
    acceptor_.loop_.unwatch(fd_.get());
    acceptor_.exhaustion_.succeeded();
    acceptor_.owner_.on_connected(introduction_.hello, {std::move(fd_), std::move(*session_)});
  }

  Acceptor& acceptor_;
  FileDescriptor fd_;
  EventLoop::TimerId timer_ = 0;
  MessageReader reader_;
  Greeting greeting_;
  Introduction introduction_;
  std::optional<Session> session_;  // once the caller has proved itself
  Confirmation confirmation_;
  bool is_welcomed_ = false;
};

Acceptor::Acceptor(EventLoop& loop, const Credentials& credentials, ResourceExhaustion& exhaustion,
                   AcceptorOwner& owner)
    : loop_(loop),
      credentials_(credentials),
      exhaustion_(exhaustion),
      owner_(owner),
      pending_(max_pending()) {}

Acceptor::~Acceptor() { close(); }

Status Acceptor::listen(Endpoint& where) {
  Result<FileDescriptor> fd = listen_at(where);
  if (!fd.is_ok()) return fd.status();
  sockets_.push_back(std::make_unique<ListeningSocket>(*this, where, std::move(fd).value()));
  return Status::ok();
}

void Acceptor::stop_listening_unless(const std::function<bool(const Endpoint&)>& is_expected) {
  std::erase_if(sockets_, [&](const auto& socket) { return !is_expected(socket->where()); });
}

void Acceptor::start() {
  for (auto& socket : sockets_) socket->open();
}

void Acceptor::close() {
  sockets_.clear();
  pending_.clear();
  welcomed_.clear();
}

void Acceptor::accept_connections(ListeningSocket& socket) {
  for (int i = 0; i < kAcceptedAtOnce; ++i) {
    FileDescriptor fd(accept4(socket.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (fd) {
      // The kernel tells who calls over a Unix socket, so another user's calls take no place.
      const bool is_stranger =
          socket.where().family() == AF_UNIX && peer_of(fd.get()).is_anothers();
      if (!is_stranger && is_open(fd)) {
        pending_.add(std::make_unique<PendingConnection>(*this, std::move(fd))).begin();
      }
      continue;
    }
    if (errno == EINTR || errno == ECONNABORTED) continue;
    const int error = errno;
    if (!is_exhaustion(error) || !has_caller(socket.fd())) return;
    const bool is_new = exhaustion_.failed(error);
    if (pending_.evict_one()) continue;
    if (is_new) {
      PERSEUS_LOG(
          kWarning,
          "cannot accept a connection: no file descriptors or memory left; raise the limit on "
          "open files (ulimit -n)");
    }
    return socket.pause(kPauseWithoutDescriptors);
  }
}

void Acceptor::keep(PendingConnection& connection) {
  // A rank calls again only once it has given up its call before. Somebody in between may keep that
  // one open, and would make us keep any number of them.
  std::erase_if(welcomed_, [&](const auto& before) { return before->is_same_call(connection); });
  welcomed_.push_back(pending_.take(connection));
}

void Acceptor::forget(PendingConnection& connection) {
  if (!connection.is_welcomed()) {
    pending_.take(connection);
    return;
  }
  std::erase_if(welcomed_, [&](const auto& welcomed) { return welcomed.get() == &connection; });
}

void Acceptor::warn_of_stranger(const Hello& hello) {
  if (++warnings_ > kMostWarnings) return;
  PERSEUS_LOG(kWarning, "refused a connection that claims to be rank "
                            << hello.from << " but does not know the job's secret"
                            << (warnings_ == kMostWarnings ? "; more will not be reported" : ""));
}

}  // namespace perseus
