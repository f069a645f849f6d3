// The first messages on every connection between ranks, over TCP and Unix sockets alike. The
// initiator proves first that it knows the job's secret, so an acceptor answers nobody else. Until
// the other side has proved itself, each acts on nothing that it says.
//
//   acceptor  -> Greeting      its nonce
//   initiator -> Introduction  its rank, the rank and address that it has called, its nonce, and
//                              its proof: an HMAC over the greeting and all of that
//   acceptor  -> Welcome       its verdict, and the first tag of the session
//   initiator -> Confirmation  a tag, too: it has the welcome, and a link takes the connection
//
// The keys of the session come from the secret, the greeting and the introduction. So the tag of
// the welcome proves that the acceptor knows the secret, and control messages have tags under the
// same keys (tcp/tcp_channel.h). A program in between that passes the messages on cannot change
// them, and is noticed by the address.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

#include "base/file_descriptor.h"
#include "base/hmac.h"
#include "base/session.h"
#include "transport/endpoint.h"

namespace perseus {

using Nonce = std::array<uint8_t, 16>;

Nonce random_nonce();

struct Greeting {
  static constexpr uint64_t kMagic = 0x3273756573726550;  // "Perseus2"
  uint64_t magic = kMagic;
  Nonce nonce{};
};
static_assert(sizeof(Greeting) == 24 && std::is_trivially_copyable_v<Greeting>);

struct Hello {
  enum Purpose : uint16_t {
    kTcpChannel = 1,
    kShmChannel = 2,
    kConnectRequest = 3,  // the higher of two ranks asks the lower one to connect
  };

  Nonce job{};  // identifies this world, as opposed to that of another init or job
  Nonce nonce{};
  Sha256Digest called{};  // the address that was called; see digest_of
  uint32_t from = 0, to = 0;
  uint16_t purpose = 0;
  uint16_t index = 0;  // which of the link's channels
  uint16_t total = 0;  // how many channels the link has
  uint16_t reserved = 0;
};
static_assert(sizeof(Hello) == 80 && std::is_trivially_copyable_v<Hello>);

struct Introduction {
  Hello hello;
  Mac proof{};
};

struct Welcome {
  enum Verdict : uint32_t {
    kWelcome = 1,
    kNotNow = 2,        // the link has ended here
    kNotCalledHere = 3  // the initiator has called another address: somebody passes messages on
  };
  uint32_t verdict = 0;
  MessageTag tag{};
};

struct Confirmation {
  MessageTag tag{};
};

// Returns the digest of the address and port, or of the name of a Unix socket.
Sha256Digest digest_of(const Endpoint& where);

Mac prove(std::string_view secret, const Greeting& greeting, const Hello& hello);
// Returns whether its sender knows the secret and has received this greeting.
bool is_proven(std::string_view secret, const Greeting& greeting, const Introduction& introduction);
Session make_session(std::string_view secret, const Greeting& greeting,
                     const Introduction& introduction, Role mine);

// A connection after the handshake.
struct ProvenConnection {
  FileDescriptor fd;
  Session session;
};

template <typename T>
std::string_view bytes_of(const T& message) {
  static_assert(std::is_trivially_copyable_v<T>);
  return {reinterpret_cast<const char*>(&message), sizeof message};
}
inline std::string_view bytes_of(const std::byte* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

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
  static_assert(std::is_trivially_copyable_v<T>);
  return send_bytes(fd, &message, sizeof(T));
}

}  // namespace perseus
