// The connections of callers that have not proved yet that they are of the job. At most a given
// number is held: if there are that many, a new caller takes the place of one that is chosen at
// random. If the oldest had to go, a flood of strangers would push out every caller of the job
// before it can answer, and would do so again each time that it calls. A random choice cannot be
// aimed at, so the job's callers, who call again, get through. With N places, R strangers a second,
// and a caller that takes T seconds to prove itself, one call succeeds with probability e^(-RT/N):
// 0.5 for 256 places, 7,000 strangers and 25 ms. Not thread-safe.
#pragma once

#include <poll.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "base/secret.h"

namespace perseus {

// The base of what a pool holds.
class PooledCaller {
  template <typename Caller>
  friend class CallerPool;
  size_t place_ = 0;
};

template <typename Caller>
class CallerPool {
 public:
  // `most`: at least one.
  explicit CallerPool(size_t most) : most_(most) {
    unsigned seed = 0;
    std::memcpy(&seed, random_bytes(sizeof seed).data(), sizeof seed);
    random_.seed(seed);
  }

  size_t size() const { return callers_.size(); }

  // Makes room for it if need be.
  Caller& add(std::unique_ptr<Caller> caller) {
    if (callers_.size() >= most_) evict_one();
    caller->place_ = callers_.size();
    callers_.push_back(std::move(caller));
    return *callers_.back();
  }

  // Destroys one caller; returns false if there is none.
  bool evict_one() {
    if (callers_.empty()) return false;
    take(*callers_[std::uniform_int_distribution<size_t>(0, callers_.size() - 1)(random_)]);
    return true;
  }

  // The caller leaves the pool: it has proved itself, or is to be destroyed.
  std::unique_ptr<Caller> take(const Caller& caller) {
    const size_t place = caller.place_;
    std::unique_ptr<Caller> taken = std::move(callers_[place]);
    if (place + 1 < callers_.size()) {
      callers_[place] = std::move(callers_.back());
      callers_[place]->place_ = place;
    }
    callers_.pop_back();
    return taken;
  }

  void clear() { callers_.clear(); }

 private:
  const size_t most_;
  std::vector<std::unique_ptr<Caller>> callers_;
  std::mt19937 random_;
};

// How many connections are accepted before those that have been accepted are read, and before data
// of the job is moved on.
inline constexpr int kAcceptedAtOnce = 16;

// Returns whether the errno says that file descriptors or the kernel's memory have run out.
inline bool is_exhaustion(int error) {
  return error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOBUFS;
}

// Returns whether a caller waits to be accepted. The kernel takes a descriptor before it looks, so
// accept reports exhaustion even if nobody calls, and then nobody has to give way.
inline bool has_caller(int listener) {
  pollfd entry{listener, POLLIN, 0};
  return poll(&entry, 1, 0) > 0;
}

}  // namespace perseus
