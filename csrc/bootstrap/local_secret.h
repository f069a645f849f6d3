// A secret for ranks that are all on one host and whose launcher hands out none. Rank 0 makes it
// and gives it only to processes of the same user. Each side learns the other's user from the
// kernel, so this does not depend on anything that others could guess, read or leave behind.
#pragma once

#include <string>

#include "base/status.h"
#include "bootstrap/socket.h"

namespace perseus {

// Makes a secret and, from a thread of its own, gives it to every process of this user that asks
// for it under `name`, until this process ends. kUnreachable if the name is taken.
Result<std::string> serve_local_secret(const std::string& name);

// Asks for the secret that is served under `name`, until the deadline, since the server may start
// later. kUnreachable if no process serves it, or one of another user.
Result<std::string> fetch_local_secret(const std::string& name, Socket::Clock::time_point deadline);

}  // namespace perseus
