#include "base/output_file.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <optional>
#include <utility>

#include "base/user_name.h"

namespace perseus {
namespace {

constexpr int kMostLinks = 40;
constexpr int kToWrite = O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;

Status reason(int error) { return Status::invalid_argument(std::strerror(error)); }

bool is_trusted(uid_t user) { return user == geteuid() || user == 0; }

// Checks what has been opened, which was there before.
Result<FileDescriptor> checked(FileDescriptor file) {
  struct stat found{};
  if (fstat(file.get(), &found) != 0) return reason(errno);
  if (!is_trusted(found.st_uid)) {
    return Status::invalid_argument("it belongs to " + user_name(found.st_uid) +
                                    "; remove it, or name a file in a folder of your own");
  }
  if (S_ISREG(found.st_mode) && found.st_nlink > 1) {
    return Status::invalid_argument(
        "it has " + std::to_string(found.st_nlink) +
        " names (hard links), so another file would be overwritten with it; remove it");
  }
  if (S_ISBLK(found.st_mode)) return Status::invalid_argument("it is a block device");
  return file;
}

// The way to a file, name by name, so that each link is seen before it is followed.
class Way {
 public:
  explicit Way(const std::string& path) : rest_(path) {}

  Result<FileDescriptor> open_end() {
    if (rest_.empty()) return reason(ENOENT);
    PERSEUS_RETURN_IF_ERROR(begin());
    while (true) {
      const std::string name = take_name();
      if (rest_.empty()) {
        if (std::optional<Result<FileDescriptor>> opened = open_here(name))
          return *std::move(opened);
      } else {
        PERSEUS_RETURN_IF_ERROR(enter(name));
      }
    }
  }

 private:
  Status begin() {
    folder_ = open_at(AT_FDCWD, rest_[0] == '/' ? "/" : ".", O_PATH | O_DIRECTORY);
    return folder_ ? Status::ok() : reason(errno);
  }

  static FileDescriptor open_at(int folder, const std::string& name, int flags) {
    return FileDescriptor(openat(folder, name.c_str(), flags | O_CLOEXEC, 0666));
  }

  // A slash stays in rest_ if it is all that follows, as then the name must be that of a folder.
  std::string take_name() {
    const size_t begin = std::min(rest_.find_first_not_of('/'), rest_.size());
    const size_t end = std::min(rest_.find('/', begin), rest_.size());
    std::string name = rest_.substr(begin, end - begin);
    rest_.erase(0, end);
    return name.empty() ? "." : name;
  }

  Status enter(const std::string& name) {
    FileDescriptor next = open_at(folder_.get(), name, O_PATH | O_DIRECTORY | O_NOFOLLOW);
    if (!next && (errno == ENOTDIR || errno == ELOOP)) return follow(name);
    if (!next) return reason(errno);
    folder_ = std::move(next);
    return {};
  }

  // Nothing if it was a link, which is followed, or has changed meanwhile.
  std::optional<Result<FileDescriptor>> open_here(const std::string& name) {
    FileDescriptor file = open_at(folder_.get(), name, kToWrite | O_NOFOLLOW);
    if (file) return checked(std::move(file));
    if (errno == ENOENT) {
      // A file that nobody has made before needs no check.
      file = open_at(folder_.get(), name, kToWrite | O_CREAT | O_EXCL);
      if (file) return Result<FileDescriptor>(std::move(file));
      if (errno == EEXIST && ++changes_ < kMostLinks) {
        rest_ = name;
        return std::nullopt;
      }
    }
    if (errno == ENXIO) return Status::invalid_argument("it is a pipe that nobody reads");
    if (errno != ELOOP) return reason(errno);
    if (is_kernels_own()) {
      file = open_at(folder_.get(), name, kToWrite);
      return file ? checked(std::move(file)) : reason(errno);
    }
    const Status followed = follow(name);
    if (!followed.is_ok()) return followed;
    return std::nullopt;
  }

  // Links such as /proc/self/fd/1 have no path that could be followed.
  bool is_kernels_own() const {
    struct statfs system{};
    return fstatfs(folder_.get(), &system) == 0 && system.f_type == PROC_SUPER_MAGIC;
  }

  Status follow(const std::string& name) {
    if (is_kernels_own()) {
      FileDescriptor next = open_at(folder_.get(), name, O_PATH | O_DIRECTORY);
      if (!next) return reason(errno);
      folder_ = std::move(next);
      return {};
    }
    const FileDescriptor link = open_at(folder_.get(), name, O_PATH | O_NOFOLLOW);
    struct stat found{};
    if (!link || fstat(link.get(), &found) != 0) return reason(errno);
    if (!S_ISLNK(found.st_mode)) return reason(ENOTDIR);
    if (!is_trusted(found.st_uid)) {
      return Status::invalid_argument("'" + name + "' is a symbolic link of " +
                                      user_name(found.st_uid) +
                                      "; remove it, or name a file in a folder of your own");
    }
    if (++changes_ > kMostLinks) return reason(ELOOP);
    char target[PATH_MAX];
    const ssize_t size = readlinkat(link.get(), "", target, sizeof target);
    if (size <= 0) return reason(size < 0 ? errno : ENOENT);
    rest_.insert(0, target, static_cast<size_t>(size));
    return target[0] == '/' ? begin() : Status::ok();
  }

  std::string rest_;  // from folder_ on
  FileDescriptor folder_;
  int changes_ = 0;
};

// A pipe whose reader has gone would end the process.
class WithoutPipeSignal {
 public:
  WithoutPipeSignal() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  WithoutPipeSignal(const WithoutPipeSignal&) = delete;
  ~WithoutPipeSignal() {
    if (sigismember(&before_, SIGPIPE) != 0) return;
    const timespec now{};
    while (sigtimedwait(&pipe_, nullptr, &now) > 0) {
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

 private:
  sigset_t pipe_, before_;
};

}  // namespace

Result<FileDescriptor> open_output_file(const std::string& path) { return Way(path).open_end(); }

Status write_all(const FileDescriptor& file, std::string_view bytes,
                 std::chrono::milliseconds patience) {
  const WithoutPipeSignal guard;
  while (!bytes.empty()) {
    const ssize_t written = write(file.get(), bytes.data(), bytes.size());
    if (written >= 0) {
      bytes.remove_prefix(static_cast<size_t>(written));
    } else if (errno == EAGAIN) {
      pollfd entry{file.get(), POLLOUT, 0};
      if (poll(&entry, 1, static_cast<int>(patience.count())) == 0) {
        return Status::timed_out("nobody reads it");
      }
    } else if (errno != EINTR) {
      return reason(errno);
    }
  }
  return {};
}

}  // namespace perseus
