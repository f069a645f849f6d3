// Decides when tensors that wait for other ranks are reported, and when they end the job; writes
// the text. Knows no clock and no engine: times and entries come in, text comes out.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace perseus {

// "0-2, 5" of {0, 1, 2, 5}; ranks ascending.
std::string rank_list(std::span<const int> ranks);

// One thread at a time.
class StallReporter {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  // A tensor that some rank has submitted and not all have.
  struct Waiting {
    std::string_view name;     // as it is to be shown, in quotes
    TimePoint since;           // since the first rank's submission was seen here
    std::vector<int> missing;  // ranks of the world, ascending
    std::vector<int> ready;
  };

  // What to do about it; empty and ok if nothing.
  struct Report {
    std::string warning;  // for the log at level warning
    size_t tensors = 0;   // that the warning is about
    std::string cleared;  // for the log: tensors reported before that wait no more
    Status shut_down;     // an error to end every operation with
  };

  // warn_after: how long a tensor waits before it is reported, and then between reports.
  // shut_down_after: how long before it ends the job; 0 never, else not below warn_after.
  StallReporter(std::chrono::seconds warn_after, std::chrono::seconds shut_down_after);

  // `waiting` is every tensor that waits at `now`, in any order; names are unique.
  Report check(TimePoint now, std::span<const Waiting> waiting);
  // The line about tensors reported before that are not among these; empty if there are none. In a
  // Report too; this is for who knows sooner.
  std::string clear(TimePoint now, std::span<const Waiting> waiting);
  bool has_reported() const { return !reported_.empty(); }

 private:
  struct Reported {
    TimePoint since;
    TimePoint last;
  };
  TimePoint next_warning(const Waiting& tensor) const;

  const std::chrono::seconds warn_after_;
  const std::chrono::seconds shut_down_after_;
  std::map<std::string, Reported, std::less<>> reported_;
};

}  // namespace perseus
