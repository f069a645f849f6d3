#include "transport/mesh.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/secret.h"
#include "base/settings.h"
#include "bootstrap/bootstrap.h"
#include "transport/mesh_impl.h"
#include "transport/mpi/mpi_fabric.h"
#include "transport/shm/shm_channel.h"
#include "transport/tcp/tcp_channel.h"

namespace perseus {
namespace {

// Enough to fill a network link where a cloud limits each connection to an eighth of it.
constexpr int kMostTuned = 8;

}  // namespace

int connections_between_hosts(const Settings& settings) {
  if (settings.transport == TransportChoice::kMpi) return 0;
  const auto streams = static_cast<int>(settings.streams);
  const bool is_fixed =
      settings.disable_stream_tuning || settings.is_given("PERSEUS_ALLREDUCE_STREAMS");
  return is_fixed ? streams : std::max(streams, kMostTuned);
}

Result<std::unique_ptr<Mesh>> Mesh::create(EventLoop& loop, const Settings& settings,
                                           Bootstrap& bootstrap) {
  auto mesh = std::make_unique<MeshImpl>(loop, settings);
  PERSEUS_RETURN_IF_ERROR(mesh->open(settings, bootstrap));
  return std::unique_ptr<Mesh>(std::move(mesh));
}

MeshImpl::MeshImpl(EventLoop& loop, const Settings& settings)
    : loop_(loop),
      options_{settings.transport, connections_between_hosts(settings),
               !settings.interfaces.empty()},
      start_timeout_(settings.start_timeout),
      peer_timeout_(settings.peer_timeout),
      environment_{loop,
                   buffers_,
                   *this,
                   counters_,
                   whole_elements(settings.chunk_bytes),
                   whole_elements(settings.chunk_bytes),
                   static_cast<int>(settings.streams)},
      // Before other ranks take this one for dead, or this one them.
      exhaustion_(std::chrono::milliseconds(std::min(start_timeout_, peer_timeout_)) / 2,
                  [this](int error) { on_lasting_exhaustion(error); }) {}

MeshImpl::~MeshImpl() {
  loop_.cancel_timer(linger_timer_);
  for (Peer& peer : peers_) loop_.cancel_timer(peer.connect_timer);
}

void Mesh::decline(Bootstrap& bootstrap, const Status& why) {
  const Settings defaults;
  AddressCard card = AddressCard::of_this_process(defaults);
  card.error = why;
  // An error is ignored: a rank that this does not reach has an error of its own.
  [[maybe_unused]] const auto gathered =
      bootstrap.all_gather(card.pack(), std::chrono::seconds(defaults.start_timeout));
}

Status MeshImpl::open(const Settings& settings, Bootstrap& bootstrap) {
  AddressCard card = AddressCard::of_this_process(settings);
  credentials_.secret = bootstrap.secret();
  credentials_.rank = static_cast<uint32_t>(bootstrap.rank());
  AcceptorOwner& owner = *this;
  acceptor_ = std::make_unique<Acceptor>(loop_, credentials_, exhaustion_, owner);
  if (bootstrap.size() > 1) {
    // An error goes on the card, so that all ranks hear of it instead of waiting.
    Result<WireProtection> protection = wire_protection(settings);
    if (protection.is_ok()) protection_ = protection.value();
    card.error = protection.is_ok() ? listen(settings, card) : protection.status();
  }
  Result<std::vector<std::string>> gathered = bootstrap.all_gather(card.pack(), start_timeout_);
  if (!gathered.is_ok()) return gathered.status();
  PERSEUS_RETURN_IF_ERROR(adopt(gathered.value(), bootstrap));
  if (options_.transport == TransportChoice::kMpi && topology_.size > 1) {
    Result<std::unique_ptr<DataFabric>> fabric = make_mpi_fabric(loop_, settings, bootstrap);
    if (!fabric.is_ok()) return fabric.status();
    fabric_ = std::move(fabric).value();
  }
  acceptor_->start();
  return Status::ok();
}

Status MeshImpl::check_protection(const Bootstrap& bootstrap) const {
  if (protection_.choice == WireChoice::kPlain || topology_.host_names.size() == 1) return {};
  if (options_.transport == TransportChoice::kMpi) {
    return Status::invalid_argument(
        "PERSEUS_WIRE protects TCP, but PERSEUS_TRANSPORT is mpi; use auto or tcp, or plain");
  }
  if (const std::string weakness = bootstrap.secret_weakness(); !weakness.empty()) {
    return Status::invalid_argument(
        "PERSEUS_WIRE protects nothing from somebody who knows the job's secret, which " +
        weakness +
        "; set PERSEUS_SECRET to one of your own, the same on all ranks, such as "
        "`openssl rand -hex 32` prints");
  }
  return {};
}

Status MeshImpl::listen(const Settings& settings, AddressCard& card) {
  if (options_.transport != TransportChoice::kTcp) {
    const std::string name =
        "perseus-" + to_hex({reinterpret_cast<const char*>(card.nonce.data()), card.nonce.size()});
    Endpoint where = Endpoint::unix_name(name);
    PERSEUS_RETURN_IF_ERROR(acceptor_->listen(where));
    card.unix_name = name;
  }
  if (options_.transport == TransportChoice::kShm) return Status::ok();
  Result<std::vector<LocalAddress>> addresses = local_addresses(settings.interfaces);
  if (!addresses.is_ok()) return addresses.status();
  addresses_ = std::move(addresses).value();
  Status last;
  for (const LocalAddress& local : addresses_) {
    Endpoint where = local.address;
    last = acceptor_->listen(where);
    if (last.is_ok()) card.tcp.push_back(where);
  }
  // One address that cannot be listened at (for example, an IPv6 address that is still being
  // probed) does not matter if there are others.
  return card.tcp.empty() && options_.transport == TransportChoice::kTcp
             ? Status::unreachable("no network address to listen at; " + last.message())
             : Status::ok();
}

Status MeshImpl::adopt(const std::vector<std::string>& gathered, Bootstrap& bootstrap) {
  Result<std::vector<AddressCard>> cards = unpack_cards(gathered);
  if (!cards.is_ok()) return cards.status();
  credentials_.job = cards.value()[0].nonce;
  world_key_.emplace(credentials_.secret, gathered);
  topology_ = make_topology(bootstrap.rank(), cards.value());
  for (int rank = 0; rank < topology_.size; ++rank) {
    topology_.launched.push_back(bootstrap.launched_rank(rank));
  }
  environment_.rank = topology_.rank;
  environment_.rank_name = topology_.name(topology_.rank);
  peers_.resize(topology_.size);
  const bool several_hosts = topology_.host_names.size() > 1;
  if (options_.transport == TransportChoice::kShm && several_hosts) {
    return Status::invalid_argument(
        "PERSEUS_TRANSPORT is shm, but the ranks are on several hosts (" + topology_.host_names[0] +
        ", " + topology_.host_names[1] + ", ...); use auto or tcp");
  }
  for (int rank = 0; rank < topology_.size; ++rank) {
    if (several_hosts && cards.value()[rank].tcp.empty()) {
      return Status::unreachable(topology_.name(rank) +
                                 " has no network address; see PERSEUS_INTERFACES");
    }
  }
  PERSEUS_RETURN_IF_ERROR(check_protection(bootstrap));
  if (!several_hosts) close_to_other_hosts(cards.value()[topology_.rank]);
  routes_ = PeerRoutes(options_, topology_, std::move(cards).value(), std::move(addresses_));
  return Status::ok();
}

bool MeshImpl::shares_all_memory() const {
  const bool is_shared =
      options_.transport == TransportChoice::kAuto || options_.transport == TransportChoice::kShm;
  return is_shared && topology_.host_names.size() == 1;
}

// Stops listening at addresses that only other hosts need. Ranks that share memory connect over a
// Unix socket; other ranks of one host use loopback, if that is among the interfaces to use.
void MeshImpl::close_to_other_hosts(const AddressCard& own) {
  const bool has_loopback =
      std::ranges::any_of(own.tcp, [](const Endpoint& where) { return where.is_loopback(); });
  acceptor_->stop_listening_unless([&](const Endpoint& where) {
    if (where.family() == AF_UNIX) return true;
    return options_.transport == TransportChoice::kTcp && (where.is_loopback() || !has_loopback);
  });
}

FramedLink& MeshImpl::framed_link(int peer) {
  return peers_[peer].link != nullptr ? *peers_[peer].link : make_link(peer);
}

void MeshImpl::connection_needed(int peer) {
  begin_connecting(peer);
  if (topology_.rank > peer && routes_.control_channels(peer) == 1) ask_to_connect(peer);
}

FramedLink& MeshImpl::make_link(int peer) {
  auto& link = peers_[peer].link;
  link = std::make_unique<FramedLink>(environment_, peer, topology_.name(peer),
                                      routes_.control_channels(peer), fabric_ != nullptr);
  if (peer == topology_.rank) {
    link->abort(Status::internal("rank " + std::to_string(peer) + " has no link to itself"));
  } else if (!failed_.is_ok() || closing_) {
    link->abort(failed_.is_ok() ? Status::aborted("this rank is shutting down") : failed_);
  }
  return *link;
}

void MeshImpl::begin_connecting(int peer) {
  FramedLink& link = *peers_[peer].link;
  link.mark_connection_requested();
  // For the peer's dialers too. This rank's own give up a little earlier, with a better error.
  peers_[peer].connect_timer =
      loop_.call_at(Clock::now() + start_timeout_ + std::chrono::seconds(1), [this, peer] {
        peers_[peer].link->fail(
            Status::unreachable("it did not connect within PERSEUS_START_TIMEOUT, " +
                                std::to_string(start_timeout_.count()) + " s"));
      });
  if (fabric_ != nullptr) {
    const int index = link.data_channel_index();
    link.attach(index, fabric_->make_channel(peer, link.port(index)));
  }
  for (int i = 0; i < routes_.control_channels(peer); ++i) {
    if (routes_.dials(peer, i)) dial_channel(peer, i);
  }
}

void MeshImpl::dial_channel(int peer, int index) {
  Hello hello;
  hello.purpose = routes_.uses_shm(peer) ? Hello::kShmChannel : Hello::kTcpChannel;
  hello.index = static_cast<uint16_t>(index);
  hello.total = static_cast<uint16_t>(routes_.control_channels(peer));
  dial(peer, hello, [this, peer, index](Result<ProvenConnection> connection) {
    FramedLink& link = *peers_[peer].link;
    if (link.is_over()) return;
    if (connection.is_ok()) {
      attach(peer, index, std::move(connection).value());
    } else {
      link.fail(Status::unreachable("cannot connect: " + connection.status().message()));
    }
  });
}

void MeshImpl::ask_to_connect(int peer) {
  Hello hello;
  hello.purpose = Hello::kConnectRequest;
  dial(peer, hello, [this, peer](Result<ProvenConnection> connection) {
    // It has served its purpose: the lower rank now makes the connections of the link.
    if (connection.is_ok() || peers_[peer].link->is_connected()) return;
    peers_[peer].link->fail(
        Status::unreachable("cannot connect: " + connection.status().message()));
  });
}

void MeshImpl::dial(int peer, const Hello& hello, Dialer::Done done) {
  std::vector<Endpoint> endpoints = routes_.endpoints(peer, hello.index);
  if (endpoints.empty()) {
    peers_[peer].link->fail(Status::unreachable(
        "none of its network addresses can be reached from here; see PERSEUS_INTERFACES"));
    return;
  }
  std::vector<Endpoint> sources = routes_.sources(endpoints);
  Hello addressed = hello;
  addressed.to = static_cast<uint32_t>(peer);
  peers_[peer].dialers.push_back(std::make_unique<Dialer>(
      loop_, credentials_, exhaustion_, std::move(endpoints), std::move(sources), addressed,
      Clock::now() + start_timeout_, std::move(done)));
  peers_[peer].dialers.back()->start();
}

void MeshImpl::attach(int peer, int index, ProvenConnection connection) {
  FramedLink& link = *peers_[peer].link;
  std::unique_ptr<Channel> channel;
  if (routes_.uses_shm(peer)) {
    channel = std::make_unique<ShmChannel>(loop_, outbox_, std::move(connection.fd),
                                           link.port(index), topology_.rank < peer);
  } else {
    channel = std::make_unique<TcpChannel>(loop_, buffers_, std::move(connection), link.port(index),
                                           peer_timeout_, protection_, link.is_express(index));
  }
  link.attach(index, std::move(channel));
  if (link.is_connected()) loop_.cancel_timer(peers_[peer].connect_timer);
}

bool MeshImpl::may_connect(const Hello& hello) {
  if (hello.from >= static_cast<uint32_t>(topology_.size)) return false;
  const int peer = static_cast<int>(hello.from);
  const FramedLink* link = peers_[peer].link.get();
  if (link == nullptr ? closing_ || !failed_.is_ok() : link->is_over()) return false;
  if (hello.purpose == Hello::kConnectRequest) return peer > topology_.rank;
  const int purpose = routes_.uses_shm(peer) ? Hello::kShmChannel : Hello::kTcpChannel;
  return hello.purpose == purpose && hello.total == routes_.control_channels(peer) &&
         hello.index < hello.total && !routes_.dials(peer, hello.index) &&
         (link == nullptr || !link->has_channel(hello.index));
}

void MeshImpl::on_connected(const Hello& hello, ProvenConnection connection) {
  const int peer = static_cast<int>(hello.from);
  if (hello.purpose == Hello::kConnectRequest) {
    framed_link(peer).request_connection();
    return;
  }
  FramedLink& link = framed_link(peer);
  if (link.is_over()) return;
  if (!link.is_connection_requested()) begin_connecting(peer);
  if (!link.is_over()) attach(peer, hello.index, std::move(connection));
}

bool MeshImpl::is_connected(int peer) const {
  return peers_[peer].link != nullptr && peers_[peer].link->is_connected();
}

bool MeshImpl::has_left(int peer) const {
  return peers_[peer].link != nullptr && peers_[peer].link->has_left();
}

void MeshImpl::send_control(int peer, std::span<const std::byte> message) {
  framed_link(peer).send_control(message);
}

void MeshImpl::set_chunk(uint64_t bytes) {
  environment_.frame_bytes =
      std::clamp(whole_elements(bytes), kFrameMultiple, environment_.chunk_bytes);
}

void MeshImpl::set_connections(int number) {
  environment_.streams = std::max(1, std::min(number, options_.connections));
}

void MeshImpl::fail_all(const Status& why) {
  failed_ = why;
  for (Peer& peer : peers_) {
    if (peer.link != nullptr) peer.link->abort(why);
  }
  finish_closing_if_done();
}

void MeshImpl::close(std::chrono::milliseconds linger, std::function<void()> closed) {
  closing_ = true;
  closed_ = std::move(closed);
  linger_timer_ = loop_.call_at(Clock::now() + linger, [this] { report_closed(); });
  for (Peer& peer : peers_) {
    if (peer.link != nullptr) peer.link->close();
  }
  finish_closing_if_done();
}

void MeshImpl::finish_closing_if_done() {
  if (!closing_) return;
  for (const Peer& peer : peers_) {
    if (peer.link != nullptr && !peer.link->is_over()) return;
  }
  post_if_alive([this] { report_closed(); });
}

void MeshImpl::report_closed() {
  if (!closed_) return;
  loop_.cancel_timer(linger_timer_);
  fail_all(Status::aborted("this rank has shut down"));
  acceptor_->close();
  // It may destroy the mesh.
  const std::function<void()> closed = std::exchange(closed_, nullptr);
  closed();
}

void MeshImpl::on_lasting_exhaustion(int error) {
  const Status why = Status::without(
      topology_.rank, topology_.name(topology_.rank) +
                          " can neither make nor take connections: " + std::strerror(error) +
                          (error == EMFILE ? "; raise its limit on open files (ulimit -n)" : ""));
  post_if_alive([this, why] { listener_->on_rank_lost(why.peer(), why); });
}

void MeshImpl::link_control(int peer, std::span<const std::byte> message) {
  listener_->on_control(peer, message);
}

void MeshImpl::link_lost(int peer, const Status& why) {
  loop_.cancel_timer(peers_[peer].connect_timer);
  post_if_alive([this, why] { listener_->on_rank_lost(why.peer(), why); });
}

void MeshImpl::link_closed(int peer) {
  loop_.cancel_timer(peers_[peer].connect_timer);
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
  return counters;
}

}  // namespace perseus
