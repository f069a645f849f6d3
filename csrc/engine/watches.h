// The watches that look for trouble while operations wait for other ranks. Engine thread.
#pragma once

#include "watch/name_conflicts.h"
#include "watch/peer_watch.h"
#include "watch/stall_watch.h"

namespace perseus {

struct Watches {
  StallWatch stalls;
  PeerWatch peers;
  NameConflicts name_conflicts;

  // An operation has become pending in the set.
  void on_submission(const ProcessSetPtr& set, const Operation& operation) {
    stalls.note_submission(operation);
    stalls.watch(set);
    peers.watch();
    name_conflicts.watch(operation);
  }
};

}  // namespace perseus
