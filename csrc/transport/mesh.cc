#include "transport/mesh.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/settings.h"
#include "bootstrap/bootstrap.h"
#include "transport/address_card.h"
#include "transport/mesh_impl.h"

namespace perseus {
namespace {

// Enough to fill a network link where a cloud limits each connection to an eighth of it.
constexpr int kMostTuned = 8;

// How long closing may take for the sake of links that could be kept. The peers' engines answer at
// once, unless they get no processor.
constexpr std::chrono::milliseconds kPartingTime{500};

}  // namespace

int connections_between_hosts(const Settings& settings) {
  if (settings.transport == TransportChoice::kMpi) return 0;
  const auto streams = static_cast<int>(settings.streams);
  const bool is_fixed =
      settings.disable_stream_tuning || settings.is_given("PERSEUS_ALLREDUCE_STREAMS");
  return is_fixed ? streams : std::max(streams, kMostTuned);
}

Result<std::unique_ptr<Mesh>> Mesh::create(EventLoop& loop, const Settings& settings,
                                           Bootstrap& bootstrap, const std::string& experience,
                                           KeptLinks* kept) {
  auto mesh = std::make_unique<MeshImpl>(loop, settings, kept);
  PERSEUS_RETURN_IF_ERROR(mesh->open(settings, bootstrap, experience));
  return std::unique_ptr<Mesh>(std::move(mesh));
}

MeshImpl::MeshImpl(EventLoop& loop, const Settings& settings, KeptLinks* kept)
    : loop_(loop),
      most_connections_(connections_between_hosts(settings)),
      own_links_(kept == nullptr ? std::make_unique<KeptLinks>() : nullptr),
      kept_(kept == nullptr ? *own_links_ : *kept),
      environment_{loop,
                   kept_.buffers(),
                   *this,
                   counters_,
                   whole_elements(settings.chunk_bytes),
                   whole_elements(settings.chunk_bytes),
                   static_cast<int>(settings.streams)},
      connector_(loop, kept_, counters_,
                 {settings.transport, most_connections_, !settings.interfaces.empty()}, settings,
                 *this),
      linger_(loop),
      parting_(loop) {
  environment_.keeps_connections = kept != nullptr;
}

MeshImpl::~MeshImpl() = default;

void Mesh::decline(Bootstrap& bootstrap, const Status& why) {
  const Settings defaults;
  AddressCard card = AddressCard::of_this_process(defaults);
  card.error = why;
  // An error is ignored: a rank that this does not reach has an error of its own.
  [[maybe_unused]] const auto gathered =
      bootstrap.all_gather(card.pack(), std::chrono::seconds(defaults.start_timeout));
}

Status MeshImpl::open(const Settings& settings, Bootstrap& bootstrap,
                      const std::string& experience) {
  PERSEUS_RETURN_IF_ERROR(connector_.open(settings, bootstrap, experience));
  environment_.rank = topology().rank;
  environment_.rank_name = topology().name(topology().rank);
  environment_.silence = std::chrono::seconds(settings.peer_timeout);
  links_.resize(topology().size);
  const bool may_share =
      settings.transport == TransportChoice::kAuto || settings.transport == TransportChoice::kShm;
  shares_all_memory_ = may_share && topology().host_names.size() == 1;
  return Status::ok();
}

FramedLink& MeshImpl::framed_link(int peer) {
  return links_[peer] != nullptr ? *links_[peer] : make_link(peer);
}

FramedLink& MeshImpl::make_link(int peer) {
  auto& link = links_[peer];
  link = std::make_unique<FramedLink>(environment_, peer, topology().name(peer),
                                      connector_.met().routes.control_channels(peer),
                                      connector_.uses_fabric());
  if (peer == topology().rank) {
    link->abort(Status::internal("rank " + std::to_string(peer) + " has no link to itself"));
  } else if (!takes_links()) {
    link->abort(failed_.is_ok() ? Status::aborted("this rank is shutting down") : failed_);
  }
  return *link;
}

std::vector<SharedBoard> MeshImpl::boards() {
  std::vector<SharedBoard> boards;
  if (!shares_all_memory_ || topology().size == 1) return boards;
  for (int peer = 0; peer < topology().size; ++peer) {
    const bool is_own = peer == topology().rank;
    if (!is_own && !is_connected(peer)) return {};
    boards.push_back(is_own ? kept_.outbox().board() : links_[peer]->peer_board());
    if (!boards.back()) return {};
  }
  return boards;
}

bool MeshImpl::is_connected(int peer) const {
  return links_[peer] != nullptr && links_[peer]->is_connected();
}

bool MeshImpl::is_connected_to_all() const {
  for (int peer = 0; peer < topology().size; ++peer) {
    if (peer != topology().rank && !is_connected(peer)) return false;
  }
  return true;
}

bool MeshImpl::has_left(int peer) const {
  return links_[peer] != nullptr && links_[peer]->has_left();
}

std::vector<int> MeshImpl::awaited_peers() const {
  std::vector<int> peers;
  for (const auto& link : links_) {
    if (link != nullptr && link->awaits_data()) peers.push_back(link->peer());
  }
  return peers;
}

void MeshImpl::send_control(int peer, std::span<const std::byte> message) {
  framed_link(peer).send_control(message);
}

void MeshImpl::set_chunk(uint64_t bytes) {
  environment_.frame_bytes =
      std::clamp(whole_elements(bytes), kFrameMultiple, environment_.chunk_bytes);
}

void MeshImpl::set_connections(int number) {
  environment_.streams = std::max(1, std::min(number, most_connections_));
}

void MeshImpl::cut_all(const Status& why, const std::set<int>& lost) {
  for (auto& link : links_) {
    if (link != nullptr && !lost.contains(link->peer())) link->cut(why);
  }
  finish_closing_if_done();
}

void MeshImpl::fail_all(const Status& why) {
  failed_ = why;
  for (auto& link : links_) {
    if (link != nullptr) link->abort(why);
  }
  finish_closing_if_done();
}

void MeshImpl::close(std::chrono::milliseconds linger, std::function<void()> closed) {
  closing_ = true;
  closed_ = std::move(closed);
  linger_.set(Clock::now() + linger, [this] { report_closed(); });
  for (auto& link : links_) {
    if (link != nullptr) link->close();
  }
  finish_closing_if_done();
}

void MeshImpl::finish_closing_if_done() {
  if (!closing_) return;
  bool parts = false;
  for (const auto& link : links_) {
    if (link == nullptr) continue;
    if (!link->is_over()) return;
    parts |= link->is_parting();
  }
  if (!parts) return post_if_alive([this] { report_closed(); });
  if (!parting_.is_set()) parting_.set(Clock::now() + kPartingTime, [this] { report_closed(); });
}

void MeshImpl::report_closed() {
  if (!closed_) return;
  linger_.cancel();
  parting_.cancel();
  fail_all(Status::aborted("this rank has shut down"));
  if (environment_.keeps_connections) keep_links();
  connector_.close();
  // It may destroy the mesh.
  const std::function<void()> closed = std::exchange(closed_, nullptr);
  closed();
}

void MeshImpl::keep_links() {
  for (auto& link : links_) {
    if (link == nullptr) continue;
    KeptLinks::Channels channels = link->take_channels();
    if (channels.empty()) continue;
    kept_.put(connector_.met().routes.process(link->peer()), std::move(channels));
  }
  // Nothing of theirs may use the memory that the next world has.
  for (auto& link : links_) link = nullptr;
  connector_.put_back_unused();
}

void MeshImpl::on_lasting_exhaustion(int error) {
  // Strangers may still call, and do no harm to a rank that needs no connection.
  if (is_connected_to_all()) return;
  const Status why = Status::without(
      topology().rank, topology().name(topology().rank) +
                           " can neither make nor take connections: " + std::strerror(error) +
                           (error == EMFILE ? "; raise its limit on open files (ulimit -n)" : ""));
  post_if_alive([this, why] { listener_->on_rank_lost(why.peer(), why); });
}

void MeshImpl::link_control(int peer, std::span<const std::byte> message) {
  listener_->on_control(peer, message);
}

void MeshImpl::link_lost(int peer, const Status& why) {
  connector_.stop_waiting(peer);
  post_if_alive([this, peer, why] {
    if (why.peer() == Status::kNobody) {
      listener_->on_connection_disturbed(peer, why);
    } else {
      listener_->on_rank_lost(why.peer(), why);
    }
  });
}

void MeshImpl::link_closed(int peer) {
  connector_.stop_waiting(peer);
  finish_closing_if_done();
}

void MeshImpl::post_if_alive(std::function<void()> function) {
  loop_.post([alive = std::weak_ptr<bool>(alive_), function = std::move(function)] {
    if (!alive.expired()) function();
  });
}

Mesh::Counters MeshImpl::counters() const {
  const auto read = [](const TrafficCounters::Counter& counter) {
    return counter.load(std::memory_order_relaxed);
  };
  const auto sent_by = [&](Channel::Kind kind) {
    return read(counters_.data_bytes_sent[static_cast<int>(kind)]);
  };
  Counters counters;
  counters.control_messages_sent = read(counters_.control_messages_sent);
  counters.control_bytes_sent = read(counters_.control_bytes_sent);
  counters.control_messages_received = read(counters_.control_messages_received);
  counters.control_bytes_received = read(counters_.control_bytes_received);
  counters.data_bytes_sent_shm = sent_by(Channel::Kind::kShm);
  counters.data_bytes_sent_tcp = sent_by(Channel::Kind::kTcp);
  counters.data_bytes_sent_mpi = sent_by(Channel::Kind::kMpi);
  counters.frames_sent = read(counters_.frames_sent);
  counters.frames_received = read(counters_.frames_received);
  counters.unexpected_frames = read(counters_.unexpected_frames);
  counters.connections_made = read(counters_.connections_made);
  counters.connections_kept = read(counters_.connections_kept);
  return counters;
}

}  // namespace perseus
