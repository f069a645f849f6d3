// A key that the ranks of one world have in common, and nobody else. What goes to several ranks at
// once, such as an object that all of them unpickle, carries a tag under it.
#pragma once

#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

#include "base/hmac.h"
#include "base/session.h"

namespace perseus {

// Ends an error that says which rank's message has a wrong tag.
inline constexpr std::string_view kForged =
    " was changed on the way, or does not come from that rank, so nothing was done with it; find "
    "out what stands between the hosts (a program that passes messages on, or a faulty network), "
    "and start the job again";

// Any thread.
class WorldKey {
 public:
  // `introductions`: what every rank has told all others, by rank, with a random number in it. So
  // two worlds of one job, which has one secret, have different keys.
  WorldKey(std::string_view secret, std::span<const std::string> introductions);

  // The tag of these fields, of which there are eight at most. `purpose` keeps tags for different
  // uses apart; it is short and holds no zero byte. Compare tags by equal_in_constant_time.
  MessageTag tag(std::string_view purpose, std::initializer_list<std::string_view> fields) const;

  // The world's engines call it so to their launcher; in hexadecimal. Other processes of the job do
  // not know the name, so it shows which words are an engine's.
  std::string name() const;

 private:
  HmacKey key_;
};

}  // namespace perseus
