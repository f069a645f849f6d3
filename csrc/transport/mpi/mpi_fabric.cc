#include "transport/mpi/mpi_fabric.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <thread>
#include <utility>

#include "base/settings.h"
#include "bootstrap/mpi/mpi_tags.h"
#include "observe/log.h"
#include "transport/mpi/mpi_channel.h"

namespace perseus {
namespace {

// Frames to one peer that MPI has and has not finished with: enough to keep it busy, few enough for
// an urgent message to overtake.
constexpr size_t kWindow = 4;
constexpr int kArrivalsPerTurn = 16;
constexpr std::chrono::milliseconds kPatience{2};
constexpr std::chrono::milliseconds kNap{1};
// How long the end waits for messages under way, goodbyes among them.
constexpr std::chrono::seconds kLastWait{1};

// Where a frame lies in its memory: the payload aligned as buffers are, the header just before it.
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
  if (napping_) loop_.cancel_timer(nap_);
  const Clock::time_point deadline = Clock::now() + kLastWait;
  MpiPause pause;
  // What arrives is dropped, for the other side's sends to end.
  for (Peer& peer : peers_) peer.closed = true;
  while (is_busy() && Clock::now() < deadline) {
    if (!poll()) pause.rest();
  }
  abandon_what_is_left();
}

void MpiFabric::abandon_what_is_left() {
  if (!is_busy()) return;
  PERSEUS_LOG(kInfo, "MPI still holds messages of peers that are gone; their memory is left to it");
  for (Peer& peer : peers_) {
    for (auto* flights : {&peer.sends, &peer.receives}) {
      // On purpose never freed, nor the pool that they came from.
      if (!flights->empty()) new std::deque<Flight>(std::move(*flights));
    }
  }
  (void)buffers_.release();
}

std::unique_ptr<Channel> MpiFabric::make_channel(int peer, FramePort& port) {
  return std::make_unique<MpiChannel>(*this, peer, port);
}

void MpiFabric::open(int peer, MpiChannel* channel) {
  peers_[peer].channel = channel;
  // What came before the link was made.
  if (!peers_[peer].receives.empty()) receiving_.push_back(peer);
}

void MpiFabric::close(int peer) {
  peers_[peer].channel = nullptr;
  peers_[peer].closed = true;
}

void MpiFabric::send_all(int peer) {
  Peer& to = peers_[peer];
  while (to.channel != nullptr && to.sends.size() < kWindow) {
    FramePort& port = to.channel->port();
    Flight flight;
    flight.memory = buffers_->take(kPayloadOffset + max_payload_);
    if (!flight.memory) return fail(peer, Status::out_of_memory("no memory for a frame to send"));
    Frame frame;
    if (!port.next(frame, max_payload_)) return;
    std::byte* start = flight.memory.data() + kHeaderOffset;
    std::memcpy(start, &frame.header, sizeof(frame.header));
    if (frame.header.length != 0) {
      std::memcpy(start + sizeof(frame.header), frame.data, frame.header.length);
    }
    flight.bytes = sizeof(frame.header) + frame.header.length;
    const Status status =
        mpi_.begin_send(comm_, launched_[peer], tag_, start, flight.bytes, flight.request);
    if (!status.is_ok()) return fail(peer, status);
    if (to.sends.empty()) sending_.push_back(peer);
    to.sends.push_back(std::move(flight));
    port.sent(frame);
  }
}

bool MpiFabric::poll() {
  bool moved = progress_sends();
  moved |= match_arrivals();
  moved |= progress_receives();
  if (moved) patient_until_ = Clock::now() + kPatience;
  return moved;
}

bool MpiFabric::retire(std::deque<Flight>& flights) {
  bool moved = false;
  while (!flights.empty()) {
    bool done = false;
    const Status status = mpi_.test(flights.front().request, done);
    if (!status.is_ok()) fail_all(status);
    // After an error the request is gone as well.
    if (!done && status.is_ok()) return moved;
    flights.pop_front();
    moved = true;
  }
  return moved;
}

bool MpiFabric::progress_sends() {
  bool moved = false;
  for (size_t i = 0; i < sending_.size(); ++i) {
    const int peer = sending_[i];
    if (!retire(peers_[peer].sends)) continue;
    moved = true;
  }
  // Apart from the walk above, since sending adds to the list.
  std::vector<int> free;
  std::erase_if(sending_, [&](int peer) { return peers_[peer].sends.empty(); });
  return moved;
}

bool MpiFabric::match_arrivals() {
  int matched = 0;
  for (; matched < kArrivalsPerTurn; ++matched) {
    bool found = false;
    MpiArrival arrival;
    const Status status = mpi_.match(comm_, Mpi::kAnySource, tag_, found, arrival);
    if (!status.is_ok()) fail_all(status);
    if (!status.is_ok() || !found) break;
    const int peer = world_rank_[arrival.source];
    const Status received = receive(peer, arrival);
    if (!received.is_ok()) fail(peer, received);
  }
  return matched > 0;
}

}  // namespace perseus
