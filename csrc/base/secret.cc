#include "base/secret.h"

#include <sys/random.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>

namespace perseus {
namespace {

int digit_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

std::string random_bytes(size_t count) {
  std::string bytes(count, '\0');
  size_t filled = 0;
  while (filled < count) {
    const ssize_t n = getrandom(bytes.data() + filled, count - filled, 0);
    if (n > 0) {
      filled += n;
    } else if (errno != EINTR) {
      // Better that the job ends than that it runs with a secret that can be guessed.
      std::perror("perseus: getrandom");
      std::abort();
    }
  }
  return bytes;
}

std::string to_hex(std::string_view bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  hex.reserve(bytes.size() * 2);
  for (const char c : bytes) {
    hex += kDigits[static_cast<unsigned char>(c) >> 4];
    hex += kDigits[static_cast<unsigned char>(c) & 15];
  }
  return hex;
}

Result<std::string> from_hex(std::string_view hex) {
  const Status malformed = Status::invalid_argument(
      "the secret must be an even number of hexadecimal digits, and at least two");
  if (hex.empty() || hex.size() % 2 != 0) return malformed;
  std::string bytes;
  for (size_t i = 0; i < hex.size(); i += 2) {
    const int high = digit_value(hex[i]);
    const int low = digit_value(hex[i + 1]);
    if (high < 0 || low < 0) return malformed;
    bytes += static_cast<char>(high << 4 | low);
  }
  return bytes;
}

}  // namespace perseus
