#include "bootstrap/spare_ports.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "base/hmac.h"

namespace perseus {
namespace {

// A firewall may swallow calls to them, so there are few.
constexpr int kSpare = 2;
// Below the range from which systems assign ports, so that they are not taken by chance.
constexpr int kFirstPort = 15000;
constexpr int kPorts = 16000;

}  // namespace

void add_spare_ports(LaunchEnvironment& launch) {
  if (!launch.rank_0_serves || !launch.any_port || launch.meets_locally) return;
  const HostPort known = launch.rendezvous[0];
  const Sha256Digest digest =
      hmac_sha256(launch.secret, "spare ports beside " + std::to_string(known.port));
  for (int i = 0; i < kSpare; ++i) {
    const int port = kFirstPort + (digest[2 * i] << 8 | digest[2 * i + 1]) % kPorts;
    const auto is_it = [&](const HostPort& place) { return place.port == port; };
    if (std::ranges::any_of(launch.rendezvous, is_it)) continue;
    launch.rendezvous.push_back({known.host, static_cast<uint16_t>(port)});
  }
}

}  // namespace perseus
