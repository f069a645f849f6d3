// A bootstrap for two ranks that are forked processes of one test.
#pragma once

#include <sys/mman.h>

#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "base/event_loop.h"
#include "bootstrap/bootstrap.h"

namespace perseus {

// They exchange their cards once, through memory made before the fork.
class ForkBootstrap final : public Bootstrap {
 public:
  struct Shared {
    std::atomic<int> written{0};
    char cards[2][16384];
    uint32_t lengths[2];
  };
  // Unmapped when the test program ends.
  static Shared* make_shared_memory() {
    void* memory =
        mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return memory == MAP_FAILED ? nullptr : new (memory) Shared;
  }

  ForkBootstrap(Shared* shared, int rank, std::string weakness = "")
      : shared_(shared), rank_(rank), weakness_(std::move(weakness)) {}
  int rank() const override { return rank_; }
  int size() const override { return 2; }
  const std::string& secret() const override { return secret_; }
  std::string secret_weakness() const override { return weakness_; }
  Result<std::vector<std::string>> all_gather(const std::string& mine,
                                              std::chrono::milliseconds time_out) override {
    if (mine.size() > sizeof shared_->cards[rank_]) return Status::internal("card too long");
    std::memcpy(shared_->cards[rank_], mine.data(), mine.size());
    shared_->lengths[rank_] = static_cast<uint32_t>(mine.size());
    ++shared_->written;
    const auto deadline = Clock::now() + time_out;
    while (shared_->written != 2) {
      if (Clock::now() > deadline) return Status::timed_out("the other process did not come");
      std::this_thread::yield();
    }
    std::vector<std::string> all;
    for (int i = 0; i < 2; ++i) all.emplace_back(shared_->cards[i], shared_->lengths[i]);
    return all;
  }

 private:
  Shared* const shared_;
  const int rank_;
  const std::string secret_ = "secret";
  const std::string weakness_;
};

}  // namespace perseus
