#include "transport/acceptor.h"

#include <sys/epoll.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>

#include "observe/log.h"

namespace perseus {
namespace {

constexpr auto kPatience = std::chrono::seconds(5);
// Who belongs to the job has proved it by then; where room is short, others must go.
constexpr auto kPatienceInACrowd = std::chrono::milliseconds(100);
constexpr size_t kMostGuests = 4096;
constexpr auto kPauseInACrowd = std::chrono::milliseconds(10);
constexpr auto kPauseWithoutDescriptors = std::chrono::milliseconds(100);

// Strangers must leave the script the descriptors that it needs.
size_t most_guests() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  return std::clamp<size_t>(limit.rlim_cur / 8, 16, kMostGuests);
}

}  // namespace

// One listening socket.
class Acceptor::Door final : public FdHandler {
 public:
  Door(Acceptor& acceptor, const Endpoint& where, FileDescriptor fd)
      : acceptor_(acceptor), where_(where), fd_(std::move(fd)) {}
  ~Door() {
    acceptor_.loop_.unwatch(fd_.get());
    acceptor_.loop_.cancel_timer(pause_);
  }
  void open() { acceptor_.loop_.watch(fd_.get(), EPOLLIN, this); }
  void on_ready(uint32_t) override { acceptor_.let_in(*this); }

  // Without a descriptor or a place to spare the socket stays readable; looking again at once would
  // spin.
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

// One connection that has yet to prove itself.
class Acceptor::Guest final : public FdHandler {
 public:
  Guest(Acceptor& acceptor, FileDescriptor fd) : acceptor_(acceptor), fd_(std::move(fd)) {
    acceptor_.loop_.watch(fd_.get(), EPOLLIN, this);
    timer_ = acceptor_.loop_.call_at(came_ + kPatience, [this] { acceptor_.forget(this); });
  }
  ~Guest() {
    acceptor_.loop_.cancel_timer(timer_);
    if (fd_) acceptor_.loop_.unwatch(fd_.get());
  }

  Clock::time_point came() const { return came_; }

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
    const bool welcome = acceptor_.owner_.may_enter(hello_);
    if (!send_message(fd_.get(), Welcome{welcome ? Welcome::kWelcome : Welcome::kNotNow})) return;
    if (!welcome) return;
    acceptor_.loop_.unwatch(fd_.get());
    acceptor_.owner_.entered(hello_, std::move(fd_));
  }

  Acceptor& acceptor_;
  FileDescriptor fd_;
  const Clock::time_point came_ = Clock::now();
  EventLoop::TimerId timer_ = 0;
  MessageReader reader_;
  bool has_hello_ = false;
  Hello hello_;
  Challenge challenge_;
  Proof proof_;
};

Acceptor::Acceptor(EventLoop& loop, const Credentials& credentials, Shortage& shortage,
                   AcceptorOwner& owner)
    : loop_(loop),
      credentials_(credentials),
      shortage_(shortage),
      owner_(owner),
      most_guests_(most_guests()) {}

Acceptor::~Acceptor() { close(); }

Status Acceptor::listen(Endpoint& where) {
  Result<FileDescriptor> fd = listen_at(where);
  if (!fd.is_ok()) return fd.status();
  doors_.push_back(std::make_unique<Door>(*this, where, std::move(fd).value()));
  return Status::ok();
}

void Acceptor::stop_listening_unless(const std::function<bool(const Endpoint&)>& is_expected) {
  std::erase_if(doors_, [&](const auto& door) { return !is_expected(door->where()); });
}

void Acceptor::start() {
  for (auto& door : doors_) door->open();
}

void Acceptor::close() {
  doors_.clear();
  guests_.clear();
}

void Acceptor::let_in(Door& door) {
  for (;;) {
    if (guests_.size() >= most_guests_ && !make_room()) return door.pause(kPauseInACrowd);
    FileDescriptor fd(accept4(door.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (fd) {
      shortage_.over();
      guests_.push_back(std::make_unique<Guest>(*this, std::move(fd)));
      continue;
    }
    if (errno == EINTR || errno == ECONNABORTED) continue;
    const int error = errno;
    if (!Shortage::is_one(error)) return;
    if (make_room()) continue;
    if (shortage_.felt(error)) {
      PERSEUS_LOG(kWarning,
                  "cannot accept a connection for want of file descriptors or memory; raise the "
                  "limit on open files (ulimit -n)");
    }
    return door.pause(kPauseWithoutDescriptors);
  }
}

bool Acceptor::make_room() {
  if (guests_.empty() || Clock::now() - guests_.front()->came() < kPatienceInACrowd) {
    return false;
  }
  guests_.pop_front();
  return true;
}

void Acceptor::forget(Guest* guest) {
  guests_.remove_if([&](const std::unique_ptr<Guest>& g) { return g.get() == guest; });
}

}  // namespace perseus
