#include "base/core_distance.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <thread>

#include "base/pin_thread.h"
#include "base/start_thread.h"

namespace perseus {
namespace {

using Clock = std::chrono::steady_clock;

// The least of many short batches counts, since an interruption lengthens a batch.
constexpr uint32_t kBatches = 20;
constexpr uint32_t kRoundsPerBatch = 100;
constexpr auto kPatience = std::chrono::milliseconds(200);
constexpr uint32_t kLooksPerClock = 1024;

// Two threads write to a cache line in turns.
class Rally {
 public:
  // Returns nanoseconds a round, of the fastest batch; 0 if none came to its end in time. For the
  // thread that begins.
  double lead() {
    double least = 0;
    for (uint32_t batch = 0; batch < kBatches; ++batch) {
      const Clock::time_point begin = Clock::now();
      for (uint32_t round = 0; round < kRoundsPerBatch; ++round) {
        const uint32_t turn = 2 * (batch * kRoundsPerBatch + round);
        ball_.store(turn + 1, std::memory_order_release);
        if (!await(turn + 2)) return least;
      }
      const std::chrono::duration<double, std::nano> taken = Clock::now() - begin;
      const double each = taken.count() / kRoundsPerBatch;
      least = least == 0 ? each : std::min(least, each);
    }
    return least;
  }

  // For the other thread.
  void follow() {
    for (uint32_t round = 0; round < kBatches * kRoundsPerBatch; ++round) {
      if (!await(2 * round + 1)) return;
      ball_.store(2 * round + 2, std::memory_order_release);
    }
  }

 private:
  // Without a pause instruction, which takes as long as what is measured.
  bool await(uint32_t turn) const {
    for (uint32_t looks = 1; ball_.load(std::memory_order_acquire) != turn; ++looks) {
      if (looks % kLooksPerClock == 0 && Clock::now() >= end_) return false;
    }
    return true;
  }

  alignas(128) std::atomic<uint32_t> ball_{0};
  alignas(128) const Clock::time_point end_ = Clock::now() + kPatience;
};

Status may_run_on(int processor) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  sched_getaffinity(0, sizeof allowed, &allowed);
  if (processor >= 0 && processor < CPU_SETSIZE && CPU_ISSET(processor, &allowed)) return {};
  return Status::invalid_argument("the processor is " + std::to_string(processor) +
                                  "; it must be one that this process may run on");
}

}  // namespace

Result<double> core_distance(int first, int second) {
  for (const int processor : {first, second}) {
    PERSEUS_RETURN_IF_ERROR(may_run_on(processor));
  }
  if (first == second) {
    return Status::invalid_argument("both processors are " + std::to_string(first) +
                                    "; they must be different");
  }
  Rally rally;
  double round = 0;
  std::thread leader, follower;
  Status status = start_thread(leader, "measuring distances", [&] {
    pin_thread_to(first);
    round = rally.lead();
  });
  if (status.is_ok()) {
    status = start_thread(follower, "measuring distances", [&] {
      pin_thread_to(second);
      rally.follow();
    });
  }
  for (std::thread* thread : {&leader, &follower}) {
    if (thread->joinable()) thread->join();
  }
  PERSEUS_RETURN_IF_ERROR(status);
  if (round == 0) {
    return Status::timed_out("processors " + std::to_string(first) + " and " +
                             std::to_string(second) + " never ran at once within 0.2 s");
  }
  return round / 2;
}

}  // namespace perseus
