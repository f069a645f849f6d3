#include "base/session.h"

#include <cstring>

namespace perseus {
namespace {

// The extract step and the expand step of HKDF (RFC 5869), with one block of output each.
Mac key_of(std::string_view secret, std::string_view transcript, Role sender) {
  const Mac extracted = HmacKey("perseus session").of(secret);
  const HmacKey key({reinterpret_cast<const char*>(extracted.data()), extracted.size()});
  const char role = static_cast<char>(sender);
  return key.of("perseus messages of ", {{&role, 1}, transcript, {"\x01", 1}});
}

Role other(Role role) { return role == Role::kInitiator ? Role::kAcceptor : Role::kInitiator; }

}  // namespace

MessageSequence::MessageSequence(const Mac& key)
    : key_({reinterpret_cast<const char*>(key.data()), key.size()}) {}

MessageTag MessageSequence::next(std::initializer_list<std::string_view> pieces) {
  char counter[sizeof counter_];
  std::memcpy(counter, &counter_, sizeof counter);
  ++counter_;
  const Mac mac = key_.of({counter, sizeof counter}, pieces);
  MessageTag tag;
  std::memcpy(tag.data(), mac.data(), tag.size());
  return tag;
}

bool MessageSequence::is_next(std::string_view tag,
                              std::initializer_list<std::string_view> pieces) {
  return equal_in_constant_time(tag, view(next(pieces)));
}

// The last counter takes the place of a message's, which no message reaches.
Mac MessageSequence::derive_key(std::string_view purpose) const {
  constexpr uint64_t kNoMessage = UINT64_MAX;
  char counter[sizeof kNoMessage];
  std::memcpy(counter, &kNoMessage, sizeof counter);
  return key_.of({counter, sizeof counter}, {purpose});
}

Session::Session(std::string_view secret, std::string_view transcript, Role mine)
    : outgoing(key_of(secret, transcript, mine)),
      incoming(key_of(secret, transcript, other(mine))) {}

}  // namespace perseus
