// Decides which ranks to give up when operations have waited for as long as is allowed, by what
// every rank says of its own waiting. Knows no clock and no engine.
//
// A rank that has itself waited for long is held up by others. A rank that others wait for, and
// that has not waited for long, takes no part: it is given up. If A waits for B and B waits for C,
// that is C. If all that wait, wait for each other, as when two groups have taken two branches,
// nothing tells which of them is at fault: everything ends, and no rank is given up.
//
// A rank that waits for data of an operation that was agreed on waits for the ranks that send it,
// and asks nobody itself.
//
// Every rank whose operation has waited for too long asks all others, and the lowest of the ranks
// that ask decides. The others learn of its verdict in its own words, so that all have the same.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "state/control.h"

namespace perseus {

// The answers that a rank has to its question.
struct Stall {
  int rank = 0;  // that asks
  std::chrono::milliseconds limit{0};
  // Its operation that has waited for longest, as it is to be shown, and the ranks that it takes.
  std::string name;
  std::vector<int> ranks;
  // From each rank of the world, also from this one; nothing: it has not answered.
  std::vector<std::optional<WaitAnswer>> answers;
};

struct StallVerdict {
  std::vector<int> given_up;  // ascending; empty: it cannot be told which rank is at fault
  std::string why;            // for the errors of all ranks
};

// Returns whether the rank that asks is the one that decides.
bool decides(const Stall& stall);
// Returns nothing if what waited for too long may be about to go on. `name_of` names a rank with
// its host.
std::optional<StallVerdict> judge(const Stall& stall,
                                  const std::function<std::string(int)>& name_of);

}  // namespace perseus
