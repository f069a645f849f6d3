#include "transport/shm/shm_channel.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

namespace perseus {
namespace {

// Ring 0 flows from the initiator to the acceptor, ring 1 back.
constexpr size_t kMemoryBytes = 2 * sizeof(RingMemory);

constexpr int kFramesPerTurn = 16;

// A shorter payload is cheaper to copy into the ring than to look up elsewhere.
constexpr uint32_t kOutboxPayload = 8 << 10;

// A message while the channel opens: a byte with the number of descriptors that come along and, if
// there are none, the reason.
constexpr int kMaxDescriptors = 3;
constexpr size_t kMostBytes = 256;
union DescriptorSpace {
  cmsghdr align;
  char bytes[CMSG_SPACE(kMaxDescriptors * sizeof(int))];
};

bool send_descriptors(int socket, const int* fds, size_t count) {
  char byte = static_cast<char>(count);
  iovec piece{&byte, 1};
  DescriptorSpace space{};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = space.bytes;
  message.msg_controllen = CMSG_SPACE(count * sizeof(int));
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(count * sizeof(int));
  std::memcpy(CMSG_DATA(header), fds, count * sizeof(int));
  return sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) == 1;
}

Status errno_status(const char* what) {
  return Status::aborted(std::string(what) + ": " + std::strerror(errno));
}

}  // namespace

ShmChannel::ShmChannel(EventLoop& loop, Outbox& outbox, FileDescriptor socket, FramePort& port,
                       bool is_initiator)
    : loop_(&loop),
      outbox_(outbox),
      port_(&port),
      is_initiator_(is_initiator),
      socket_(std::move(socket)) {}

ShmChannel::~ShmChannel() {
  close();
  if (has_outbox_) outbox_.close_for_peer();
}

void ShmChannel::start() {
  loop_->watch(socket_.get(), EPOLLIN, this);
  if (state_ == State::kOpen) return loop_->add_poller(this);
  if (!is_initiator_) return;
  if (Status status = offer_memory(); !status.is_ok()) fail_and_tell_peer(status);
}

// Tells the peer why, since it would otherwise take this rank for dead.
void ShmChannel::fail_and_tell_peer(const Status& why) {
  const std::string text = '\0' + why.message();
  [[maybe_unused]] const ssize_t sent = send(
      socket_.get(), text.data(), std::min(text.size(), kMostBytes), MSG_NOSIGNAL | MSG_DONTWAIT);
  port_->failed(why);
}

void ShmChannel::close() {
  if (state_ == State::kOpen && loop_ != nullptr) loop_->remove_poller(this);
  if (state_ != State::kClosed && loop_ != nullptr) loop_->unwatch(socket_.get());
  state_ = State::kClosed;
  socket_.reset();
  peer_doorbell_.reset();
}

// The frames in the rings and the outbox are whole, so it is never in the middle of one.
bool ShmChannel::part() {
  if (state_ != State::kOpen) return false;
  loop_->remove_poller(this);
  loop_->unwatch(socket_.get());
  loop_ = nullptr;
  return true;
}

void ShmChannel::move_to(EventLoop& loop, FramePort& port) {
  loop_ = &loop;
  port_ = &port;
  hands_over_ = true;
  blocked_ = has_more_ = false;
}

Status ShmChannel::open_outbox() {
  PERSEUS_RETURN_IF_ERROR(outbox_.open_for_peer());
  has_outbox_ = true;
  return Status::ok();
}

Status ShmChannel::offer_memory() {
  PERSEUS_RETURN_IF_ERROR(open_outbox());
  Result<SharedMemory> memory = SharedMemory::create(kMemoryBytes);
  if (!memory.is_ok()) return memory.status();
  memory_ = std::move(memory).value();
  attach_rings();
  const int fds[] = {outbox_.fd(), loop_->doorbell_fd(), memory_.fd()};
  if (!send_descriptors(socket_.get(), fds, 3)) return errno_status("sending shared memory failed");
  return Status::ok();
}

Status ShmChannel::accept_memory(FileDescriptor rings) {
  PERSEUS_RETURN_IF_ERROR(open_outbox());
  Result<SharedMemory> memory = SharedMemory::map(std::move(rings), kMemoryBytes);
  if (!memory.is_ok()) return memory.status();
  memory_ = std::move(memory).value();
  attach_rings();
  const int fds[] = {outbox_.fd(), loop_->doorbell_fd()};
  if (!send_descriptors(socket_.get(), fds, 2)) return errno_status("sending shared memory failed");
  return Status::ok();
}

void ShmChannel::attach_rings() {
  auto* rings = reinterpret_cast<RingMemory*>(memory_.data());
  const int out = is_initiator_ ? 0 : 1;
  out_.attach(rings[out]);
  in_.attach(rings[1 - out]);
}

void ShmChannel::receive_descriptors() {
  char bytes[kMostBytes] = {};
  iovec piece{bytes, sizeof bytes};
  DescriptorSpace space{};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = space.bytes;
  message.msg_controllen = sizeof space.bytes;
  const ssize_t n = recvmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  FileDescriptor received[kMaxDescriptors];
  int count = 0;
  const cmsghdr* header = n > 0 ? CMSG_FIRSTHDR(&message) : nullptr;
  if (header != nullptr && header->cmsg_type == SCM_RIGHTS) {
    int fds[kMaxDescriptors];
    count = static_cast<int>((header->cmsg_len - CMSG_LEN(0)) / sizeof(int));
    std::memcpy(fds, CMSG_DATA(header), count * sizeof(int));
    for (int i = 0; i < count; ++i) received[i] = FileDescriptor(fds[i]);
  }
  if (n > 0 && (message.msg_flags & MSG_CTRUNC) != 0) {
    fail_and_tell_peer(Status::out_of_memory(
        "no file descriptors left to receive shared memory; raise the limit on open files "
        "(ulimit -n)"));
    return;
  }
  if (count != (is_initiator_ ? 2 : 3)) {
    const std::string reason(bytes + 1, n > 1 ? n - 1 : 0);
    port_->failed(Status::aborted(reason.empty() ? "it closed the connection before sharing memory"
                                                 : "it could not share memory: " + reason));
    return;
  }
  Status status = peer_outbox_.map(std::move(received[0]));
  peer_doorbell_ = std::move(received[1]);
  if (status.is_ok() && !is_initiator_) status = accept_memory(std::move(received[2]));
  if (!status.is_ok()) {
    fail_and_tell_peer(status);
    return;
  }
  state_ = State::kOpen;
  loop_->add_poller(this);
  fill();
}

void ShmChannel::on_ready(uint32_t) {
  if (state_ == State::kOpening) {
    receive_descriptors();
    return;
  }
  // Nothing is sent over the socket once the channel is open, so this is its end. Frames that the
  // peer left in the ring still count.
  while (state_ == State::kOpen && drain(kFramesPerTurn)) {
  }
  if (state_ == State::kOpen) port_->failed(Status::aborted("its process has ended"));
}

void ShmChannel::ring_peer() {
  const uint64_t one = 1;
  // Fails only if the doorbell is ringing already or the peer is gone.
  [[maybe_unused]] ssize_t n = write(peer_doorbell_.get(), &one, sizeof one);
}

bool ShmChannel::poll() {
  bool moved = drain(kFramesPerTurn);
  if ((blocked_ || has_more_) && state_ == State::kOpen) moved |= fill();
  return moved;
}

bool ShmChannel::drain(int most) {
  FrameHeader header;
  uint32_t where = kInline;
  const std::byte* bytes = nullptr;
  int frames = 0;
  for (; frames < most && state_ == State::kOpen && hands_over_; ++frames) {
    const RingConsumer::Outcome outcome = in_.front(header, where, bytes);
    if (outcome == RingConsumer::Outcome::kEmpty) break;
    if (where != kInline) bytes = peer_outbox_.payload(where, header.length);
    if (outcome == RingConsumer::Outcome::kDamaged || bytes == nullptr) {
      port_->failed(Status::internal("the shared memory is damaged"));
      return true;
    }
    Lease lease = where == kInline ? Lease() : peer_outbox_.lease(where);
    hands_over_ = port_->arrived(header, bytes, std::move(lease));
    if (state_ != State::kOpen) return true;
    if (in_.pop()) ring_peer();
  }
  return frames != 0;
}

bool ShmChannel::fill() {
  bool moved = false;
  Frame frame;
  // Bounded, since a peer that empties the ring as fast as it fills must not keep the loop here:
  // something more urgent may come.
  has_more_ = true;
  for (int frames = 0; frames < kFramesPerTurn && state_ == State::kOpen; ++frames) {
    blocked_ = !out_.has_room();
    has_more_ = !blocked_ && port_->next(frame, std::min(port_->max_length(), kMaxRingFrame));
    if (!has_more_) break;
    const uint32_t where = frame.header.length < kOutboxPayload ? kInline : outbox_.put(frame);
    if (out_.commit(frame, where)) ring_peer();
    port_->sent(frame);
    moved = true;
  }
  return moved;
}

bool ShmChannel::prepare_to_sleep() {
  if (state_ != State::kOpen) return true;
  if (has_more_ || (hands_over_ && in_.wait_for_frame())) return false;
  return !blocked_ || !out_.wait_for_room();
}

void ShmChannel::awake() {
  if (state_ == State::kOpen) in_.awake();
}

}  // namespace perseus
