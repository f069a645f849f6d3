#include "transport/topology.h"

#include <algorithm>
#include <utility>

namespace perseus {
namespace {

int ranks_on_host(const Topology& topology, int host) {
  return static_cast<int>(std::count(topology.host_of.begin(), topology.host_of.end(), host));
}

}  // namespace

std::string Topology::name(int of_rank) const {
  std::string text = "rank " + std::to_string(of_rank);
  if (launched[of_rank] != of_rank) {
    text += " (launched as rank " + std::to_string(launched[of_rank]) + ")";
  }
  return text + " on " + host_names[host_of[of_rank]];
}

int Topology::local_rank_of(int of_rank) const {
  const auto place = [this](int of) { return std::pair(slot_of.empty() ? 0 : slot_of[of], of); };
  int before = 0;
  for (int other = 0; other < size; ++other) {
    before += host_of[other] == host_of[of_rank] && place(other) < place(of_rank);
  }
  return before;
}

int Topology::local_size() const { return ranks_on_host(*this, host_of[rank]); }

int Topology::cross_rank() const {
  const int local = local_rank();
  int before = 0;
  for (int host = 0; host < host_of[rank]; ++host) before += ranks_on_host(*this, host) > local;
  return before;
}

int Topology::cross_size() const {
  const int local = local_rank();
  int hosts = 0;
  for (int host = 0; host < static_cast<int>(host_names.size()); ++host) {
    hosts += ranks_on_host(*this, host) > local;
  }
  return hosts;
}

bool Topology::is_homogeneous() const {
  for (int host = 1; host < static_cast<int>(host_names.size()); ++host) {
    if (ranks_on_host(*this, host) != ranks_on_host(*this, 0)) return false;
  }
  return true;
}

}  // namespace perseus
