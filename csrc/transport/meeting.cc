#include "transport/meeting.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "base/secret.h"
#include "base/settings.h"
#include "bootstrap/bootstrap.h"
#include "transport/address_card.h"
#include "transport/placement.h"
#include "transport/tcp/local_addresses.h"

namespace perseus {
namespace {

Status listen(const Settings& settings, Acceptor& acceptor, AddressCard& card,
              std::vector<LocalAddress>& addresses) {
  if (settings.transport != TransportChoice::kTcp) {
    const std::string name =
        "perseus-" + to_hex({reinterpret_cast<const char*>(card.nonce.data()), card.nonce.size()});
    Endpoint where = Endpoint::unix_name(name);
    PERSEUS_RETURN_IF_ERROR(acceptor.listen(where));
    card.unix_name = name;
  }
  if (settings.transport == TransportChoice::kShm) return Status::ok();
  Result<std::vector<LocalAddress>> found = local_addresses(settings.interfaces);
  if (!found.is_ok()) return found.status();
  addresses = std::move(found).value();
  Status last;
  for (const LocalAddress& local : addresses) {
    Endpoint where = local.address;
    last = acceptor.listen(where);
    if (last.is_ok()) card.tcp.push_back(where);
  }
  // One address that cannot be listened at (for example, an IPv6 address that is still being
  // probed) does not matter if there are others.
  return card.tcp.empty() && settings.transport == TransportChoice::kTcp
             ? Status::unreachable("no network address to listen at; " + last.message())
             : Status::ok();
}

// Returns an error if the ranks cannot protect what goes between hosts.
Status check_protection(TransportChoice transport, const Met& met, const Bootstrap& bootstrap) {
  if (met.protection.choice == WireChoice::kPlain || met.topology.host_names.size() == 1) return {};
  if (transport == TransportChoice::kMpi) {
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

Status check_addresses(TransportChoice transport, const Topology& topology,
                       const std::vector<AddressCard>& cards) {
  if (topology.host_names.size() == 1) return {};
  if (transport == TransportChoice::kShm) {
    return Status::invalid_argument(
        "PERSEUS_TRANSPORT is shm, but the ranks are on several hosts (" + topology.host_names[0] +
        ", " + topology.host_names[1] + ", ...); use auto or tcp");
  }
  for (int rank = 0; rank < topology.size; ++rank) {
    if (!cards[rank].tcp.empty()) continue;
    return Status::unreachable(topology.name(rank) +
                               " has no network address; see PERSEUS_INTERFACES");
  }
  return {};
}

// Stops listening at addresses that only other hosts need. Ranks that share memory connect over a
// Unix socket; other ranks of one host use loopback, if that is among the interfaces to use.
void close_to_other_hosts(TransportChoice transport, const AddressCard& own, Acceptor& acceptor) {
  const bool has_loopback =
      std::ranges::any_of(own.tcp, [](const Endpoint& where) { return where.is_loopback(); });
  acceptor.stop_listening_unless([&](const Endpoint& where) {
    if (where.family() == AF_UNIX) return true;
    return transport == TransportChoice::kTcp && (where.is_loopback() || !has_loopback);
  });
}

}  // namespace

Result<Met> meet(const Settings& settings, const PeerRoutes::Options& options, Acceptor& acceptor,
                 Bootstrap& bootstrap, const Nonce& process, const std::string& experience) {
  Met met;
  AddressCard card = AddressCard::of_this_process(settings);
  card.process = process;
  card.experience = experience;
  std::vector<LocalAddress> addresses;
  if (bootstrap.size() > 1) {
    // An error goes on the card, so that all ranks hear of it instead of waiting.
    Result<WireProtection> protection = wire_protection(settings);
    if (protection.is_ok()) met.protection = protection.value();
    card.error =
        protection.is_ok() ? listen(settings, acceptor, card, addresses) : protection.status();
  }
  Result<std::vector<std::string>> gathered =
      bootstrap.all_gather(card.pack(), std::chrono::seconds(settings.start_timeout));
  if (!gathered.is_ok()) return gathered.status();
  Result<std::vector<AddressCard>> cards = unpack_cards(gathered.value());
  if (!cards.is_ok()) return cards.status();
  met.job = cards.value()[0].nonce;
  const auto experienced = std::ranges::find_if(
      cards.value(), [](const AddressCard& each) { return !each.experience.empty(); });
  if (experienced != cards.value().end()) met.experience = experienced->experience;
  met.key.emplace(bootstrap.secret(), gathered.value());
  met.topology = make_topology(bootstrap.rank(), cards.value());
  for (int rank = 0; rank < met.topology.size; ++rank) {
    met.topology.launched.push_back(bootstrap.launched_rank(rank));
  }
  PERSEUS_RETURN_IF_ERROR(place_engines(cards.value(), settings.cache_groups, met.topology));
  PERSEUS_RETURN_IF_ERROR(check_addresses(options.transport, met.topology, cards.value()));
  PERSEUS_RETURN_IF_ERROR(check_protection(options.transport, met, bootstrap));
  if (met.topology.host_names.size() == 1) {
    close_to_other_hosts(options.transport, cards.value()[met.topology.rank], acceptor);
  }
  met.routes = PeerRoutes(options, met.topology, std::move(cards).value(), std::move(addresses));
  return met;
}

}  // namespace perseus
