// The operation that the user has submitted last on this rank, for what others are told of it.
// Engine thread, except where said.
#pragma once

#include <time.h>

#include <atomic>
#include <chrono>
#include <string>

#include "state/operation.h"

namespace perseus {

// "'allreduce.x' in process set 3"
std::string shown(int32_t set, const std::string& key);

class LastSubmission {
 public:
  using Time = std::chrono::steady_clock::time_point;

  void note(const Operation& operation) {
    const bool is_users = operation.name_id >= 0;
    if (!is_users) return;
    in_roll_call_.store(nullptr, std::memory_order_relaxed);
    set_ = operation.process_set;
    key_ = operation.key;
    at_ = operation.submitted_at;
  }

  // All ranks were in a roll call for an operation of this name, whose entry is never freed. The
  // thread that was. The time is a few milliseconds old, since it takes less to find out.
  void note_roll_call(const Names::Entry& name) {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    const std::chrono::nanoseconds since_boot =
        std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
    roll_call_at_.store(since_boot.count(), std::memory_order_relaxed);
    in_roll_call_.store(&name, std::memory_order_release);
  }

  bool is_none() const { return in_roll_call() == nullptr && key_.empty(); }
  Time at() const {
    if (in_roll_call() == nullptr) return at_;
    return Time(std::chrono::nanoseconds(roll_call_at_.load(std::memory_order_relaxed)));
  }
  // As it is to be shown; empty if there is none.
  std::string text() const {
    if (const Names::Entry* name = in_roll_call()) {
      return shown(name->process_set, std::string(name->key));
    }
    return is_none() ? "" : shown(set_, key_);
  }

 private:
  const Names::Entry* in_roll_call() const { return in_roll_call_.load(std::memory_order_acquire); }

  // Null unless the last operation was done in a roll call.
  std::atomic<const Names::Entry*> in_roll_call_{nullptr};
  std::atomic<int64_t> roll_call_at_{0};  // nanoseconds of the steady clock
  int32_t set_ = 0;
  std::string key_;
  Time at_;
};

}  // namespace perseus
