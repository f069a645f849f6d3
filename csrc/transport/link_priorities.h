// The highest priority of a message to send, among all links that share a network card. The card
// knows no priorities and serves all connections alike, so links hold back by themselves. Loop
// thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/event_loop.h"

namespace perseus {

// A link that sends less while other links have something more urgent.
class PriorityListener {
 public:
  // The highest priority has fallen since this link called notify_when_lower.
  virtual void on_lower_priority() = 0;

 protected:
  ~PriorityListener() = default;
};

class LinkPriorities {
 public:
  // The priority of a link that has nothing to send.
  static constexpr int32_t kNone = INT32_MIN;

  explicit LinkPriorities(EventLoop& loop) : loop_(loop) {}

  // Returns the link's place. The link is not called after remove().
  size_t add(PriorityListener& link) {
    entries_.push_back({&link});
    return entries_.size() - 1;
  }
  void remove(size_t place) {
    set(place, kNone);
    entries_[place].link = nullptr;
  }
  void set(size_t place, int32_t priority) {
    const int32_t before = entries_[place].priority;
    if (priority == before) return;
    entries_[place].priority = priority;
    if (priority > highest_) {
      highest_ = priority;
    } else if (before == highest_) {
      highest_ = std::ranges::max_element(entries_, {}, &Entry::priority)->priority;
      if (highest_ < before) notify_soon();
    }
  }
  int32_t highest() const { return highest_; }
  // Calls the link once, when the highest priority has fallen.
  void notify_when_lower(size_t place) { entries_[place].wants_notice = any_wants_notice_ = true; }

 private:
  struct Entry {
    PriorityListener* link;
    int32_t priority = kNone;
    bool wants_notice = false;
  };

  // In the loop's next turn, since at this moment some link is in the middle of sending.
  void notify_soon() {
    if (!any_wants_notice_) return;
    any_wants_notice_ = false;
    loop_.post([this, alive = std::weak_ptr<bool>(alive_)] {
      if (!alive.expired()) notify();
    });
  }
  void notify() {
    for (size_t i = 0; i < entries_.size(); ++i) {  // a link that is called may add links
      if (!entries_[i].wants_notice) continue;
      entries_[i].wants_notice = false;
      if (entries_[i].link != nullptr) entries_[i].link->on_lower_priority();
    }
  }

  EventLoop& loop_;
  std::vector<Entry> entries_;
  int32_t highest_ = kNone;
  bool any_wants_notice_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace perseus
