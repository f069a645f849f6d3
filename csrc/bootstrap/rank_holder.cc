#include "bootstrap/rank_holder.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

#include "base/sha256.h"
#include "bootstrap/environment.h"

namespace perseus {
namespace {

// The process that the variable names, and the rank: "4711 PERSEUS_RANK=1/4@10.0.0.7:36593".
struct Holder {
  pid_t process = 0;
  std::string_view rank;
};

Holder current_holder() {
  const char* value = std::getenv(kRankHeldBy);
  if (value == nullptr) return {};
  const std::string_view text = value;
  Holder holder;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), holder.process);
  if (error != std::errc() || end == text.data() + text.size()) return {};
  holder.rank = text.substr(end - text.data() + 1);
  return holder;
}

// A file without a name that all processes share which were forked since the library was loaded.
// They lock bytes of it: nobody but the kernel says which process has a lock, and no other process
// can give it up. Locks are not inherited, and end with their process.
class LockFile {
 public:
  LockFile() : fd_(memfd_create("perseus ranks", MFD_CLOEXEC)) {
    if (fd_ >= 0 && fstat(fd_, &about_) != 0) fd_ = -1;
  }

  // Returns the process that has the lock; 0 if this one has it now, or if there is no file.
  pid_t lock(off_t byte) const {
    while (is_open()) {
      struct flock request = of(F_WRLCK, byte);
      if (fcntl(fd_, F_SETLK, &request) == 0) return 0;
      if (errno != EAGAIN && errno != EACCES && errno != EINTR) return 0;
      if (fcntl(fd_, F_GETLK, &request) == 0 && request.l_type != F_UNLCK) return request.l_pid;
    }
    return 0;
  }

  void unlock(off_t byte) const {
    struct flock request = of(F_UNLCK, byte);
    if (is_open()) fcntl(fd_, F_SETLK, &request);
  }

 private:
  static struct flock of(short type, off_t byte) {
    struct flock request{};
    request.l_type = type;
    request.l_whence = SEEK_SET;
    request.l_start = byte;
    request.l_len = 1;
    return request;
  }

  // The program may have closed all descriptors that it does not know, and opened others.
  bool is_open() const {
    struct stat now{};
    return fd_ >= 0 && fstat(fd_, &now) == 0 && now.st_dev == about_.st_dev &&
           now.st_ino == about_.st_ino;
  }

  int fd_;
  struct stat about_{};
};

// Made when the library is loaded: a process may be forked before this one calls init.
const LockFile lock_file;

// The two bytes of a rank. Its holder has one from init to shutdown. The first holder has the other
// one until its process ends: what it starts may be the rank in its place after its shutdown, but
// cannot keep it from coming back.
struct Bytes {
  explicit Bytes(const std::string& rank) {
    const Sha256Digest digest = sha256(rank);
    uint32_t hash = 0;
    std::memcpy(&hash, digest.data(), sizeof hash);
    of_holder = off_t{hash} * 2;
    of_first_holder = of_holder + 1;
  }

  off_t of_holder, of_first_holder;
};

// A lock that a process has. A forked child inherits this word of it, but not the lock.
struct HeldLock {
  explicit HeldLock(off_t byte) : process(getpid()), byte(byte) {}

  pid_t process;
  off_t byte;
};

std::optional<HeldLock> as_holder, as_first_holder;

// Returns the process that holds the rank; 0 if this one has it now.
pid_t take_lock(const std::string& rank) {
  const Bytes bytes(rank);
  const bool was_first = as_first_holder && as_first_holder->process == getpid() &&
                         as_first_holder->byte == bytes.of_first_holder;
  const pid_t other = lock_file.lock(bytes.of_holder);
  if (other != 0) return was_first ? 0 : other;
  as_holder.emplace(bytes.of_holder);
  if (!was_first && lock_file.lock(bytes.of_first_holder) == 0) {
    as_first_holder.emplace(bytes.of_first_holder);
  }
  return 0;
}

void give_back_lock() {
  if (as_holder && as_holder->process == getpid()) lock_file.unlock(as_holder->byte);
  as_holder.reset();
}

// Tells ranks of different jobs apart: a rank may itself start a job, whose ranks inherit the
// variable as well.
std::string describe(const LaunchEnvironment& launch) {
  const char* name_space = std::getenv("PMIX_NAMESPACE");
  std::string job = name_space == nullptr ? "" : name_space;
  if (!launch.rendezvous.empty()) job = to_string(launch.rendezvous[0]);
  return launch.source + "=" + std::to_string(launch.rank) + "/" + std::to_string(launch.size) +
         "@" + job;
}

Status refusal(const std::string& how, pid_t holder, int rank) {
  return Status::invalid_argument(
      "this process was " + how + " process " + std::to_string(holder) + ", which is rank " +
      std::to_string(rank) +
      " of the job; it must not call init, since it would take that rank's place and its data "
      "would enter the sums of all ranks. Let the rank itself call init and all operations. Where "
      "a child only needs to know its parent's rank, PERSEUS_RANK and PERSEUS_SIZE tell it; in a "
      "forked child, rank() and size() do so without init. To work alone, set PERSEUS_RANK=0 and "
      "PERSEUS_SIZE=1 in the child before init");
}

}  // namespace

Status take_rank(const LaunchEnvironment* told) {
  const auto launch = told != nullptr ? Result<LaunchEnvironment>(*told)
                                      : read_launch_environment([] { return true; });
  // Malformed variables are reported by the bootstrap.
  if (!launch.is_ok() || launch.value().kind == LaunchEnvironment::Kind::kSingle) return {};
  const std::string rank = describe(launch.value());
  const Holder holder = current_holder();
  if (holder.process != 0 && holder.process != getpid() && holder.rank == rank) {
    return refusal("started by", holder.process, launch.value().rank);
  }
  if (const pid_t relative = take_lock(rank); relative != 0) {
    return refusal("forked from or beside", relative, launch.value().rank);
  }
  const std::string value = std::to_string(getpid()) + " " + rank;
  setenv(kRankHeldBy, value.c_str(), 1);
  return {};
}

void give_back_rank() {
  give_back_lock();
  if (current_holder().process == getpid()) unsetenv(kRankHeldBy);
}

}  // namespace perseus
