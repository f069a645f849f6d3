#include "transport/handshake.h"

#include <sys/socket.h>

#include <cerrno>

#include "base/secret.h"

namespace perseus {

Nonce random_nonce() {
  Nonce nonce;
  random_bytes(nonce.size()).copy(reinterpret_cast<char*>(nonce.data()), nonce.size());
  return nonce;
}

Sha256Digest digest_of(const Endpoint& where) { return sha256(where.to_string()); }

Mac prove(std::string_view secret, const Greeting& greeting, const Hello& hello) {
  return HmacKey(secret).of("perseus link", {bytes_of(greeting), bytes_of(hello)});
}

bool is_proven(std::string_view secret, const Greeting& greeting,
               const Introduction& introduction) {
  const Mac expected = prove(secret, greeting, introduction.hello);
  return equal_in_constant_time(bytes_of(introduction.proof), bytes_of(expected));
}

Session make_session(std::string_view secret, const Greeting& greeting,
                     const Introduction& introduction, Role mine) {
  std::string transcript(bytes_of(greeting));
  transcript += bytes_of(introduction);
  return Session(secret, transcript, mine);
}

MessageReader::Outcome MessageReader::read_bytes(int fd, void* message, size_t size) {
  while (got_ < size) {
    const ssize_t n = recv(fd, static_cast<char*>(message) + got_, size - got_, MSG_DONTWAIT);
    if (n > 0) {
      got_ += static_cast<size_t>(n);
    } else if (n < 0 && errno == EINTR) {
      continue;
    } else if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      return Outcome::kPartial;
    } else {
      return Outcome::kClosed;
    }
  }
  got_ = 0;
  return Outcome::kComplete;
}

bool send_bytes(int fd, const void* message, size_t size) {
  ssize_t n;
  do {
    n = send(fd, message, size, MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (n < 0 && errno == EINTR);
  return n == static_cast<ssize_t>(size);
}

}  // namespace perseus
