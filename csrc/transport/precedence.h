// Which of the links that share a network card has the most urgent message to send. The card knows
// nothing of urgency, and serves all connections alike. Loop thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/event_loop.h"

namespace perseus {

// Who sends less while others have something more urgent.
class PrecededLink {
 public:
  // The most urgent of all has become less so, and this one has yielded to it.
  virtual void look_again() = 0;

 protected:
  ~PrecededLink() = default;
};

class Precedence {
 public:
  // Of who has nothing to send.
  static constexpr int32_t kNone = INT32_MIN;

  explicit Precedence(EventLoop& loop) : loop_(loop) {}

  // Gives the place of one more, which is not called after it has left.
  size_t join(PrecededLink& link) {
    places_.push_back({&link});
    return places_.size() - 1;
  }
  void leave(size_t place) {
    set(place, kNone);
    places_[place].link = nullptr;
  }
  void set(size_t place, int32_t urgency) {
    const int32_t before = places_[place].urgency;
    if (urgency == before) return;
    places_[place].urgency = urgency;
    if (urgency > highest_) {
      highest_ = urgency;
    } else if (before == highest_) {
      highest_ = std::ranges::max_element(places_, {}, &Place::urgency)->urgency;
      if (highest_ < before) call_soon();
    }
  }
  int32_t highest() const { return highest_; }
  // This one is to be called once the highest has fallen.
  void has_yielded(size_t place) { places_[place].has_yielded = has_any_yielded_ = true; }

 private:
  struct Place {
    PrecededLink* link;
    int32_t urgency = kNone;
    bool has_yielded = false;
  };

  // From the loop's next turn: now some link is in the midst of sending.
  void call_soon() {
    if (!has_any_yielded_) return;
    has_any_yielded_ = false;
    loop_.post([this, alive = std::weak_ptr<bool>(alive_)] {
      if (!alive.expired()) call();
    });
  }
  void call() {
    for (size_t i = 0; i < places_.size(); ++i) {  // links may join meanwhile
      if (!places_[i].has_yielded) continue;
      places_[i].has_yielded = false;
      if (places_[i].link != nullptr) places_[i].link->look_again();
    }
  }

  EventLoop& loop_;
  std::vector<Place> places_;
  int32_t highest_ = kNone;
  bool has_any_yielded_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace perseus
