#include "transport/acceptor.h"

#include <sys/epoll.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>

#include "observe/log.h"

namespace perseus {
namespace {

constexpr auto kPatience = std::chrono::seconds(5);
// A rank of the job has proved itself by then. When there are too many pending connections, those
// that are older are dropped.
constexpr auto kPatienceWhenFull = std::chrono::milliseconds(100);
constexpr size_t kMaxPending = 4096;
constexpr auto kPauseWhenFull = std::chrono::milliseconds(10);
constexpr auto kPauseWithoutDescriptors = std::chrono::milliseconds(100);

// Leaves most descriptors to the script.
size_t max_pending() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  return std::clamp<size_t>(limit.rlim_cur / 8, 16, kMaxPending);
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

  // While there is no descriptor or place for a connection the socket stays readable, so watching
  // it would make the loop spin.
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

// A connection that has not proved itself yet.
class Acceptor::PendingConnection final : public FdHandler {
 public:
  PendingConnection(Acceptor& acceptor, FileDescriptor fd)
      : acceptor_(acceptor), fd_(std::move(fd)) {
    acceptor_.loop_.watch(fd_.get(), EPOLLIN, this);
    timer_ = acceptor_.loop_.call_at(accepted_at_ + kPatience, [this] { acceptor_.forget(this); });
  }
  ~PendingConnection() {
    acceptor_.loop_.cancel_timer(timer_);
    if (fd_) acceptor_.loop_.unwatch(fd_.get());
  }

  Clock::time_point accepted_at() const { return accepted_at_; }

  void on_ready(uint32_t) override {
    if (!has_hello_) {
      const auto outcome = reader_.read(fd_.get(), hello_);
      if (outcome == MessageReader::Outcome::kPartial) return;
      if (outcome == MessageReader::Outcome::kClosed || !challenge()) {
        acceptor_.forget(this);
        return;
      }
      has_hello_ = true;
    }
    const auto outcome = reader_.read(fd_.get(), proof_);
    if (outcome == MessageReader::Outcome::kPartial) return;
    if (outcome == MessageReader::Outcome::kComplete) decide();
    acceptor_.forget(this);
  }

 private:
  bool challenge() {
    const Credentials& mine = acceptor_.credentials_;
    if (hello_.magic != Hello::kMagic || hello_.job != mine.job || hello_.to != mine.rank) {
      return false;
    }
    challenge_.nonce = random_nonce();
    challenge_.mac = prove(mine.secret, Role::kAcceptor, hello_, challenge_.nonce);
    return send_message(fd_.get(), challenge_);
  }

  void decide() {
    if (!is_proof(proof_.mac, acceptor_.credentials_.secret, Role::kInitiator, hello_,
                  challenge_.nonce)) {
      PERSEUS_LOG(kWarning, "refused a connection that claims to be rank "
                                << hello_.from << " but does not know the job's secret");
      return;
    }
    const bool welcome = acceptor_.owner_.may_connect(hello_);
    if (!send_message(fd_.get(), Welcome{welcome ? Welcome::kWelcome : Welcome::kNotNow})) return;
    if (!welcome) return;
    acceptor_.loop_.unwatch(fd_.get());
    acceptor_.owner_.on_connected(hello_, std::move(fd_));
  }

  Acceptor& acceptor_;
  FileDescriptor fd_;
  const Clock::time_point accepted_at_ = Clock::now();
  EventLoop::TimerId timer_ = 0;
  MessageReader reader_;
  bool has_hello_ = false;
  Hello hello_;
  Challenge challenge_;
  Proof proof_;
};

Acceptor::Acceptor(EventLoop& loop, const Credentials& credentials, ResourceExhaustion& exhaustion,
                   AcceptorOwner& owner)
    : loop_(loop),
      credentials_(credentials),
      exhaustion_(exhaustion),
      owner_(owner),
      max_pending_(max_pending()) {}

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
}

void Acceptor::accept_connections(ListeningSocket& socket) {
  for (;;) {
    if (pending_.size() >= max_pending_ && !drop_oldest()) return socket.pause(kPauseWhenFull);
    FileDescriptor fd(accept4(socket.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (fd) {
      exhaustion_.succeeded();
      pending_.push_back(std::make_unique<PendingConnection>(*this, std::move(fd)));
      continue;
    }
    if (errno == EINTR || errno == ECONNABORTED) continue;
    const int error = errno;
    if (!ResourceExhaustion::is_exhaustion(error)) return;
    if (drop_oldest()) continue;
    if (exhaustion_.failed(error)) {
      PERSEUS_LOG(
          kWarning,
          "cannot accept a connection: no file descriptors or memory left; raise the limit on "
          "open files (ulimit -n)");
    }
    return socket.pause(kPauseWithoutDescriptors);
  }
}

bool Acceptor::drop_oldest() {
  if (pending_.empty() || Clock::now() - pending_.front()->accepted_at() < kPatienceWhenFull) {
    return false;
  }
  pending_.pop_front();
  return true;
}

void Acceptor::forget(PendingConnection* connection) {
  pending_.remove_if(
      [&](const std::unique_ptr<PendingConnection>& g) { return g.get() == connection; });
}

}  // namespace perseus
