// Every rank gives all others its address card before there are links: on which host it is, how it
// can be reached, and its values of the settings that must be the same everywhere.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/processors.h"
#include "base/status.h"
#include "transport/endpoint.h"
#include "transport/handshake.h"
#include "transport/mesh.h"

namespace perseus {

struct Settings;

struct AddressCard {
  Status error;           // not ok if this rank cannot take part
  std::string host_name;  // the machine's, or PERSEUS_HOSTNAME, which makes hosts of one machine
  int slot = 0;           // PERSEUS_ELASTIC_SLOT; see Topology::slot_of
  std::string machine;    // boot id and network namespace; ranks with equal ones can share memory
  Nonce nonce{};          // rank 0's identifies the job
  Nonce process{};        // see KeptLinks
  std::vector<Endpoint> tcp;
  std::string unix_name;
  Processors processors;                                    // that this process may run on
  std::vector<Processors> caches;                           // the last-level caches over these
  std::string thread_affinity;                              // its PERSEUS_THREAD_AFFINITY
  std::vector<std::pair<std::string, std::string>> agreed;  // settings that all must share
  std::string experience;                                   // see Mesh::create

  // Without endpoints.
  static AddressCard of_this_process(const Settings& settings);
  std::string pack() const;
  static Result<AddressCard> unpack(const std::string& packed);

  bool same_host(const AddressCard& other) const {
    return host_name == other.host_name && machine == other.machine;
  }
};

// Returns all ranks' cards from what the bootstrap has gathered, or the same error on every rank if
// one cannot take part, runs another version, or has other settings than rank 0.
Result<std::vector<AddressCard>> unpack_cards(const std::vector<std::string>& packed);

Topology make_topology(int rank, const std::vector<AddressCard>& cards);

}  // namespace perseus
