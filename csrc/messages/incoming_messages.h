// The messages that come to this rank, and the receives that ask for them. See messenger.h.
// Engine thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "base/task.h"
#include "messages/departed_senders.h"
#include "messages/mailbox.h"
#include "messages/message_lines.h"
#include "messages/message_moves.h"

namespace perseus {

class IncomingMessages {
 public:
  IncomingMessages(MessageLines& lines, const DepartedSenders& departed);

  // Takes a receive, or a send to this rank.
  void submit(const OperationPtr& receive);
  void submit_own(const OperationPtr& send);
  void on_envelope(int from, ByteReader& reader);
  void on_withdrawal(int from, const Withdrawal& withdrawal);

  // Ends the receives for which nobody is left who could send. Call when a sender has departed.
  void fail_hopeless();
  // Ends the set's receives with `why`, and forgets its messages.
  void end_set(int32_t set, const Status& why);
  // Ends all that has not begun to move.
  void end_all(const Status& why);

  void for_each_waiting(const std::function<void(const Operation&)>& visit) const;
  // "which last sent tag 6", or "which has sent nothing"
  std::string last_from(int rank) const;

 private:
  struct Sender {
    uint64_t received = 0;   // messages
    int32_t last_tag = 0;    // of these
    uint64_t untaken = 0;    // bytes with envelopes, kept here
    uint64_t to_return = 0;  // those that were taken, and the sender has not been told
    uint64_t held = 0;       // bytes of announced messages that are here or arriving
    std::deque<KeptMessagePtr> announced;  // that may be cleared before they are asked for
  };

  // Gives the message that has been kept to the receive.
  void deliver_kept(const KeptMessagePtr& message, const OperationPtr& receive);
  void deliver_own(const OperationPtr& send, const OperationPtr& receive, const Envelope& envelope);
  // Gives the receive a message whose bytes are here, at `wire`. `kept` has them, if they outlive
  // this call.
  void deliver(const OperationPtr& receive, const Envelope& envelope, int source,
               const std::byte* wire, Buffer kept);
  // Has the elements come.
  void fetch(const OperationPtr& receive, const Envelope& envelope, int source);
  // Prepares the receive for the message, and returns its form; the error says why it does not fit.
  Result<MessageForm> accept(Operation& receive, const Envelope& envelope, int source) const;
  Status make_room(Operation& receive, const Envelope& envelope, int source) const;

  // From another rank to a receive, or to memory for what nobody has asked for.
  Task move_in(OperationPtr receive, AnnouncedElements announced);
  Task move_ahead(KeptMessagePtr message, AnnouncedElements announced);
  // From bytes that are here to a receive on a GPU.
  Task move_up(OperationPtr receive, MessageForm form, Buffer wire);
  // From a send of this rank to a receive, where one of the two is on a GPU, or to memory.
  Task move_own(OperationPtr send, OperationPtr receive, MessageForm form);
  Task move_own_ahead(OperationPtr send, KeptMessagePtr message, MessageForm form);
  // The elements of a message for which this rank had room have come.
  void arrived(const KeptMessagePtr& message, const Status& status);

  // Clears announced messages of the rank that there is room for.
  void clear_ahead(int rank);
  void give_back(int rank, uint64_t bytes);
  void clear(int rank, const Clearance& clearance) { lines_.tell(rank, clearance); }
  // The message, which is in no queue any more, is for nobody.
  void forget(KeptMessage& message, const Status& why);
  // Returns whether nobody is left who could send what the receive asks for.
  bool is_hopeless(const Operation& receive) const;

  MessageLines& lines_;
  const DepartedSenders& departed_;
  std::vector<Sender> senders_;  // by rank
  Mailbox mailbox_;
  bool has_ended_ = false;
};

}  // namespace perseus
