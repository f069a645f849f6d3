// Which process listens at a TCP port, and who at most of them, for errors.
#pragma once

#include <cstdint>
#include <string>

namespace perseus {

// "process 4711 of user 1001 (guest)"; "a process of user 1001 (guest)" if the kernel does not say
// which, as of other users' processes; empty if nobody listens there.
std::string holder_of_port(uint16_t port);

// Says what is in the way where no port is free: "user 1001 (guest) listens at 28000 of the 28232
// ports that the system assigns"; empty if nobody listens at any.
std::string holder_of_assigned_ports();

}  // namespace perseus
