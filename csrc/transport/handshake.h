// The first four messages on every connection between ranks, over TCP and Unix sockets alike. Each
// side proves that it knows the job's secret by an HMAC over both sides' fresh nonces and over what
// is being asked for; until then nothing else that it sends is acted on.
//
//   initiator -> Hello       who I am, whom I want, what for, my nonce
//   acceptor  -> Challenge   my nonce, my proof
//   initiator -> Proof       my proof
//   acceptor  -> Welcome     go ahead, or no
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <type_traits>

namespace perseus {

using Nonce = std::array<uint8_t, 16>;
using Mac = std::array<uint8_t, 32>;

Nonce random_nonce();

struct Hello {
  static constexpr uint64_t kMagic = 0x3173756573726550;  // "Perseus1"
  enum Purpose : uint16_t {
    kTcpChannel = 1,
    kShmChannel = 2,
    kConnectRequest = 3,  // the higher of two ranks asks the lower one to connect
  };

  uint64_t magic = kMagic;
  Nonce job{};  // of this world; keeps connections of another init or job apart
  Nonce nonce{};
  uint32_t from = 0, to = 0;
  uint16_t purpose = 0;
  uint16_t index = 0;  // which of the link's channels
  uint16_t total = 0;  // how many it has
  uint16_t reserved = 0;
};
static_assert(sizeof(Hello) == 56 && std::is_trivially_copyable_v<Hello>);

struct Challenge {
  Nonce nonce{};
  Mac mac{};
};
struct Proof {
  Mac mac{};
};
struct Welcome {
  enum Verdict : uint32_t { kWelcome = 1, kNotNow = 2 };  // kNotNow: that link is over here
  uint32_t verdict = 0;
};

enum class Role : char { kInitiator = 'i', kAcceptor = 'a' };

// What `role` sends to prove itself.
Mac prove(const std::string& secret, Role role, const Hello& hello, const Nonce& challenge);
bool is_proof(const Mac& mac, const std::string& secret, Role role, const Hello& hello,
              const Nonce& challenge);

// Reads one fixed-size message from a non-blocking socket, and not a byte more, since what follows
// belongs to somebody else.
class MessageReader {
 public:
  enum class Outcome { kComplete, kPartial, kClosed };

  template <typename T>
  Outcome read(int fd, T& message) {
    static_assert(std::is_trivially_copyable_v<T>);
    return read_bytes(fd, &message, sizeof(T));
  }

 private:
  Outcome read_bytes(int fd, void* message, size_t size);
  size_t got_ = 0;
};

// Sends a message whole; false if that fails. So short a message always fits into an empty buffer.
bool send_bytes(int fd, const void* message, size_t size);
template <typename T>
bool send_message(int fd, const T& message) {
  return send_bytes(fd, &message, sizeof(T));
}

}  // namespace perseus
