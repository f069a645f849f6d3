// The process that holds the rank which a launcher has given out. Processes that a rank starts,
// forked or by exec, inherit the launcher's variables. Without this, one that calls init, such as a
// data loader's worker that imports the script, would meet the other ranks in its parent's place,
// and its data would enter their sums.
//
// PERSEUS_RANK_HELD_BY in the environment of the process and its descendants says which process
// holds which rank of which job. Processes that were forked before, such as those of a pool, learn
// it from a lock on a file that all share which were forked since the library was loaded. A process
// whose parent has not called init may take the rank: the launcher may have started a shell or
// another program that runs the script. So may a process that was started after its parent has shut
// down; but it cannot keep its parent from coming back.
#pragma once

#include "base/status.h"

namespace perseus {

struct LaunchEnvironment;

inline constexpr const char* kRankHeldBy = "PERSEUS_RANK_HELD_BY";

// Takes the rank for this process, or returns an error if the process that started it has it, or
// one that was forked from the same program. A process that is not launched with others needs no
// rank, and may always go on. Changes the environment, so call it, and give_back_rank, on one
// thread at a time.
// `told`: what the program says in place of the environment, or null.
Status take_rank(const LaunchEnvironment* told = nullptr);
// Does nothing if this process does not have the rank.
void give_back_rank();

}  // namespace perseus
