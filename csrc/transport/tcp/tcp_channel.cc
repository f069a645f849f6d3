#include "transport/tcp/tcp_channel.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

namespace perseus {
namespace {

// TCP_RTO_MAX_MS, which older headers lack.
constexpr int kTcpRtoMaxMs = 44;

// Unsent data in the kernel cannot be overtaken, nor taken over by another connection. So only as
// much may wait there as the connection delivers in this time, which is enough that it never runs
// dry.
constexpr std::chrono::milliseconds kUnsentTime{5};
constexpr uint64_t kFirstUnsent = 256 << 10;
constexpr uint64_t kLeastUnsent = 16 << 10;
constexpr uint64_t kMostUnsent = 1 << 20;
constexpr uint64_t kExpressUnsent = 32 << 10;
// How often the connection's rate is measured.
constexpr std::chrono::milliseconds kRateInterval{10};
// After this many, others have a turn.
constexpr int kReadsPerTurn = 16;
constexpr int kWritesPerTurn = 4;

void set_option(int fd, int level, int name, int value) {
  // Errors are ignored: a connection works without any of these options.
  setsockopt(fd, level, name, &value, sizeof value);
}

}  // namespace

TcpChannel::TcpChannel(EventLoop& loop, BufferPool& buffers, ProvenConnection connection,
                       FramePort& port, std::chrono::seconds silence,
                       const WireProtection& protection, bool is_express)
    : loop_(&loop),
      port_(&port),
      buffers_(buffers),
      fd_(std::move(connection.fd)),
      guard_(make_frame_guard(protection, std::move(connection.session))),
      is_express_(is_express),
      unsent_limit_(is_express ? kExpressUnsent : kFirstUnsent),
      stage_(buffers.take(kStageBytes)),
      scratch_(buffers.take(port.max_length())) {
  if (guard_->encrypts()) sealed_ = buffers.take(kBatchBytes + port.max_length());
  set_options(silence);
}

TcpChannel::~TcpChannel() { close(); }

// A rank that is silent is found by the ranks that wait for it. The kernel's time-outs are longer,
// and find a single connection that stands still among others. Retransmissions are frequent enough
// that, after an interruption of the network, the rank is heard before its time is over.
void TcpChannel::set_options(std::chrono::seconds silence) {
  const int seconds = 2 * static_cast<int>(silence.count());
  set_option(fd_.get(), IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(fd_.get(), IPPROTO_TCP, TCP_NOTSENT_LOWAT, static_cast<int>(unsent_limit_));
  // The user time-out covers unacknowledged data, and the keep-alive probes cover silence.
  set_option(fd_.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, seconds * 1000);
  // From Linux 6.15 on. Before that, the next retransmission comes after as long again as the
  // interruption has lasted.
  set_option(fd_.get(), IPPROTO_TCP, kTcpRtoMaxMs, std::clamp(seconds * 1000 / 16, 1000, 120'000));
  set_option(fd_.get(), SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd_.get(), IPPROTO_TCP, TCP_KEEPIDLE, std::clamp(seconds / 3, 1, 32767));
  set_option(fd_.get(), IPPROTO_TCP, TCP_KEEPINTVL, std::clamp(seconds / 3, 1, 32767));
  set_option(fd_.get(), IPPROTO_TCP, TCP_KEEPCNT, 3);
}

void TcpChannel::start() {
  if (!stage_ || !scratch_ || (guard_->encrypts() && !sealed_)) {
    port_->failed(Status::out_of_memory("no memory for a connection's buffers"));
    return;
  }
  watch();
  // What came for this port while the channel had another one.
  if (stage_begin_ != stage_end_) consume_stage();
}

void TcpChannel::close() {
  if (!open_) return;
  open_ = false;
  if (loop_ != nullptr) loop_->unwatch(fd_.get());
  fd_.reset();
}

void TcpChannel::release_transfers() {
  if (direct_ && has_header_) {
    std::memcpy(scratch_.data(), payload_, payload_got_);
    payload_ = scratch_.data();
    direct_ = false;
  }
  size_t bytes = 0;
  for (size_t i = first_; i < count_; ++i) bytes += batch_[i].header.length;
  if (bytes != 0 && !guard_->encrypts()) {
    released_ = buffers_.take(bytes);
    if (!released_) return port_->failed(Status::out_of_memory("no memory for what is unsent"));
  }
  size_t offset = 0;
  for (size_t i = first_; i < count_; ++i) {
    batch_[i].transfer = nullptr;
    batch_[i].data = nullptr;
    const uint32_t length = batch_[i].header.length;
    if (guard_->encrypts() || length == 0) continue;
    std::memcpy(released_.data() + offset, bodies_[i], length);
    bodies_[i] = released_.data() + offset;
    offset += length;
  }
}

bool TcpChannel::part() {
  if (!open_) return false;
  loop_->unwatch(fd_.get());
  loop_ = nullptr;
  return !has_header_ && first_ == count_;
}

void TcpChannel::move_to(EventLoop& loop, FramePort& port) {
  loop_ = &loop;
  port_ = &port;
  hands_over_ = true;
  wants_write_ = false;
  released_ = {};
  // Another world may have larger frames.
  if (scratch_.capacity() < port.max_length()) scratch_ = buffers_.take(port.max_length());
  const size_t sealed = guard_->encrypts() ? kBatchBytes + port.max_length() : 0;
  if (sealed_.capacity() < sealed) sealed_ = buffers_.take(sealed);
}

void TcpChannel::on_ready(uint32_t epoll_events) {
  if ((epoll_events & EPOLLOUT) != 0 || !hands_over_) flush();
  if (!open_ || (epoll_events & ~uint32_t{EPOLLOUT}) == 0) return;
  for (int i = 0; i < kReadsPerTurn; ++i) {
    if (!read_some()) return;
  }
}

void TcpChannel::broken(const char* what, int error) {
  port_->failed(Status::aborted(error == 0 ? std::string(what)
                                           : std::string(what) + ": " + std::strerror(error)));
}

// Sending.

void TcpChannel::kick() {
  if (!wants_write_) flush();
}

// A connection that is slower than the others takes less at a time, so that little waits for it.
void TcpChannel::adjust_unsent_limit() {
  if (is_express_) return;
  const Clock::time_point now = Clock::now();
  if (now < next_adjustment_) return;
  next_adjustment_ = now + kRateInterval;
  tcp_info info{};
  socklen_t size = sizeof info;
  if (getsockopt(fd_.get(), IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return;
  if (size < offsetof(tcp_info, tcpi_delivery_rate) + sizeof info.tcpi_delivery_rate) return;
  // A rate that was measured while there was too little to send does not show what is possible.
  if (info.tcpi_delivery_rate == 0 || info.tcpi_delivery_rate_app_limited != 0) return;
  const uint64_t fitting = std::clamp<uint64_t>(
      info.tcpi_delivery_rate * kUnsentTime.count() / 1000, kLeastUnsent, kMostUnsent);
  // Rates vary, and small changes are not worth a system call.
  if (fitting < unsent_limit_ * 3 / 4 || fitting > unsent_limit_ * 3 / 2) {
    unsent_limit_ = fitting / 64 * 64;
    set_option(fd_.get(), IPPROTO_TCP, TCP_NOTSENT_LOWAT, static_cast<int>(unsent_limit_));
  }
}

void TcpChannel::flush() {
  for (int writes = 0; open_ && refill(); ++writes) {
    if (writes == kWritesPerTurn) return want_write(true);
    if (!write_batch()) return;
  }
  want_write(false);
}

bool TcpChannel::refill() {
  if (first_ != count_) return true;
  first_ = count_ = 0;
  adjust_unsent_limit();
  const uint64_t room = std::min(port_->max_length(), unsent_limit_);
  uint64_t bytes = 0;
  while (count_ < kMaxBatch && bytes < kBatchBytes && port_->next(batch_[count_], room)) {
    if (!seal(bytes)) return false;
    bytes += batch_[count_].header.length;
    ++count_;
  }
  return count_ != 0;
}

bool TcpChannel::seal(size_t offset) {
  const Frame& frame = batch_[count_];
  std::byte* sealed = guard_->encrypts() ? sealed_.data() + offset : nullptr;
  if (!guard_->seal(frame, sealed, tags_[count_])) {
    port_->failed(Status::out_of_memory("OpenSSL has no memory for a connection's cipher"));
    return false;
  }
  bodies_[count_] = sealed != nullptr ? sealed : frame.data;
  return true;
}

size_t TcpChannel::bytes_on_wire(const Frame& frame) const {
  return sizeof(FrameHeader) + frame.header.length + guard_->tag_bytes(frame.header);
}

bool TcpChannel::write_batch() {
  std::array<iovec, 3 * kMaxBatch> pieces;
  size_t piece_count = 0;
  size_t skip = written_;
  const auto add = [&](const void* data, size_t size) {
    const size_t skipped = std::min(skip, size);
    skip -= skipped;
    if (size == skipped) return;
    pieces[piece_count++] = {static_cast<char*>(const_cast<void*>(data)) + skipped, size - skipped};
  };
  for (size_t i = first_; i < count_; ++i) {
    add(&batch_[i].header, sizeof(FrameHeader));
    add(bodies_[i], batch_[i].header.length);
    add(tags_[i].data(), guard_->tag_bytes(batch_[i].header));
  }
  msghdr message{};
  message.msg_iov = pieces.data();
  message.msg_iovlen = piece_count;
  const ssize_t n = sendmsg(fd_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (n >= 0) {
    retire_sent(static_cast<size_t>(n));
    return open_;
  }
  if (errno == EINTR) return true;
  if (errno == EAGAIN || errno == EWOULDBLOCK) {
    want_write(true);
  } else if (errno == EPIPE || errno == ECONNRESET) {
    // Data that the peer sent before it closed, perhaps its goodbye, may still be unread. So let
    // the reading side find the end.
    while (open_ && read_some()) {
    }
    if (open_) broken("the connection was closed", 0);
  } else {
    broken("sending failed", errno);
  }
  return false;
}

void TcpChannel::retire_sent(size_t bytes) {
  written_ += bytes;
  while (open_ && first_ != count_) {
    const Frame& frame = batch_[first_];
    const size_t whole = bytes_on_wire(frame);
    if (written_ < whole) return;
    written_ -= whole;
    ++first_;
    port_->sent(frame);
  }
}

void TcpChannel::want_write(bool want) {
  if (want == wants_write_ || !open_) return;
  wants_write_ = want;
  watch();
}

void TcpChannel::watch() {
  const uint32_t events =
      (hands_over_ ? uint32_t{EPOLLIN} : 0) | (wants_write_ ? uint32_t{EPOLLOUT} : 0);
  if (events == 0) return loop_->unwatch(fd_.get());
  loop_->watch(fd_.get(), events, this);
}

// Receiving.

std::string TcpChannel::route() const {
  Endpoint ours, theirs;
  ours.length = theirs.length = sizeof ours.address;
  auto* const our_place = reinterpret_cast<sockaddr*>(&ours.address);
  auto* const their_place = reinterpret_cast<sockaddr*>(&theirs.address);
  if (getsockname(fd_.get(), our_place, &ours.length) != 0 ||
      getpeername(fd_.get(), their_place, &theirs.length) != 0) {
    return "";
  }
  if (ours.family() == AF_UNIX) return "";  // in tests
  return "from " + theirs.to_string() + " to " + ours.to_string();
}

bool TcpChannel::read_some() {
  if (!hands_over_) return false;
  // The rest of a payload goes to its target, and what follows goes into the stage. Until the
  // payload is complete, the stage is empty.
  const size_t missing = has_header_ ? header_.length - payload_got_ : 0;
  if (missing == 0 && stage_begin_ != 0) {
    std::memmove(stage_.data(), stage_.data() + stage_begin_, stage_end_ - stage_begin_);
    stage_end_ -= stage_begin_;
    stage_begin_ = 0;
  }
  const size_t room = kStageBytes - stage_end_;
  iovec pieces[2] = {{has_header_ ? payload_ + payload_got_ : nullptr, missing},
                     {stage_.data() + stage_end_, room}};
  msghdr message{};
  message.msg_iov = missing == 0 ? pieces + 1 : pieces;
  message.msg_iovlen = missing == 0 ? 1 : 2;
  const ssize_t n = recvmsg(fd_.get(), &message, MSG_DONTWAIT);
  if (n == 0) {
    broken("it closed the connection without a goodbye", 0);
    return false;
  }
  if (n < 0) {
    if (errno == EINTR) return true;
    if (errno != EAGAIN && errno != EWOULDBLOCK) broken("the connection broke", errno);
    return false;
  }
  const size_t got = static_cast<size_t>(n);
  received_ += got;
  const size_t into_payload = std::min(got, missing);
  payload_got_ += into_payload;
  stage_end_ += got - into_payload;
  if (!consume_stage()) return false;
  // A short read has emptied the socket, so another read would only return EAGAIN.
  return got == missing + room;
}

bool TcpChannel::consume_stage() {
  for (;;) {
    if (has_header_) {
      if (payload_got_ < header_.length) return true;
      if (stage_end_ - stage_begin_ < guard_->tag_bytes(header_)) return true;
      if (!finish_payload()) return false;
      continue;
    }
    if (stage_end_ - stage_begin_ < sizeof(FrameHeader)) return true;
    std::memcpy(&header_, stage_.data() + stage_begin_, sizeof header_);
    stage_begin_ += sizeof header_;
    if (!begin_payload()) return false;
  }
}

bool TcpChannel::begin_payload() {
  std::byte* staged = stage_.data() + stage_begin_;
  const size_t available = stage_end_ - stage_begin_;
  payload_ = port_->target(header_);
  direct_ = payload_ != nullptr;
  if (!direct_) {
    const bool aligned = reinterpret_cast<uintptr_t>(staged) % alignof(uint64_t) == 0;
    // The port rejects a malformed header without looking at the bytes.
    if (header_.length > port_->max_length()) return hand_over(staged);
    if (available >= header_.length + guard_->tag_bytes(header_) && aligned) {
      stage_begin_ += header_.length;
      return take_tag(staged) && hand_over(staged);
    }
    payload_ = scratch_.data();
  }
  payload_got_ = std::min<size_t>(available, header_.length);
  std::memcpy(payload_, staged, payload_got_);
  stage_begin_ += payload_got_;
  has_header_ = true;
  if (stage_begin_ == stage_end_) stage_begin_ = stage_end_ = 0;
  return true;
}

bool TcpChannel::finish_payload() {
  has_header_ = false;
  if (!take_tag(payload_)) return false;
  return direct_ ? port_->landed(header_) : hand_over(payload_);
}

bool TcpChannel::hand_over(std::byte* payload) {
  if (port_->arrived(header_, payload, {})) return true;
  hands_over_ = false;
  if (open_) watch();
  return false;
}

bool TcpChannel::take_tag(std::byte* payload) {
  const size_t size = guard_->tag_bytes(header_);
  const std::string_view tag = bytes_of(stage_.data() + stage_begin_, size);
  stage_begin_ += size;
  if (guard_->open(header_, payload, tag)) return true;
  port_->disturbed(
      "what arrived is not what it sent: something between the hosts has changed it, "
      "added to it or left some of it out");
  return false;
}

}  // namespace perseus
