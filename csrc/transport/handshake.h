// The first four messages on every connection between ranks, over TCP and Unix sockets alike. Each
// side proves that it knows the job's secret by an HMAC over both sides' fresh nonces and over the
// request. Until then the other side acts on nothing else that it sends.
//
//   initiator -> Hello       its rank, the rank it wants, the purpose, its nonce
//   acceptor  -> Challenge   its nonce and its proof
//   initiator -> Proof       its proof
//   acceptor  -> Welcome     accepted or not
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
  Nonce job{};  // identifies this world, as opposed to that of another init or job
  Nonce nonce{};
  uint32_t from = 0, to = 0;
  uint16_t purpose = 0;
  uint16_t index = 0;  // which of the link's channels
  uint16_t total = 0;  // how many channels the link has
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
  enum Verdict : uint32_t { kWelcome = 1, kNotNow = 2 };  // kNotNow: the link has ended here
  uint32_t verdict = 0;
};

enum class Role : char { kInitiator = 'i', kAcceptor = 'a' };

// The proof that `role` sends.
Mac prove(const std::string& secret, Role role, const Hello& hello, const Nonce& challenge);
bool is_proof(const Mac& mac, const std::string& secret, Role role, const Hello& hello,
              const Nonce& challenge);

// Reads one message of fixed size from a non-blocking socket, and not a byte more, since what
// follows is for other code.
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

// Sends a whole message; returns whether that succeeded. These messages are so short that they
// always fit into an empty socket buffer.
bool send_bytes(int fd, const void* message, size_t size);
template <typename T>
bool send_message(int fd, const T& message) {
  return send_bytes(fd, &message, sizeof(T));
}

}  // namespace perseus
