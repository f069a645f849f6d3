#include "transport/mpi/mpi_fabric.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <thread>
#include <utility>

#include "base/settings.h"
#include "mpi/mpi_tags.h"
#include "observe/log.h"
#include "transport/mpi/mpi_channel.h"

namespace perseus {
namespace {

// How many frames to one peer MPI may have under way: enough to keep it busy, few enough that an
// urgent message can overtake.
constexpr size_t kWindow = 4;
constexpr int kArrivalsPerTurn = 16;
constexpr std::chrono::milliseconds kPollTime{2};
constexpr std::chrono::milliseconds kPollInterval{1};
// How long the destructor waits for messages under way, including goodbyes.
constexpr std::chrono::seconds kLastWait{1};

// A frame's place in its memory: the payload is aligned as buffers are, and follows the header.
constexpr size_t kPayloadOffset = 64;
constexpr size_t kHeaderOffset = kPayloadOffset - sizeof(FrameHeader);

}  // namespace

MpiFabric::MpiFabric(EventLoop& loop, const MpiBootstrap& bootstrap, uint64_t max_payload)
    : loop_(loop),
      mpi_(*bootstrap.process().mpi),
      comm_(bootstrap.process().comm),
      tag_(mpi_data_tag(bootstrap.generation())),
      max_payload_(max_payload),
      launched_(bootstrap.launched()),
      world_rank_(bootstrap.process().size, -1),
      buffers_(std::make_unique<BufferPool>()),
      peers_(launched_.size()) {
  for (size_t rank = 0; rank < launched_.size(); ++rank) {
    world_rank_[launched_[rank]] = static_cast<int>(rank);
  }
  loop_.add_poller(this);
}

MpiFabric::~MpiFabric() {
  loop_.remove_poller(this);
  if (is_sleeping_) loop_.cancel_timer(sleep_timer_);
  end_with_peers();
  abandon_what_is_left();
}

// If a link did not end with goodbyes, each side may have messages under way that the other has not
// received. So each sends an empty message to say that nothing follows, and drops what arrives
// before that of the other side. Then MPI has finished with all of them.
void MpiFabric::end_with_peers() {
  const auto is_unclean = [](const Peer& peer) {
    return peer.opened && !(peer.said_goodbye && peer.heard_goodbye);
  };
  for (size_t rank = 0; rank < peers_.size(); ++rank) {
    Peer& peer = peers_[rank];
    peer.closed = true;
    PendingMessage end;
    if (is_unclean(peer) &&
        mpi_.begin_send(comm_, launched_[rank], tag_, nullptr, 0, end.request).is_ok()) {
      peer.sends.push_back(std::move(end));
    }
  }
  const auto is_unfinished = [&] {
    return is_busy() || std::any_of(peers_.begin(), peers_.end(), [&](const Peer& peer) {
             return is_unclean(peer) && !peer.ended;
           });
  };
  const Clock::time_point deadline = Clock::now() + kLastWait;
  MpiBackoff backoff;
  while (is_unfinished() && Clock::now() < deadline) {
    poll();
    backoff.pause();
  }
}

void MpiFabric::abandon_what_is_left() {
  if (!is_busy()) return;
  PERSEUS_LOG(kInfo, "MPI still holds messages of peers that are gone; their memory is left to it");
  for (Peer& peer : peers_) {
    for (auto* messages : {&peer.sends, &peer.receives}) {
      // Never freed, on purpose, and neither is the pool that they came from.
      if (!messages->empty()) new std::deque<PendingMessage>(std::move(*messages));
    }
  }
  (void)buffers_.release();
}

std::unique_ptr<Channel> MpiFabric::make_channel(int peer, FramePort& port) {
  return std::make_unique<MpiChannel>(*this, peer, port);
}

void MpiFabric::open(int peer, MpiChannel* channel) {
  peers_[peer].channel = channel;
  peers_[peer].opened = true;
}

void MpiFabric::close(int peer) {
  peers_[peer].channel = nullptr;
  peers_[peer].closed = true;
}

void MpiFabric::send_all(int peer) {
  Peer& to = peers_[peer];
  while (to.channel != nullptr && to.sends.size() < kWindow) {
    FramePort& port = to.channel->port();
    PendingMessage message;
    message.memory = buffers_->take(kPayloadOffset + max_payload_);
    if (!message.memory) return fail(peer, Status::out_of_memory("no memory for a frame to send"));
    Frame frame;
    if (!port.next(frame, max_payload_)) return;
    std::byte* start = message.memory.data() + kHeaderOffset;
    std::memcpy(start, &frame.header, sizeof(frame.header));
    if (frame.header.length != 0) {
      std::memcpy(start + sizeof(frame.header), frame.data, frame.header.length);
    }
    message.bytes = sizeof(frame.header) + frame.header.length;
    const Status status =
        mpi_.begin_send(comm_, launched_[peer], tag_, start, message.bytes, message.request);
    if (!status.is_ok()) return fail(peer, status);
    to.sends.push_back(std::move(message));
    to.said_goodbye |= frame.header.kind() == FrameHeader::kGoodbye;
    port.sent(frame);
  }
}

bool MpiFabric::poll() {
  bool moved = progress_sends();
  moved |= match_arrivals();
  moved |= progress_receives();
  if (moved) poll_until_ = Clock::now() + kPollTime;
  return moved;
}

// These iterate over all peers, most of which have nothing: that is cheaper than one call to MPI.
bool MpiFabric::progress_sends() {
  bool moved = false;
  for (size_t peer = 0; peer < peers_.size(); ++peer) {
    std::deque<PendingMessage>& sends = peers_[peer].sends;
    bool retired = false;
    while (!sends.empty() && is_done(sends.front())) {
      sends.pop_front();
      retired = true;
    }
    if (retired) send_all(static_cast<int>(peer));
    moved |= retired;
  }
  return moved;
}

bool MpiFabric::match_arrivals() {
  for (int matched = 0; matched < kArrivalsPerTurn; ++matched) {
    bool found = false;
    MpiMatchedMessage arrival;
    const Status status = mpi_.match(comm_, Mpi::kAnySource, tag_, found, arrival);
    if (!status.is_ok()) fail_all(status);
    if (!status.is_ok() || !found) return matched > 0;
    const int peer = world_rank_[arrival.source];
    const Status received = receive(peer, arrival);
    if (!received.is_ok()) fail(peer, received);
  }
  return true;
}

Status MpiFabric::receive(int peer, MpiMatchedMessage& arrival) {
  const bool is_end = arrival.bytes == 0;
  const bool is_frame =
      arrival.bytes >= sizeof(FrameHeader) && arrival.bytes <= sizeof(FrameHeader) + max_payload_;
  if (peer < 0 || !(is_frame || is_end)) {
    return Status::internal("an MPI message of " + std::to_string(arrival.bytes) +
                            " bytes is not a frame");
  }
  PendingMessage message;
  message.bytes = arrival.bytes;
  message.memory = buffers_->take(kHeaderOffset + arrival.bytes);
  if (!message.memory) return Status::out_of_memory("no memory for a frame that arrives");
  PERSEUS_RETURN_IF_ERROR(
      mpi_.begin_receive(arrival, message.memory.data() + kHeaderOffset, message.request));
  peers_[peer].receives.push_back(std::move(message));
  return Status::ok();
}

bool MpiFabric::progress_receives() {
  bool moved = false;
  for (size_t peer = 0; peer < peers_.size(); ++peer) {
    std::deque<PendingMessage>& receives = peers_[peer].receives;
    while (!receives.empty() && is_done(receives.front())) {
      // A frame that arrived before its link was made waits for the link.
      if (peers_[peer].channel == nullptr && !peers_[peer].closed) break;
      const PendingMessage message = std::move(receives.front());
      receives.pop_front();
      deliver(static_cast<int>(peer), message);
      moved = true;
    }
  }
  return moved;
}

void MpiFabric::deliver(int peer, const PendingMessage& message) {
  Peer& from = peers_[peer];
  if (message.bytes == 0) {
    from.ended = true;
    return;
  }
  const std::byte* start = message.memory.data() + kHeaderOffset;
  FrameHeader header;
  std::memcpy(&header, start, sizeof(header));
  // Noted even if the channel is closed, so that the destructor need not wait for more.
  from.heard_goodbye |= header.kind() == FrameHeader::kGoodbye;
  if (from.channel == nullptr) return;
  if (header.length != message.bytes - sizeof(header)) {
    fail(peer, Status::internal("a frame's length is not that of its MPI message"));
    return;
  }
  from.channel->port().arrived(header, start + sizeof(header), {});
}

bool MpiFabric::is_done(PendingMessage& message) {
  if (message.done) return true;
  const Status status = mpi_.test(message.request, message.done);
  if (status.is_ok()) return message.done;
  // After an error the request no longer exists.
  message.done = true;
  fail_all(status);
  return true;
}

bool MpiFabric::is_busy() const {
  return std::any_of(peers_.begin(), peers_.end(), [](const Peer& peer) {
    if (!peer.sends.empty()) return true;
    if (peer.channel != nullptr) {
      return !peer.receives.empty() || peer.channel->port().awaits_data();
    }
    return peer.closed && !peer.receives.empty();
  });
}

bool MpiFabric::prepare_to_sleep() {
  const bool busy = is_busy();
  const Clock::time_point now = Clock::now();
  if (busy && !was_busy_) poll_until_ = now + kPollTime;
  was_busy_ = busy;
  if (!busy) return true;
  if (now < poll_until_) {
    // The peer may be waiting for this very processor.
    std::this_thread::yield();
    return false;
  }
  if (!is_sleeping_) {
    is_sleeping_ = true;
    sleep_timer_ = loop_.call_at(now + kPollInterval, [this] { is_sleeping_ = false; });
  }
  return true;
}

void MpiFabric::fail(int peer, const Status& why) {
  if (peer >= 0 && peers_[peer].channel != nullptr) peers_[peer].channel->port().failed(why);
}

void MpiFabric::fail_all(const Status& why) {
  for (size_t peer = 0; peer < peers_.size(); ++peer) fail(static_cast<int>(peer), why);
}

Result<std::unique_ptr<DataFabric>> make_mpi_fabric(EventLoop& loop, const Settings& settings,
                                                    Bootstrap& bootstrap) {
  const auto* mpi = dynamic_cast<const MpiBootstrap*>(&bootstrap);
  if (mpi == nullptr) {
    return Status::unsupported(
        "PERSEUS_TRANSPORT is mpi, but MPI did not launch these ranks; start them with mpirun or "
        "perseusrun --mpi, or use another transport");
  }
  // Two threads may be in MPI at once, unless Perseus alone uses it.
  const MpiProcess& process = mpi->process();
  const MpiThreadLevel needed =
      process.initialized_here ? MpiThreadLevel::kSerialized : MpiThreadLevel::kMultiple;
  const bool usable = process.mpi->thread_level() >= needed;
  // All ranks exchange this, so that they all return the same error.
  Result<std::vector<std::string>> all =
      bootstrap.all_gather(usable ? "yes" : "no", std::chrono::seconds(settings.start_timeout));
  if (!all.is_ok()) return all.status();
  for (size_t rank = 0; rank < all.value().size(); ++rank) {
    if (all.value()[rank] == "yes") continue;
    return Status::unsupported(
        "PERSEUS_TRANSPORT is mpi, but on rank " + std::to_string(rank) +
        " MPI was initialised without support for several threads; ask for MPI_THREAD_MULTIPLE, or "
        "use another transport");
  }
  return std::unique_ptr<DataFabric>(
      std::make_unique<MpiFabric>(loop, *mpi, whole_elements(settings.chunk_bytes)));
}

}  // namespace perseus
