// The parts of an engine whose ranks have met, and how they are wired. The arrows show an
// operation's way down and up, and what ends it:
//
//   queue -> agreements -> executor -> tracker
//              |    ^  |      |           ^
//            sets --+  |      +-> termination
//              ^       |            ^  ^  ^
//            peers ----|------------+  |  watches
//                      +-> messenger --+
#pragma once

#include "engine/agreements.h"
#include "engine/blame.h"
#include "engine/departures.h"
#include "engine/internal_operations.h"
#include "engine/loop_handoff_policy.h"
#include "engine/message_host.h"
#include "engine/operation_tracker.h"
#include "engine/peers.h"
#include "engine/process_sets.h"
#include "engine/quick_calls.h"
#include "engine/submission_queue.h"
#include "engine/termination.h"
#include "engine/thread_binding.h"
#include "engine/watches.h"
#include "execution/executor.h"
#include "state/announcements.h"

namespace perseus {

struct EngineParts {
  EngineParts(EventLoop& loop, Mesh& mesh, Names& names, const RunContext& context);
  EngineParts(const EngineParts&) = delete;

  // Goes on with the settings that were found in an earlier world. Call before the loop runs, with
  // the same findings on all ranks.
  void take_over(const TunerFindings& findings);

  // Some parts hold references to later ones, and use them only once all have been constructed.
  ThreadBinding binding;
  Announcements announcements;
  Departures departures;
  Blame blame;
  OperationTracker tracker;
  ProcessSets sets;
  Agreements agreements;
  Termination termination;
  Peers peers;
  SubmissionQueue queue;
  Executor executor;
  MessageHost message_host;
  Messenger messenger;
  MessageWatch message_watch;
  Watches watches;
  EngineHandoffPolicy handoff;
  InternalOperations internal_operations;
  QuickCalls quick_calls;

 private:
  Wiring wire(EventLoop& loop, Mesh& mesh, const RunContext& context);
};

}  // namespace perseus
