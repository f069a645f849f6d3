#include "engine/message_host.h"

namespace perseus {

void MessageHost::message_done(const OperationPtr& operation, const Status& status) {
  tracker_.complete(operation, status);
}

Status MessageHost::transfer_failed(const Status& status) {
  return termination_.shard_failed(status);
}

void MessageHost::transfer_ended() { termination_.shard_ended(); }

void MessageHost::on_no_memory(uint64_t bytes) {
  termination_.break_world(termination_.failed_here(Status::out_of_memory(
      "no memory for a message of " + std::to_string(bytes) + " bytes that has come")));
}

void MessageHost::on_malformed_message(int rank) {
  termination_.break_world({rank, mesh_.topology().name(rank) + " sent a malformed message"});
}

Status MessageHost::without(int rank, int32_t set) const {
  if (rank == MessageEnds::kAny) {
    return Status::aborted("all other ranks of process set " + std::to_string(set) +
                           " have left, so nobody can send anything");
  }
  if (has_left(rank)) return Status::aborted(departures_.news_of(rank).why);
  return Status::aborted(mesh_.topology().name(rank) + " has closed process set " +
                         std::to_string(set));
}

std::span<const int> MessageHost::ranks_of(int32_t set) const {
  const ProcessSetPtr found = sets_.find(set);
  if (found == nullptr) return {};
  return found->ranks;
}

void MessageHost::end_stalled_message(const std::string& why) {
  termination_.break_world({-1, why});
}

}  // namespace perseus
