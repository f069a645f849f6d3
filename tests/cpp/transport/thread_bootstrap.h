// A bootstrap for ranks that are threads of one test program.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "bootstrap/bootstrap.h"

namespace perseus {

// Shared by the ranks, which must all gather the same number of times.
class ThreadRendezvous {
 public:
  explicit ThreadRendezvous(int size, std::string secret = "secret")
      : size_(size), secret_(std::move(secret)), values_(size) {}

  int size() const { return size_; }
  const std::string& secret() const { return secret_; }
  // The result of the last gather, once there has been one. Any thread.
  std::vector<std::string> wait_until_gathered() {
    std::unique_lock lock(mutex_);
    all_there_.wait(lock, [&] { return round_ != 0; });
    return gathered_;
  }

  Result<std::vector<std::string>> all_gather(int rank, const std::string& mine,
                                              std::chrono::milliseconds time_out) {
    std::unique_lock lock(mutex_);
    const int round = round_;
    values_[rank] = mine;
    if (++arrived_ == size_) {
      arrived_ = 0;
      ++round_;
      gathered_ = values_;
      all_there_.notify_all();
    } else if (!all_there_.wait_for(lock, time_out, [&] { return round_ != round; })) {
      return Status::timed_out("not all ranks came");
    }
    return gathered_;
  }

 private:
  const int size_;
  const std::string secret_;
  std::mutex mutex_;
  std::condition_variable all_there_;
  int round_ = 0, arrived_ = 0;
  std::vector<std::string> values_, gathered_;
};

class ThreadBootstrap final : public Bootstrap {
 public:
  ThreadBootstrap(ThreadRendezvous& rendezvous, int rank)
      : rendezvous_(rendezvous), rank_(rank), secret_(rendezvous.secret()) {}
  // A rank that does not know the secret of the others.
  ThreadBootstrap(ThreadRendezvous& rendezvous, int rank, std::string secret)
      : rendezvous_(rendezvous), rank_(rank), secret_(std::move(secret)) {}

  int rank() const override { return rank_; }
  int size() const override { return rendezvous_.size(); }
  const std::string& secret() const override { return secret_; }
  Result<std::vector<std::string>> all_gather(const std::string& mine,
                                              std::chrono::milliseconds time_out) override {
    return rendezvous_.all_gather(rank_, mine, time_out);
  }

 private:
  ThreadRendezvous& rendezvous_;
  const int rank_;
  const std::string secret_;
};

}  // namespace perseus
