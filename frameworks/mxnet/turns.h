// Calls of one name begin in the order in which they were made, each when the one before it has
// ended. MXNet has them ready in any order, and ranks match them by theirs.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>

namespace perseus::mxnet {

// Any thread.
class Turns {
 public:
  // The place of a call of the name with this id.
  class Place {
    friend class Turns;
    explicit Place(int32_t id) : id_(id) {}
    const int32_t id_;
    std::function<void()> begin_;
  };
  using Ticket = std::shared_ptr<Place>;

  Ticket take(int32_t id);
  // Has it begin when its turn comes, on the thread that makes it so, which may be this one.
  void begin(const Ticket& ticket, std::function<void()> begin);
  // Of a call that has begun.
  void end(const Ticket& ticket);

 private:
  struct Line {
    std::list<Ticket> places;  // the first's turn it is
    bool is_advancing = false;
  };

  void advance(int32_t id, std::unique_lock<std::mutex>& lock);

  std::mutex mutex_;
  std::unordered_map<int32_t, Line> lines_;  // where somebody stands
};

Turns& turns();

}  // namespace perseus::mxnet
