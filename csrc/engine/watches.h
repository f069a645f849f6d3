// The watches that look for trouble while operations wait for other ranks. Engine thread.
#pragma once

#include "watch/last_submission.h"
#include "watch/name_conflicts.h"
#include "watch/peer_watch.h"
#include "watch/stall_judge.h"
#include "watch/stall_watch.h"

namespace perseus {

struct Watches {
  LastSubmission last;
  StallWatch stalls;
  StallJudge judge;
  PeerWatch peers;
  NameConflicts name_conflicts;

  // An operation has become pending in the set.
  void on_submission(const ProcessSetPtr& set, const Operation& operation) {
    last.note(operation);
    stalls.watch(set);
    judge.watch();
    peers.watch();
    name_conflicts.watch(operation);
  }
  // The set has agreed on something.
  void on_agreement(const ProcessSet& set) {
    stalls.note_agreement();
    if (set.negotiator->has_joined()) judge.note_agreement_without_submission();
  }
};

}  // namespace perseus
