#include "transport/dialer.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/caller_pool.h"
#include "base/free_port.h"
#include "bootstrap/local_sockets.h"

namespace perseus {
namespace {

// How long to wait for a connection, if packets to the address are dropped silently.
constexpr auto kConnectTimeout = std::chrono::seconds(3);
// How long to wait for an answer, if another program listens there and stays silent. A rank may be
// slow to answer, since its machine may have other work or be suspended for a while.
constexpr auto kAnswerTimeout = std::chrono::seconds(10);
constexpr auto kPause = std::chrono::milliseconds(50);
// All ranks listened before they gave their addresses, so a rank that refuses this often has shut
// down.
constexpr int kMaxRefusedRounds = 5;
// A flooded rank closes connections at random (base/caller_pool.h), so the next may succeed.
constexpr int kMaxClosedRounds = 100;

}  // namespace

Dialer::Dialer(EventLoop& loop, const Credentials& credentials, ResourceExhaustion& exhaustion,
               std::vector<Endpoint> endpoints, std::vector<Endpoint> sources, const Hello& hello,
               Clock::time_point deadline, Done done)
    : loop_(loop),
      credentials_(credentials),
      exhaustion_(exhaustion),
      endpoints_(std::move(endpoints)),
      sources_(std::move(sources)),
      hello_(hello),
      deadline_(deadline),
      done_(std::move(done)) {
  hello_.job = credentials.job;
  hello_.from = credentials.rank;
}

Dialer::~Dialer() { close_connection(); }

void Dialer::start() { try_endpoint(); }

void Dialer::close_connection() {
  loop_.cancel_timer(timer_);
  if (fd_) loop_.unwatch(fd_.get());
  fd_.reset();
  step_ = Step::kIdle;
}

void Dialer::finish(Result<ProvenConnection> result) {
  close_connection();
  Done done = std::move(done_);
  done(std::move(result));
}

void Dialer::try_endpoint() {
  const Clock::time_point now = Clock::now();
  if (now >= deadline_) {
    finish(Status::unreachable("no connection within the time given (PERSEUS_START_TIMEOUT): " +
                               errors_));
    return;
  }
  const Endpoint& to = endpoints_[current_];
  fd_ = FileDescriptor(socket(to.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd_) {
    const int error = errno;
    if (is_exhaustion(error)) exhaustion_.failed(error);
    next_endpoint(std::strerror(error), Failure::kOther);
    return;
  }
  if (!sources_.empty() && sources_[current_].length != 0) {
    const Endpoint& from = sources_[current_];
    if (const int error = bind_to(fd_.get(), from.get(), from.length); error != 0) {
      next_endpoint("binding to " + from.to_string() + ": " + std::strerror(error),
                    Failure::kOther);
      return;
    }
  }
  if (const int error = connect_to(fd_.get(), to.get(), to.length);
      error != 0 && error != EINPROGRESS) {
    next_endpoint(std::strerror(error), failure_of(error));
    return;
  }
  step_ = Step::kConnecting;
  loop_.watch(fd_.get(), EPOLLOUT, this);
  set_step_deadline(now + kConnectTimeout);
}

void Dialer::set_step_deadline(Clock::time_point end) {
  loop_.cancel_timer(timer_);
  timer_ = loop_.call_at(std::min(end, deadline_),
                         [this] { next_endpoint("no answer", Failure::kOther); });
}

void Dialer::connected() {
  int error = 0;
  socklen_t length = sizeof error;
  getsockopt(fd_.get(), SOL_SOCKET, SO_ERROR, &error, &length);
  if (error != 0) {
    next_endpoint(std::strerror(error), failure_of(error));
    return;
  }
  if (endpoints_[current_].family() != AF_UNIX) {
    const int on = 1;
    setsockopt(fd_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  } else if (const LocalPeer holder = peer_of(fd_.get()); holder.is_anothers()) {
    next_endpoint("the name is held by " + holder.to_string(), Failure::kOther);
    return;
  }
  reader_ = MessageReader();
  step_ = Step::kAwaitingGreeting;
  set_step_deadline(Clock::now() + kAnswerTimeout);
  loop_.watch(fd_.get(), EPOLLIN, this);
}

void Dialer::on_ready(uint32_t) {
  if (step_ == Step::kConnecting) {
    connected();
    return;
  }
  const auto outcome = step_ == Step::kAwaitingGreeting ? reader_.read(fd_.get(), greeting_)
                                                        : reader_.read(fd_.get(), welcome_);
  if (outcome == MessageReader::Outcome::kPartial) return;
  if (outcome == MessageReader::Outcome::kClosed) {
    next_endpoint(
        "closed during the handshake: it belongs to another job or rank, or has another "
        "secret, or many strangers call it",
        Failure::kClosed);
  } else if (step_ == Step::kAwaitingGreeting) {
    introduce();
  } else {
    welcomed();
  }
}

void Dialer::introduce() {
  if (greeting_.magic != Greeting::kMagic) {
    next_endpoint("another service answers there", Failure::kOther);
    return;
  }
  hello_.nonce = random_nonce();
  hello_.called = digest_of(endpoints_[current_]);
  introduction_ = {hello_, prove(credentials_.secret, greeting_, hello_)};
  if (!send_message(fd_.get(), introduction_)) {
    next_endpoint("closed during the handshake", Failure::kClosed);
    return;
  }
  step_ = Step::kAwaitingWelcome;
  // The peer adopts the connection after the confirmation only, so another one may be made instead.
  set_step_deadline(Clock::now() + kAnswerTimeout);
}

void Dialer::welcomed() {
  Session session = make_session(credentials_.secret, greeting_, introduction_, Role::kInitiator);
  if (!session.incoming.is_next(view(welcome_.tag), {bytes_of(welcome_.verdict)})) {
    next_endpoint("it does not know the job's secret", Failure::kOther);
    return;
  }
  if (welcome_.verdict == Welcome::kNotCalledHere) {
    next_endpoint("a program there passes on to the rank what it is sent", Failure::kOther);
    return;
  }
  if (welcome_.verdict != Welcome::kWelcome) {
    finish(Status::aborted("it has given up its link to this rank"));
    return;
  }
  if (!send_message(fd_.get(), Confirmation{session.outgoing.next({})})) {
    next_endpoint("closed during the handshake", Failure::kClosed);
    return;
  }
  loop_.unwatch(fd_.get());
  exhaustion_.succeeded();
  finish(ProvenConnection{std::exchange(fd_, FileDescriptor()), std::move(session)});
}

Dialer::Failure Dialer::failure_of(int error) {
  if (error == ECONNREFUSED) return Failure::kRefused;
  return error == ECONNRESET ? Failure::kClosed : Failure::kOther;
}

void Dialer::next_endpoint(const std::string& why, Failure failure) {
  if (current_ == 0) errors_.clear();
  errors_ += (errors_.empty() ? "" : "; ") + endpoints_[current_].to_string() + ": " + why;
  all_answered_ = all_answered_ && failure != Failure::kOther;
  any_closed_ = any_closed_ || failure == Failure::kClosed;
  close_connection();
  if (++current_ < endpoints_.size()) {
    try_endpoint();
    return;
  }
  if (all_answered_) {
    const bool last =
        any_closed_ ? ++closed_rounds_ == kMaxClosedRounds : ++refused_rounds_ == kMaxRefusedRounds;
    if (last) {
      finish(Status::unreachable(errors_ + "; it has shut down or died"));
      return;
    }
  }
  current_ = 0;
  all_answered_ = true;
  any_closed_ = false;
  timer_ = loop_.call_at(Clock::now() + kPause, [this] { try_endpoint(); });
}

}  // namespace perseus
