// N ranks on one event loop. Their links deliver in random pieces and random order, sometimes
// finish a send before the receive is begun, and check that the rules of links are kept.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "base/buffer_pool.h"
#include "base/event_loop.h"
#include "base/task.h"
#include "collectives/collective.h"
#include "transport/link.h"

namespace perseus {

class LoopbackLink;

class LoopbackWorld : private Poller {
 public:
  // ranks_on_host[h] ranks on host h, ranks numbered host by host. cache_of: by rank.
  LoopbackWorld(std::vector<int> ranks_on_host, uint64_t seed,
                const std::vector<int>& cache_of = {});
  ~LoopbackWorld();

  int size() const { return static_cast<int>(groups_.size()); }
  const Group& group(int rank) const { return groups_[rank]; }
  CollectiveOptions options(uint64_t operation) { return {operation, 0, 0, 0, &buffers_}; }

  // Runs one task per rank to the end and returns how they ended.
  std::vector<Status> run(std::vector<Task> tasks);

  // After that many further messages, everything under way or begun later fails with `why`.
  void fail_after(int messages, Status why);

  // Broken rules seen so far: tags in use twice, memory given to two transfers at once, sizes that
  // differ, messages never received.
  std::vector<std::string> violations() const;
  uint64_t bytes_between_hosts() const { return bytes_between_hosts_; }
  uint64_t bytes_between_caches() const { return bytes_between_caches_; }

 private:
  friend class LoopbackLink;
  using Key = std::tuple<int, int, uint64_t, uint32_t, uint32_t>;  // from, to, tag
  struct Message {
    Transfer* send = nullptr;
    Transfer* receive = nullptr;
    std::vector<std::byte> early_copy;  // of a send that finished before its receive began
    bool is_early = false;
    uint64_t delivered = 0;
    int from = 0, to = 0;
  };
  struct Held {
    const std::byte* begin;
    const std::byte* end;
    bool is_written;
  };

  void begin(int from, int to, Transfer& transfer, bool is_send);
  bool deliver(Message& message);
  void hold(int rank, const Transfer& transfer, bool is_send);
  void release(int rank, const Transfer* transfer);
  void fail_everything();
  void violation(std::string what);

  bool poll() override;
  bool prepare_to_sleep() override { return messages_.empty(); }
  void awake() override {}

  const std::vector<int> cache_of_;
  EventLoop loop_;
  BufferPool buffers_;
  std::mt19937_64 random_;
  std::vector<std::unique_ptr<LoopbackLink>> links_;
  std::vector<Group> groups_;
  std::map<Key, Message> messages_;
  std::vector<std::map<const Transfer*, Held>> held_;  // by rank
  std::vector<std::string> violations_;
  uint64_t bytes_between_hosts_ = 0;
  uint64_t bytes_between_caches_ = 0;
  int messages_until_failure_ = -1;
  Status failure_;
};

}  // namespace perseus
