// AES-256-GCM over the messages of one connection in one direction: each is proven to be the next
// one that the other end has sent, and its body may be encrypted, too (NIST SP 800-38D, RFC 5116).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "base/hmac.h"
#include "base/openssl.h"
#include "base/session.h"

namespace perseus {

// Both ends have one for each direction. The nonce is the message's number, so a message that is
// changed, added, left out, repeated or moved does not pass. Each key seals some bytes and makes
// way for the next: a network moves within minutes more than one key should. One thread at a time.
class SealedSequence {
 public:
  // With 2^29 blocks of AES, the odds are 2^70 to 1 against telling what is sealed from random
  // bytes.
  static constexpr uint64_t kBytesPerKey = uint64_t{8} << 30;

  SealedSequence(const OpenSsl& library, const Mac& key, uint64_t bytes_per_key = kBytesPerKey);
  SealedSequence(SealedSequence&&) = default;

  // Seals the next message. Encrypts `size` bytes of `body` to `sealed`, which may be the same.
  // Returns false if OpenSSL fails, which takes a lack of memory.
  bool encrypt(std::string_view header, const std::byte* body, size_t size, std::byte* sealed,
               MessageTag& tag);
  // The same for a message that both may read.
  bool authenticate(std::string_view header, const std::byte* body, size_t size, MessageTag& tag);

  // Decrypts the next message in place. Returns whether it is what was sealed; if not, its bytes
  // are worth nothing.
  bool decrypt(std::string_view header, std::byte* body, size_t size, std::string_view tag);
  bool verify(std::string_view header, const std::byte* body, size_t size, std::string_view tag);

 private:
  struct Free {
    void (*free)(EvpCipherContext*);
    void operator()(EvpCipherContext* context) const { free(context); }
  };

  // Begins the next message.
  bool begin(bool encrypts, size_t size);
  // Gives the context the key, or after many bytes the next one.
  bool take_key(bool encrypts);
  // Adds to what is authenticated.
  bool add(const void* data, size_t size);
  bool get_tag(MessageTag& tag);
  bool has_tag(std::string_view tag);

  const OpenSsl* library_;
  std::unique_ptr<EvpCipherContext, Free> context_;
  Mac chain_;             // where this key and the next one come from
  bool has_key_ = false;  // whether the context has the key
  const uint64_t bytes_per_key_;
  uint64_t bytes_ = 0;    // sealed with the key
  uint64_t counter_ = 0;  // messages so far
};

}  // namespace perseus
