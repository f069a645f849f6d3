// Which process listens at a TCP port, for errors.
#pragma once

#include <cstdint>
#include <string>

namespace perseus {

// "process 4711 of user 1001 (guest)"; "a process of user 1001 (guest)" if the kernel does not say
// which, as of other users' processes; empty if nobody listens there.
std::string holder_of_port(uint16_t port);

}  // namespace perseus
