// Decides when to report tensors that wait for other ranks, and writes the text. Knows no clock and
// no engine: times and tensors come in, text comes out.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace perseus {

// Returns "0-2, 5" for {0, 1, 2, 5}. The ranks must be ascending.
std::string rank_list(std::span<const int> ranks);
// "rank 1", "ranks 0-2"
std::string ranks_text(std::span<const int> ranks);
// "'layer1.weight' (34 s): missing on ranks 1, 3; ready on rank 0"
std::string waiting_text(std::string_view name, std::chrono::seconds waited,
                         std::span<const int> missing, std::span<const int> ready);

// One thread at a time.
class StallReporter {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  // A tensor that some ranks have submitted, but not all.
  struct Waiting {
    std::string_view name;     // as it is to be shown, with quotes
    TimePoint since;           // when the first rank's submission was seen here
    std::vector<int> missing;  // ranks of the world, ascending
    std::vector<int> ready;
  };

  // The texts to log; empty if there is nothing to log.
  struct Report {
    std::string warning;  // for the log, at level warning
    size_t tensors = 0;   // how many the warning is about
    std::string cleared;  // for the log: tensors reported before that no longer wait
  };

  // warn_after: how long a tensor waits before it is reported, and then between reports.
  explicit StallReporter(std::chrono::seconds warn_after);

  // `waiting` is every tensor that waits at `now`, in any order; names are unique.
  Report check(TimePoint now, std::span<const Waiting> waiting);
  // Returns the line about tensors that were reported before and are not in `waiting`; empty if
  // there are none. check() does this too; call this to report it sooner.
  std::string clear(TimePoint now, std::span<const Waiting> waiting);
  bool has_reported() const { return !reported_.empty(); }

 private:
  struct Reported {
    TimePoint since;
    TimePoint last;
  };
  TimePoint next_warning(const Waiting& tensor) const;

  const std::chrono::seconds warn_after_;
  std::map<std::string, Reported, std::less<>> reported_;
};

}  // namespace perseus
