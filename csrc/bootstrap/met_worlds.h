// The worlds that have met at a rendezvous, by the names that only their engines know. A launcher
// asks whether what claims to be an engine of a world is one. Any thread.
#pragma once

#include <deque>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace perseus::rendezvous {

class MetWorlds {
 public:
  explicit MetWorlds(std::string secret) : secret_(std::move(secret)) {}

  // These launched ranks have met in this order, and each has told the others one of these words.
  void add(std::vector<int> ranks, std::span<const std::string> introductions);
  // Returns whether these ranks have met, in this order, in a world of this name.
  bool has(const std::string& name, const std::vector<int>& ranks) const;

 private:
  struct World {
    std::string name;
    std::vector<int> ranks;
  };

  const std::string secret_;
  mutable std::mutex mutex_;
  std::deque<World> latest_;  // engines say that they have met when they have
};

}  // namespace perseus::rendezvous
