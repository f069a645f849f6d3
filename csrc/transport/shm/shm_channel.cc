#include "transport/shm/shm_channel.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

namespace perseus {
namespace {

// Ring 0 flows from the initiator to the acceptor, ring 1 back.
constexpr size_t kControlBytes = 4096;
constexpr size_t kMemoryBytes = kControlBytes + 2 * kRingBytes;
static_assert(2 * sizeof(RingControl) <= kControlBytes);

constexpr int kFramesPerTurn = 16;

// The memory cannot be made smaller by the other side under our feet.
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

constexpr int kMaxDescriptors = 2;
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

ShmChannel::ShmChannel(EventLoop& loop, FileDescriptor socket, FramePort& port, bool is_initiator)
    : loop_(loop), port_(port), is_initiator_(is_initiator), socket_(std::move(socket)) {}

ShmChannel::~ShmChannel() {
  close();
  if (memory_ != nullptr) munmap(memory_, kMemoryBytes);
}

void ShmChannel::start() {
  loop_.watch(socket_.get(), EPOLLIN, this);
  if (!is_initiator_) return;
  if (Status status = offer_memory(); !status.is_ok()) port_.failed(status);
}

void ShmChannel::close() {
  if (state_ == State::kOpen) loop_.remove_poller(this);
  if (state_ != State::kClosed) loop_.unwatch(socket_.get());
  state_ = State::kClosed;
  socket_.reset();
  peer_doorbell_.reset();
}

Status ShmChannel::offer_memory() {
  const FileDescriptor memory(memfd_create("perseus", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory) return errno_status("memfd_create failed");
  if (ftruncate(memory.get(), kMemoryBytes) != 0 || fcntl(memory.get(), F_ADD_SEALS, kSeals) != 0 ||
      !map(memory.get())) {
    return errno_status("shared memory cannot be had");
  }
  const int fds[] = {memory.get(), loop_.doorbell_fd()};
  if (!send_descriptors(socket_.get(), fds, 2)) return errno_status("sending shared memory failed");
  return Status::ok();
}

bool ShmChannel::map(int memory) {
  void* address = mmap(nullptr, kMemoryBytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
  if (address == MAP_FAILED) return false;
  memory_ = static_cast<std::byte*>(address);
  auto* controls = reinterpret_cast<RingControl*>(memory_);
  std::byte* data = memory_ + kControlBytes;
  const int out = is_initiator_ ? 0 : 1;
  out_.attach(&controls[out], data + out * kRingBytes);
  in_.attach(&controls[1 - out], data + (1 - out) * kRingBytes);
  return true;
}

void ShmChannel::receive_descriptors() {
  char byte = 0;
  iovec piece{&byte, 1};
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
  if (count != (is_initiator_ ? 1 : 2)) {
    port_.failed(Status::aborted("it closed the connection before sharing memory"));
    return;
  }
  peer_doorbell_ = std::move(received[count - 1]);
  if (!is_initiator_) {
    struct stat about{};
    const int memory = received[0].get();
    if (fstat(memory, &about) != 0 || about.st_size != static_cast<off_t>(kMemoryBytes) ||
        (fcntl(memory, F_GET_SEALS) & F_SEAL_SHRINK) == 0 || !map(memory)) {
      port_.failed(Status::aborted("the shared memory it offers cannot be mapped"));
      return;
    }
    const int doorbell = loop_.doorbell_fd();
    if (!send_descriptors(socket_.get(), &doorbell, 1)) {
      port_.failed(errno_status("sending a doorbell failed"));
      return;
    }
  }
  state_ = State::kOpen;
  loop_.add_poller(this);
  fill();
}

void ShmChannel::on_ready(uint32_t) {
  if (state_ == State::kOpening) {
    receive_descriptors();
    return;
  }
  // Nothing is sent here once open, so this is the end. What the peer left in the ring still
  // counts.
  while (state_ == State::kOpen && drain(kFramesPerTurn)) {
  }
  if (state_ == State::kOpen) port_.failed(Status::aborted("its process has ended"));
}

void ShmChannel::ring_peer() {
  const uint64_t one = 1;
  // Fails only if the peer's bell is ringing already, or the peer is gone.
  [[maybe_unused]] ssize_t n = write(peer_doorbell_.get(), &one, sizeof one);
}

bool ShmChannel::poll() {
  bool moved = drain(kFramesPerTurn);
  if ((blocked_ || has_more_) && state_ == State::kOpen) moved |= fill();
  return moved;
}

bool ShmChannel::drain(int most) {
  FrameHeader header;
  const std::byte* bytes = nullptr;
  int frames = 0;
  for (; frames < most && state_ == State::kOpen; ++frames) {
    const RingConsumer::Outcome outcome = in_.front(header, bytes);
    if (outcome == RingConsumer::Outcome::kEmpty) break;
    if (outcome == RingConsumer::Outcome::kDamaged) {
      port_.failed(Status::internal("the shared memory is damaged"));
      return true;
    }
    if (!port_.arrived(header, bytes)) return true;
    if (in_.pop()) ring_peer();
  }
  return frames != 0;
}

bool ShmChannel::fill() {
  bool moved = false;
  Frame frame;
  // A peer that empties the ring as fast as it fills must not keep us here: something more urgent
  // may be on its way to the queue.
  has_more_ = true;
  for (int frames = 0; frames < kFramesPerTurn && state_ == State::kOpen; ++frames) {
    std::byte* place = out_.reserve();
    blocked_ = place == nullptr;
    has_more_ = !blocked_ && port_.next(frame, std::min(port_.max_length(), kMaxRingFrame));
    if (!has_more_) break;
    if (out_.commit(place, frame)) ring_peer();
    port_.sent(frame);
    moved = true;
  }
  return moved;
}

bool ShmChannel::prepare_to_sleep() {
  if (state_ != State::kOpen) return true;
  if (has_more_ || in_.wait_for_frame()) return false;
  return !blocked_ || !out_.wait_for_room();
}

void ShmChannel::awake() {
  if (state_ == State::kOpen) in_.awake();
}

}  // namespace perseus
