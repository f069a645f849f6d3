// How a messenger speaks with the engine that it is a part of. Engine thread.
#pragma once

#include <cstdint>
#include <span>

#include "base/status.h"
#include "state/operation.h"

namespace perseus {

class MessengerHost {
 public:
  virtual void message_done(const OperationPtr& operation, const Status& status) = 0;
  // A transfer has failed. Returns the status that its operation ends with.
  virtual Status transfer_failed(const Status& status) = 0;
  // A transfer has ended, well or not.
  virtual void transfer_ended() = 0;
  // There is no memory for a message that has come, so this rank cannot go on.
  virtual void on_no_memory(uint64_t bytes) = 0;
  // The rank has sent something that no messenger sends.
  virtual void on_malformed_message(int rank) = 0;
  // Returns the error of messages to and from a rank that has left, or has closed the process set.
  virtual Status without(int rank, int32_t set) const = 0;
  virtual bool has_left(int rank) const = 0;
  // Returns whether this rank has had the set, and has closed it.
  virtual bool has_closed(int32_t set) const = 0;
  // Returns the ranks of a set, ascending; none if there is no such set.
  virtual std::span<const int> ranks_of(int32_t set) const = 0;

 protected:
  ~MessengerHost() = default;
};

}  // namespace perseus
