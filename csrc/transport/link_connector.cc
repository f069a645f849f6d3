#include "transport/link_connector.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/settings.h"
#include "bootstrap/bootstrap.h"
#include "transport/mpi/mpi_fabric.h"
#include "transport/shm/shm_channel.h"
#include "transport/tcp/tcp_channel.h"

namespace perseus {
namespace {

// How long a peer may take to say what a kept connection is from now on; a quarter of the start
// time-out at most.
constexpr std::chrono::milliseconds kRenewalPatience{5000};

}  // namespace

LinkConnector::LinkConnector(EventLoop& loop, KeptLinks& kept, TrafficCounters& counters,
                             const PeerRoutes::Options& options, const Settings& settings,
                             LinkOwner& owner)
    : loop_(loop),
      kept_(kept),
      counters_(counters),
      options_(options),
      start_timeout_(settings.start_timeout),
      peer_timeout_(settings.peer_timeout),
      owner_(owner),
      // Before other ranks take this one for dead, or this one them.
      exhaustion_(std::chrono::milliseconds(std::min(start_timeout_, peer_timeout_)) / 2,
                  [&owner](int error) { owner.on_lasting_exhaustion(error); }) {}

LinkConnector::~LinkConnector() {
  for (Peer& peer : peers_) loop_.cancel_timer(peer.timer);
}

void LinkConnector::close() {
  acceptor_->close();
  for (Peer& peer : peers_) loop_.cancel_timer(peer.timer);
}

Status LinkConnector::open(const Settings& settings, Bootstrap& bootstrap,
                           const std::string& experience) {
  credentials_.secret = bootstrap.secret();
  credentials_.rank = static_cast<uint32_t>(bootstrap.rank());
  AcceptorOwner& owner = *this;
  acceptor_ = std::make_unique<Acceptor>(loop_, credentials_, exhaustion_, owner);
  Result<Met> met = meet(settings, options_, *acceptor_, bootstrap, kept_.process(), experience);
  if (!met.is_ok()) return met.status();
  met_ = std::move(met).value();
  credentials_.job = met_.job;
  peers_.resize(met_.topology.size);
  if (options_.transport == TransportChoice::kMpi && met_.topology.size > 1) {
    Result<std::unique_ptr<DataFabric>> fabric = make_mpi_fabric(loop_, settings, bootstrap);
    if (!fabric.is_ok()) return fabric.status();
    fabric_ = std::move(fabric).value();
  }
  take_kept(settings, bootstrap);
  acceptor_->start();
  return Status::ok();
}

void LinkConnector::take_kept(const Settings& settings, const Bootstrap& bootstrap) {
  kept_.prepare_for(settings, bootstrap.secret());
  for (int peer = 0; peer < met_.topology.size; ++peer) {
    if (peer != met_.topology.rank && !uses_fabric()) take_kept(peer);
  }
  kept_.drop_links();
  // The owner has its listener when the loop runs.
  loop_.post([this, alive = std::weak_ptr<bool>(alive_)] {
    if (alive.expired()) return;
    for (Peer& peer : peers_) {
      for (const auto& renewal : peer.renewals) {
        if (renewal != nullptr) renewal->start();
      }
    }
  });
}

void LinkConnector::take_kept(int peer) {
  KeptLinks::Channels channels = kept_.take(met_.routes.process(peer));
  const int total = met_.routes.control_channels(peer);
  const auto kind = met_.routes.uses_shm(peer) ? Channel::Kind::kShm : Channel::Kind::kTcp;
  if (static_cast<int>(channels.size()) != total || channels.front()->kind() != kind) return;
  for (int index = 0; index < total; ++index) {
    Renewal mine;
    mine.job = met_.job;
    mine.from = static_cast<uint32_t>(met_.topology.rank);
    mine.to = static_cast<uint32_t>(peer);
    mine.index = static_cast<uint16_t>(index);
    mine.total = static_cast<uint16_t>(total);
    LinkRenewalOwner& owner = *this;
    peers_[peer].renewals.push_back(std::make_unique<LinkRenewal>(
        loop_, std::move(channels[index]), mine,
        std::min(kRenewalPatience, std::chrono::milliseconds(start_timeout_) / 4), owner));
  }
}

void LinkConnector::put_back_unused() {
  for (int peer = 0; peer < met_.topology.size; ++peer) {
    KeptLinks::Channels channels;
    for (const auto& renewal : peers_[peer].renewals) {
      channels.push_back(renewal != nullptr ? renewal->take_back() : nullptr);
    }
    peers_[peer].renewals.clear();
    const bool is_whole = std::ranges::all_of(channels, [](auto& each) { return each != nullptr; });
    if (!channels.empty() && is_whole) kept_.put(met_.routes.process(peer), std::move(channels));
  }
}

LinkRenewal* LinkConnector::renewal(int peer, int index) {
  const auto& renewals = peers_[peer].renewals;
  return renewals.empty() ? nullptr : renewals[index].get();
}

void LinkConnector::on_renewal_ended(int peer, int index, std::unique_ptr<Channel> channel) {
  FramedLink* link = owner_.find_link(peer);
  if (channel != nullptr && link == nullptr && owner_.takes_links()) {
    link = &owner_.framed_link(peer);
  }
  const bool is_wanted = link != nullptr && !link->is_over();
  // While the renewal is there, this channel is not dialled.
  if (is_wanted && channel != nullptr && !link->is_connection_requested()) begin_connecting(*link);
  peers_[peer].renewals[index] = nullptr;
  if (!is_wanted || link->is_over()) return;
  if (channel != nullptr) {
    TrafficCounters::add(counters_.connections_kept, 1);
    channel->move_to(loop_, link->port(index));
    attach(*link, index, std::move(channel));
  } else if (link->is_connection_requested()) {
    make_channel(peer, index);
  }
}

void LinkConnector::connect(int peer) {
  begin_connecting(owner_.framed_link(peer));
  const bool is_single = met_.routes.control_channels(peer) == 1;
  if (is_single && renewal(peer, 0) == nullptr && !met_.routes.dials(peer, 0)) ask_to_connect(peer);
}

void LinkConnector::make_channel(int peer, int index) {
  if (met_.routes.dials(peer, index)) {
    dial_channel(peer, index);
  } else if (met_.routes.control_channels(peer) == 1) {
    ask_to_connect(peer);
  }
}

void LinkConnector::begin_connecting(FramedLink& link) {
  const int peer = link.peer();
  link.mark_connection_requested();
  // For the peer's dialers too. This rank's own give up a little earlier, with a better error.
  peers_[peer].timer =
      loop_.call_at(Clock::now() + start_timeout_ + std::chrono::seconds(1), [this, &link] {
        link.cannot_connect(
            Status::unreachable("it did not connect within PERSEUS_START_TIMEOUT, " +
                                std::to_string(start_timeout_.count()) + " s"));
      });
  if (fabric_ != nullptr) {
    const int index = link.data_channel_index();
    link.attach(index, fabric_->make_channel(peer, link.port(index)));
  }
  for (int i = 0; i < met_.routes.control_channels(peer); ++i) {
    if (LinkRenewal* kept = renewal(peer, i)) {
      kept->ask();
    } else if (met_.routes.dials(peer, i)) {
      dial_channel(peer, i);
    }
  }
}

void LinkConnector::dial_channel(int peer, int index) {
  Hello hello;
  hello.purpose = met_.routes.uses_shm(peer) ? Hello::kShmChannel : Hello::kTcpChannel;
  hello.index = static_cast<uint16_t>(index);
  hello.total = static_cast<uint16_t>(met_.routes.control_channels(peer));
  dial(peer, hello, [this, peer, index](Result<ProvenConnection> connection) {
    FramedLink& link = owner_.framed_link(peer);
    if (link.is_over()) return;
    if (connection.is_ok()) {
      attach(link, index, std::move(connection).value());
    } else {
      link.cannot_connect(Status::unreachable("cannot connect: " + connection.status().message()));
    }
  });
}

void LinkConnector::ask_to_connect(int peer) {
  Hello hello;
  hello.purpose = Hello::kConnectRequest;
  dial(peer, hello, [this, peer](Result<ProvenConnection> connection) {
    // It has served its purpose: the lower rank now makes the connections of the link.
    FramedLink& link = owner_.framed_link(peer);
    if (connection.is_ok() || link.is_connected()) return;
    link.fail(Status::unreachable("cannot connect: " + connection.status().message()));
  });
}

void LinkConnector::dial(int peer, const Hello& hello, Dialer::Done done) {
  std::vector<Endpoint> endpoints = met_.routes.endpoints(peer, hello.index);
  if (endpoints.empty()) {
    owner_.framed_link(peer).fail(Status::unreachable(
        "none of its network addresses can be reached from here; see PERSEUS_INTERFACES"));
    return;
  }
  std::vector<Endpoint> sources = met_.routes.sources(endpoints);
  Hello addressed = hello;
  addressed.to = static_cast<uint32_t>(peer);
  peers_[peer].dialers.push_back(std::make_unique<Dialer>(
      loop_, credentials_, exhaustion_, std::move(endpoints), std::move(sources), addressed,
      Clock::now() + start_timeout_, std::move(done)));
  peers_[peer].dialers.back()->start();
}

void LinkConnector::attach(FramedLink& link, int index, ProvenConnection connection) {
  const int peer = link.peer();
  std::unique_ptr<Channel> channel;
  if (met_.routes.uses_shm(peer)) {
    channel = std::make_unique<ShmChannel>(loop_, kept_.outbox(), std::move(connection.fd),
                                           link.port(index), met_.topology.rank < peer);
  } else {
    channel = std::make_unique<TcpChannel>(loop_, kept_.buffers(), std::move(connection),
                                           link.port(index), peer_timeout_, met_.protection,
                                           link.is_express(index));
  }
  TrafficCounters::add(counters_.connections_made, 1);
  attach(link, index, std::move(channel));
}

void LinkConnector::attach(FramedLink& link, int index, std::unique_ptr<Channel> channel) {
  link.attach(index, std::move(channel));
  if (link.is_connected()) loop_.cancel_timer(peers_[link.peer()].timer);
}

bool LinkConnector::may_connect(const Hello& hello) {
  if (hello.from >= static_cast<uint32_t>(met_.topology.size)) return false;
  const int peer = static_cast<int>(hello.from);
  const FramedLink* link = owner_.find_link(peer);
  if (link == nullptr ? !owner_.takes_links() : link->is_over()) return false;
  if (hello.purpose == Hello::kConnectRequest) return peer > met_.topology.rank;
  const int purpose = met_.routes.uses_shm(peer) ? Hello::kShmChannel : Hello::kTcpChannel;
  return hello.purpose == purpose && hello.total == met_.routes.control_channels(peer) &&
         hello.index < hello.total && !met_.routes.dials(peer, hello.index) &&
         (link == nullptr || !link->has_channel(hello.index));
}

void LinkConnector::on_connected(const Hello& hello, ProvenConnection connection) {
  FramedLink& link = owner_.framed_link(static_cast<int>(hello.from));
  if (hello.purpose == Hello::kConnectRequest) {
    link.request_connection();
    return;
  }
  if (link.is_over()) return;
  // The peer has lost the one that was kept.
  if (renewal(link.peer(), hello.index) != nullptr) {
    peers_[link.peer()].renewals[hello.index] = nullptr;
  }
  if (!link.is_connection_requested()) begin_connecting(link);
  if (!link.is_over()) attach(link, hello.index, std::move(connection));
}

}  // namespace perseus
