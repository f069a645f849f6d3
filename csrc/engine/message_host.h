// Ties the messenger to the engine: completes its operations, ends the world where a message cannot
// go on, and tells it of ranks and process sets. Engine thread.
#pragma once

#include <span>
#include <string>

#include "engine/departures.h"
#include "engine/operation_tracker.h"
#include "engine/process_sets.h"
#include "engine/termination.h"
#include "messages/message_watch.h"
#include "messages/messenger.h"

namespace perseus {

class MessageHost final : public MessengerHost, public MessageWatchHost {
 public:
  MessageHost(const Mesh& mesh, OperationTracker& tracker, Termination& termination,
              const Departures& departures, const ProcessSets& sets)
      : mesh_(mesh),
        tracker_(tracker),
        termination_(termination),
        departures_(departures),
        sets_(sets) {}

  // MessengerHost.
  void message_done(const OperationPtr& operation, const Status& status) override;
  Status transfer_failed(const Status& status) override;
  void transfer_ended() override;
  void on_no_memory(uint64_t bytes) override;
  void on_malformed_message(int rank) override;
  Status without(int rank, int32_t set) const override;
  bool has_left(int rank) const override { return departures_.contains(rank); }
  bool has_closed(int32_t set) const override { return sets_.has_closed(set); }
  std::span<const int> ranks_of(int32_t set) const override;

  // MessageWatchHost.
  void end_stalled_message(const std::string& why) override;

 private:
  const Mesh& mesh_;
  OperationTracker& tracker_;
  Termination& termination_;
  const Departures& departures_;
  const ProcessSets& sets_;
};

}  // namespace perseus
