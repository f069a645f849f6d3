#include "base/user_name.h"

#include <pwd.h>

namespace perseus {

std::string user_name(uid_t user) {
  passwd entry{};
  passwd* found = nullptr;
  char buffer[4096];
  std::string text = "user " + std::to_string(user);
  if (getpwuid_r(user, &entry, buffer, sizeof buffer, &found) == 0 && found != nullptr) {
    text += " (" + std::string(entry.pw_name) + ")";
  }
  return text;
}

}  // namespace perseus
