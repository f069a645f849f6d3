#include "bootstrap/rendezvous_connection.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <new>
#include <utility>

#include "base/hmac.h"
#include "base/secret.h"
#include "bootstrap/rendezvous_protocol.h"

namespace perseus::rendezvous {
namespace {

// A client that does not prove within this time that it knows the secret is dropped.
constexpr std::chrono::seconds kAuthenticationTime{5};

}  // namespace

Connection::Connection(const Server& server, ConnectionOwner& owner, Socket socket)
    : server_(server),
      owner_(owner),
      socket_(std::move(socket)),
      where_(socket_.peer_name()),
      challenge_(random_bytes(kChallengeBytes)) {}

Connection::~Connection() {
  server_.loop.cancel_timer(deadline_);
  server_.loop.unwatch(socket_.fd());
}

void Connection::begin() {
  server_.loop.watch(socket_.fd(), EPOLLIN, this);
  deadline_ =
      server_.loop.call_at(Clock::now() + kAuthenticationTime, [this] { owner_.drop(*this); });
  send(std::string(kMagic) + challenge_);
}

void Connection::on_ready(uint32_t events) {
  bool ended = true;
  try {
    if (events & EPOLLOUT) flush();
    ended = (events & ~EPOLLOUT) != 0 && (state_ == State::kRefused || !read_available());
  } catch (const std::bad_alloc&) {
    owner_.warn("there is no memory for the connection from " + where_);
  }
  const bool refused_and_told = state_ == State::kRefused && outgoing_.empty();
  if (ended || refused_and_told) owner_.drop(*this);
}

bool Connection::read_available() {
  char bytes[16384];
  while (true) {
    const ssize_t count = recv(socket_.fd(), bytes, sizeof(bytes), 0);
    if (count == 0) return false;
    if (count < 0) return errno == EAGAIN || errno == EINTR;
    incoming_.append(bytes, count);
    if (is_replaced_ || !take_frames()) return false;
    if (state_ == State::kRefused) return true;  // it is not heard any more
  }
}

bool Connection::take_frames() {
  while (incoming_.size() >= 4 && state_ != State::kRefused) {
    uint32_t bytes = 0;
    for (int i = 3; i >= 0; --i) bytes = bytes << 8 | static_cast<unsigned char>(incoming_[i]);
    const size_t most =
        is_member() ? max_contribution_frame_bytes() : max_hello_bytes(server_.worlds.size());
    if (bytes > most) {
      if (is_member()) disturbed();
      return false;
    }
    if (incoming_.size() - 4 < bytes) return true;
    const std::string payload = incoming_.substr(4, bytes);
    incoming_.erase(0, 4 + size_t{bytes});
    if (!(is_member() ? on_contribution(payload) : on_hello(payload))) return false;
  }
  return true;
}

bool Connection::on_hello(const std::string& payload) {
  Hello hello;
  if (payload.size() < kMacBytes) return false;
  const std::string body = payload.substr(0, payload.size() - kMacBytes);
  if (!decode(body, hello)) return false;
  session_.emplace(make_session(server_.secret, challenge_, payload, Role::kAcceptor));
  if (!equal_in_constant_time(payload.substr(body.size()),
                              client_mac(server_.secret, challenge_, body))) {
    owner_.warn("a client at " + where_ + " does not know the job's secret");
    // The client cannot tell that this is true, as it has another secret. It is told all the same,
    // and can say so.
    refuse(Status::invalid_argument("the secret is not this job's"));
    return true;
  }
  if (const std::string here = socket_.local_name(); hello.called != here) {
    refuse(Status::unreachable("this rank called " + hello.called + ", but came to " + here +
                               ": a program in between passes on what it is sent. The ranks must "
                               "call the host itself; PERSEUS_MASTER_ADDR may name it"));
    return true;
  }
  const Status admitted = server_.worlds.join(hello, this, world_);
  if (!admitted.is_ok()) {
    refuse(admitted);
    return true;
  }
  state_ = State::kMember;
  rank_ = hello.rank;
  server_.loop.cancel_timer(deadline_);
  owner_.promote(*this);
  tell(encode_welcome());
  return true;
}

bool Connection::on_contribution(std::string payload) {
  Contribution contribution;
  if (!open_frame(payload, session_->incoming)) {
    disturbed();
    return false;
  }
  if (!decode(payload, contribution)) return false;
  server_.worlds.contribute(world_, rank_, std::move(contribution));
  return true;
}

// The loop will report the end, and then it is dropped.
void Connection::replaced() {
  is_replaced_ = true;
  shutdown(socket_.fd(), SHUT_RDWR);
}

void Connection::disturbed() {
  owner_.warn("something between rank " + std::to_string(rank_) + " at " + where_ +
              " and here has changed what it sent");
  how_it_left_ = "did not send what arrived at the rendezvous: something in between has changed it";
  tell(encode_error(Answer::kFailed,
                    Status::aborted("rank " + std::to_string(rank_) + " " + how_it_left_)));
}

void Connection::refuse(const Status& why) {
  state_ = State::kRefused;
  tell(encode_error(Answer::kRefused, why));
}

void Connection::tell(const std::string& payload) { send(frame(payload, session_->outgoing)); }

void Connection::send(std::string bytes) {
  outgoing_.push_back(std::move(bytes));
  flush();
}

void Connection::flush() {
  while (!outgoing_.empty()) {
    const std::string& front = outgoing_.front();
    const ssize_t sent =
        ::send(socket_.fd(), front.data() + sent_, front.size() - sent_, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && errno == EAGAIN) {
      server_.loop.watch(socket_.fd(), awaited() | EPOLLOUT, this);
      return;
    }
    if (sent >= 0) sent_ += sent;
    if (sent < 0 || sent_ == front.size()) {
      outgoing_.pop_front();
      sent_ = 0;
    }
  }
  server_.loop.watch(socket_.fd(), awaited(), this);
}

uint32_t Connection::awaited() const { return state_ == State::kRefused ? 0U : uint32_t{EPOLLIN}; }

}  // namespace perseus::rendezvous
