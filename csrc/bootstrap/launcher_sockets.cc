#include "bootstrap/launcher_sockets.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <string_view>

namespace perseus {
namespace {

// The number in a variable of the environment, or -1.
int64_t number_in(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr) return -1;
  const std::string_view text = value;
  int64_t number = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() ? number : -1;
}

// The number of a socket's inode, which no other socket has at the same time; -1 for another file.
int64_t inode_of(int fd) {
  struct stat about{};
  const bool is_socket = fstat(fd, &about) == 0 && S_ISSOCK(about.st_mode);
  return is_socket ? static_cast<int64_t>(about.st_ino) : -1;
}

// A socket that is held. It is told by its inode, since the program may have closed the descriptor,
// and opened another file that got its number.
class HeldSocket {
 public:
  // If `inode` is given, a socket with another one is not the launcher's.
  void hold(int64_t fd, int64_t inode) {
    if (fd < 0 || fd > INT32_MAX || inode < 0 || inode_of(static_cast<int>(fd)) != inode) return;
    fcntl(static_cast<int>(fd), F_SETFD, FD_CLOEXEC);
    inode_.store(inode);
    fd_.store(static_cast<int>(fd));
  }
  void release() {
    const int fd = get();
    if (fd >= 0) fcntl(fd, F_SETFD, 0);
    fd_.store(-1);
  }
  // Async-signal-safe.
  void close_in_child() {
    const int fd = get();
    if (fd >= 0) close(fd);
    fd_.store(-1);
  }
  int get() const {
    const int fd = fd_.load();
    return fd >= 0 && inode_of(fd) == inode_.load() ? fd : -1;
  }

 private:
  std::atomic<int> fd_{-1};
  std::atomic<int64_t> inode_{-1};
};

HeldSocket news, pmi;

}  // namespace

void hold_launcher_sockets() {
  [[maybe_unused]] static const int registered = pthread_atfork(nullptr, nullptr, [] {
    news.close_in_child();
    pmi.close_in_child();
  });
  news.hold(number_in("PERSEUS_NEWS_FD"), number_in("PERSEUS_NEWS_INODE"));
  const int64_t fd = number_in("PMI_FD");
  if (fd >= 0 && fd <= INT32_MAX) pmi.hold(fd, inode_of(static_cast<int>(fd)));
}

void hand_on_launcher_sockets() { news.release(); }

int news_socket() { return news.get(); }

}  // namespace perseus
