// The operation that the user has submitted last on this rank, for what others are told of it.
// Engine thread.
#pragma once

#include <chrono>
#include <string>

#include "state/operation.h"

namespace perseus {

// "'allreduce.x' in process set 3"
std::string shown(int32_t set, const std::string& key);

class LastSubmission {
 public:
  void note(const Operation& operation) {
    const bool is_users = operation.name_id >= 0;
    if (!is_users) return;
    set_ = operation.process_set;
    key_ = operation.key;
    at_ = operation.submitted_at;
  }

  bool is_none() const { return key_.empty(); }
  std::chrono::steady_clock::time_point at() const { return at_; }
  // As it is to be shown; empty if there is none.
  std::string text() const { return is_none() ? "" : shown(set_, key_); }

 private:
  int32_t set_ = 0;
  std::string key_;
  std::chrono::steady_clock::time_point at_;
};

}  // namespace perseus
