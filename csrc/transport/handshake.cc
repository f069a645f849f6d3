#include "transport/handshake.h"

#include <sys/socket.h>

#include <cerrno>
#include <string_view>

#include "base/hmac.h"
#include "base/secret.h"

namespace perseus {

Nonce random_nonce() {
  Nonce nonce;
  random_bytes(nonce.size()).copy(reinterpret_cast<char*>(nonce.data()), nonce.size());
  return nonce;
}

Mac prove(const std::string& secret, Role role, const Hello& hello, const Nonce& challenge) {
  std::string text(1, static_cast<char>(role));
  text.append(reinterpret_cast<const char*>(&hello), sizeof hello);
  text.append(reinterpret_cast<const char*>(challenge.data()), challenge.size());
  return hmac_sha256(secret, text);
}

bool is_proof(const Mac& mac, const std::string& secret, Role role, const Hello& hello,
              const Nonce& challenge) {
  const Mac expected = prove(secret, role, hello, challenge);
  const auto view = [](const Mac& m) {
    return std::string_view(reinterpret_cast<const char*>(m.data()), m.size());
  };
  return equal_in_constant_time(view(mac), view(expected));
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
