#include "messages/departed_senders.h"

#include <algorithm>

namespace perseus {
namespace {

// How long the last messages of a rank may be on their way where no goodbye tells, and how long a
// goodbye may take.
constexpr std::chrono::milliseconds kWithoutGoodbye{2500};
constexpr std::chrono::seconds kGoodbye{30};
constexpr std::chrono::milliseconds kBetweenLooks{10};

}  // namespace

void DepartedSenders::add(int rank, int32_t set) {
  departures_.push_back({rank, set, Clock::now()});
  if (!alarm_.is_set()) look();
}

void DepartedSenders::cut_off(int rank) {
  for (Departure& departure : departures_) {
    if (departure.rank == rank && departure.set == kAllSets) departure.is_over = true;
  }
  on_gone_();
}

void DepartedSenders::forget(int32_t set) {
  std::erase_if(departures_, [set](const Departure& departure) { return departure.set == set; });
}

void DepartedSenders::clear() {
  departures_.clear();
  alarm_.cancel();
}

bool DepartedSenders::has_gone(int rank, int32_t set) const {
  return std::ranges::any_of(departures_, [&](const Departure& departure) {
    return departure.is_over && departure.rank == rank &&
           (departure.set == kAllSets || departure.set == set);
  });
}

void DepartedSenders::look() {
  bool is_any_left = false, is_any_new = false;
  for (Departure& departure : departures_) {
    if (departure.is_over) continue;
    departure.is_over = is_over(departure);
    (departure.is_over ? is_any_new : is_any_left) = true;
  }
  if (is_any_left) alarm_.set(Clock::now() + kBetweenLooks, [this] { look(); });
  if (is_any_new) on_gone_();
}

// Over a connection, the goodbye comes after all messages.
bool DepartedSenders::is_over(const Departure& departure) const {
  const auto passed = Clock::now() - departure.since;
  if (departure.set != kAllSets || !mesh_.is_connected(departure.rank)) {
    return passed >= kWithoutGoodbye;
  }
  return mesh_.has_left(departure.rank) || passed >= kGoodbye;
}

}  // namespace perseus
