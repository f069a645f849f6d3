// How errors call a user of this host.
#pragma once

#include <sys/types.h>

#include <string>

namespace perseus {

// "user 1001 (guest)", or without the name if there is none.
std::string user_name(uid_t user);

}  // namespace perseus
