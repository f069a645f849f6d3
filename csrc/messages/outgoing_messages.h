// The messages that this rank sends to others, until their elements have left. See messenger.h.
// Engine thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "base/task.h"
#include "messages/departed_senders.h"
#include "messages/message_lines.h"

namespace perseus {

class OutgoingMessages {
 public:
  OutgoingMessages(MessageLines& lines, const DepartedSenders& departed);

  // Takes a send to another rank.
  void submit(const OperationPtr& send);
  void on_clearance(int from, const Clearance& clearance);
  // Returns whether the rank may say so.
  bool on_credit(int from, const Credit& credit);

  // The rank has begun to leave, and takes nothing more.
  void on_leaving(int rank);
  void end_set(int32_t set, const Status& why);
  // Ends all that has not begun to move.
  void end_all(const Status& why);

  void for_each_waiting(const std::function<void(const Operation&)>& visit) const;

 private:
  struct Receiver {
    uint64_t sent = 0;            // messages
    uint64_t with_envelopes = 0;  // bytes that it has not taken
  };
  struct Announced {
    OperationPtr send;
    Status withdrawn;  // why it has been withdrawn; the receiver has not answered
  };

  // Sends the elements with their envelope.
  void send_whole(const Operation& send, const Envelope& envelope);
  Task move(OperationPtr send, uint64_t number, bool in_runs);

  MessageLines& lines_;
  const DepartedSenders& departed_;
  std::vector<Receiver> receivers_;                          // by rank
  std::map<std::pair<int, uint64_t>, Announced> announced_;  // by receiver and number
  bool has_ended_ = false;
};

}  // namespace perseus
