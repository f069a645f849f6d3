// The numbers that ranks announce to each other with the world's ballots; see perseus_announce.
// Begins anew with each engine. Any thread.
#pragma once

#include <atomic>
#include <cstdint>

namespace perseus {

class Announcements {
 public:
  // This rank's later ballots carry the number, unless it has announced a higher one.
  void announce(uint64_t number) { raise(own_, number); }
  // The highest number that this rank has announced; 0: none.
  uint64_t own() const { return own_.load(std::memory_order_acquire); }

  // An operation that was agreed on with this number has completed here.
  void note_completed(uint64_t number) { raise(announced_, number); }
  // The highest number of an operation that has completed here; 0: none had any.
  uint64_t announced() const { return announced_.load(std::memory_order_acquire); }

 private:
  static void raise(std::atomic<uint64_t>& highest, uint64_t number) {
    uint64_t seen = highest.load(std::memory_order_relaxed);
    while (number > seen &&
           !highest.compare_exchange_weak(seen, number, std::memory_order_acq_rel)) {
    }
  }

  std::atomic<uint64_t> own_{0};
  std::atomic<uint64_t> announced_{0};
};

}  // namespace perseus
