// A secret for the ranks of one host whose launcher hands out none: rank 0 makes it, and gives it
// to processes of the same user alone. The kernel says who calls and who answers, so nothing that
// others could guess, read or leave behind decides.
#pragma once

#include <string>

#include "base/status.h"
#include "bootstrap/socket.h"

namespace perseus {

// Makes a secret and gives it to whoever asks under `name` and is of our user, from a thread that
// sleeps until then, for as long as the process lives. kUnreachable if the name is taken.
Result<std::string> serve_local_secret(const std::string& name);

// Asks for the secret that is served under `name`, until the deadline: who serves may come later.
// kUnreachable if nobody does, or another user.
Result<std::string> fetch_local_secret(const std::string& name, Socket::Clock::time_point deadline);

}  // namespace perseus
