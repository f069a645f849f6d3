// After both ends of a connection have proved themselves, their messages are authentic, too: each
// carries a MAC under a key that only this connection has, over a counter and the message. So
// nobody in between can change, add, leave out, repeat or reorder a message unnoticed. It hides
// nothing.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string_view>

#include "base/hmac.h"

namespace perseus {

// The two ends of a connection.
enum class Role : char { kInitiator = 'i', kAcceptor = 'a' };

// A MAC of 128 bits, the first half of an HMAC (RFC 2104, section 5).
using MessageTag = std::array<char, 16>;

inline std::string_view view(const MessageTag& tag) { return {tag.data(), tag.size()}; }

// The messages of one connection in one direction. Both ends have one for each direction. One
// thread at a time.
class MessageSequence {
 public:
  // The tag of the next message, which consists of these pieces.
  MessageTag next(std::initializer_list<std::string_view> pieces);
  // Returns whether `tag` is that of the next message.
  bool is_next(std::string_view tag, std::initializer_list<std::string_view> pieces);
  // A key of this direction for another way to protect messages.
  Mac derive_key(std::string_view purpose) const;

 private:
  friend class Session;
  explicit MessageSequence(const Mac& key);

  HmacKey key_;
  uint64_t counter_ = 0;
};

// One end of a connection after the handshake.
class Session {
 public:
  // `transcript`: all that both ends have said so far, with a nonce of each. Whoever does not know
  // the secret, or has relayed other words, gets other keys.
  Session(std::string_view secret, std::string_view transcript, Role mine);

  MessageSequence outgoing, incoming;
};

}  // namespace perseus
