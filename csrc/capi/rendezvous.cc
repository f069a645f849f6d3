// perseus.h: the rendezvous that a launcher serves.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/secret.h"
#include "bootstrap/rendezvous_server.h"
#include "capi/c_status.h"

using perseus::Status;
using perseus::to_c;

struct perseus_rendezvous {
  std::unique_ptr<perseus::RendezvousServer> server;
};

namespace {

std::vector<std::string> addresses_in(const std::string& list) {
  std::vector<std::string> addresses;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    addresses.push_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  return addresses;
}

}  // namespace

extern "C" {

perseus_status_t perseus_rendezvous_start(const char* address, int32_t* port, int32_t size,
                                          const char* secret, const char* const* hosts,
                                          perseus_rendezvous_t** rendezvous) {
  if (port == nullptr || rendezvous == nullptr || *port < 0 || *port > UINT16_MAX || size < 0) {
    return to_c(
        Status::invalid_argument("a rendezvous needs a port, and no negative number of ranks"));
  }
  const auto bytes = perseus::from_hex(secret == nullptr ? "" : secret);
  if (!bytes.is_ok()) return to_c(bytes.status());
  std::vector<std::string> named;
  if (hosts != nullptr) named.assign(hosts, hosts + size);
  auto server = perseus::RendezvousServer::start(addresses_in(address == nullptr ? "" : address),
                                                 static_cast<uint16_t>(*port), size, bytes.value(),
                                                 std::move(named));
  if (!server.is_ok()) return to_c(server.status());
  *port = server.value()->port();
  *rendezvous = new perseus_rendezvous{std::move(server).value()};
  return PERSEUS_OK;
}

perseus_status_t perseus_rendezvous_add_rank(perseus_rendezvous_t* rendezvous, const char* host) {
  if (rendezvous == nullptr) return to_c(Status::invalid_argument("no rendezvous"));
  rendezvous->server->add_rank(host == nullptr ? "" : host);
  return PERSEUS_OK;
}

perseus_status_t perseus_rendezvous_note_ended(perseus_rendezvous_t* rendezvous, int32_t rank,
                                               const char* how) {
  if (rendezvous == nullptr || rank < 0) {
    return to_c(Status::invalid_argument("no rendezvous, or a rank below 0"));
  }
  const bool is_said = how != nullptr && *how != '\0';
  rendezvous->server->note_ended(rank, is_said ? how : "has ended");
  return PERSEUS_OK;
}

int32_t perseus_rendezvous_has_met(perseus_rendezvous_t* rendezvous, const char* world,
                                   const int32_t* ranks, int32_t count) {
  if (rendezvous == nullptr || world == nullptr || count < 0) return -1;
  return rendezvous->server->has_met(world, {ranks, ranks + count}) ? 1 : 0;
}

void perseus_rendezvous_stop(perseus_rendezvous_t* rendezvous) { delete rendezvous; }

}  // extern "C"
