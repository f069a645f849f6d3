// Small operations that a thread submits and waits for in one call: a roll call of the world's
// ranks, if all are on one host and nothing else is under way here. What no roll call is held for
// goes the engine's usual way, with the same result.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>

#include "base/buffer_pool.h"
#include "base/event_loop.h"
#include "collectives/collective.h"
#include "engine/submission_queue.h"
#include "observe/counters.h"
#include "observe/timeline.h"
#include "rollcall/roll_call.h"
#include "state/announcements.h"
#include "transport/mesh.h"
#include "watch/last_submission.h"

namespace perseus {

class ProcessSets;
struct RunContext;

// An operation on one tensor in the CPU's memory, without a factor or codec of the call's own.
struct QuickCall {
  const Names::Entry* name = nullptr;
  CallForm form;
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  size_t elements = 0;
};

class QuickCalls {
 public:
  QuickCalls(EventLoop& loop, Mesh& mesh, const RunContext& context, const ProcessSets& sets,
             const SubmissionQueue& queue, Announcements& announcements, LastSubmission& last);
  QuickCalls(const QuickCalls&) = delete;

  // Any thread but the engine's. Returns the status of the operation, which is complete, or
  // nothing: it is to be submitted then.
  std::optional<Status> run(const QuickCall& call);

 private:
  // While roll calls are held, the loop is handed off and stays so, because then little time is
  // lost when one is not.
  static constexpr uint32_t kPerVisit = 16;
  // How long the links to the other ranks may take to open. Up to 5 ranks have links to all others
  // from init on. More are not asked for: a rank that leaves while it is being called would count
  // as lost.
  static constexpr std::chrono::milliseconds kBetweenTries{5};
  static constexpr int kMostTries = 200;

  static bool are_possible(const Mesh& mesh, const Settings& settings);
  // Engine thread: begins once all boards are there.
  void open(int tries_left);
  bool is_at_rest() const;
  std::optional<Status> run(const QuickCall& call, RollCall& roll);
  // Computes the result from what all ranks have brought.
  Status finish(const QuickCall& call, const RollCall& held);

  EventLoop& loop_;
  Mesh& mesh_;
  const Timeline& timeline_;
  Counters& counters_;
  const ProcessSets& sets_;
  const SubmissionQueue& queue_;
  Announcements& announcements_;
  LastSubmission& last_;
  const bool are_possible_;

  std::atomic<bool> is_asked_for_{false};
  // The engine thread's.
  std::unique_ptr<RollCall> owned_;
  const Group* group_ = nullptr;  // of the world

  std::atomic<RollCall*> roll_{nullptr};  // owned_, once it and group_ can be used
  // The thread's that has the roll call.
  BufferPool buffers_;
  uint32_t held_ = 0;  // how many
};

}  // namespace perseus
