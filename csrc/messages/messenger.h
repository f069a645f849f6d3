// Messages between two ranks. A small one travels with its envelope, as long as the receiver has
// room for it. A larger one is announced, and its elements follow once the receiver clears them:
// when its program asks for the message or, as long as there is room, before. So two ranks that
// both send first do not wait for each other, and what a rank keeps for others has a bound.
//
//   sender                                    receiver
//   envelope with its elements          ->    receive, or kept
//                                       <-    credit, once taken
//   envelope                            ->    kept
//                                       <-    clearance, when there is a receive or room
//   elements                            ->    receive, or kept
//
// Engine thread.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/buffer_pool.h"
#include "base/task.h"
#include "messages/departed_senders.h"
#include "messages/mailbox.h"
#include "observe/counters.h"
#include "state/control.h"
#include "transport/mesh.h"

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

class Messenger {
 public:
  // A rank keeps at most `credit` bytes for each other one; the same on all ranks.
  Messenger(EventLoop& loop, Mesh& mesh, BufferPool& buffers, Counters& counters, uint64_t credit,
            MessengerHost& host);

  // Takes a send or a receive.
  void submit(const OperationPtr& operation);
  // Handles kEnvelope, kClearance, kWithdrawal or kCredit.
  void on_control(int from, ControlKind kind, ByteReader reader);

  // The rank has begun to leave, or closes the set: it sends nothing more, and takes nothing more.
  // Its last messages may still be on their way.
  void on_leaving(int rank);
  void on_closed(int32_t set, int rank);
  // The connection to a rank that has left is broken: nothing is on its way any more.
  void on_cut_off(int rank) { departed_.cut_off(rank); }
  // Ends the set's sends and receives with `why`, and forgets its messages.
  void end_set(int32_t set, const Status& why);
  // Ends all that has not begun to move.
  void end_all(const Status& why);
  // Returns whether nothing is being moved.
  bool is_idle() const { return moving_ == 0; }

  // Adds the ranks that a send or a receive here waits for.
  void add_awaited(std::set<int>& ranks) const;
  // Calls `visit` for each send and each receive that waits.
  void for_each_waiting(const std::function<void(const Operation&)>& visit) const;
  // "which last sent tag 6", or "which has sent nothing"
  std::string last_from(int rank) const;

 private:
  struct Peer {
    uint64_t sent = 0, received = 0;       // messages
    int32_t last_tag = 0;                  // received
    uint64_t with_envelopes = 0;           // bytes sent that the peer has not taken
    uint64_t untaken = 0;                  // bytes of the peer's with envelopes, kept here
    uint64_t to_return = 0;                // those that were taken, and the peer has not been told
    uint64_t held = 0;                     // bytes of announced messages that are here or arriving
    std::deque<KeptMessagePtr> announced;  // that may be cleared before they are asked for
  };
  struct AnnouncedSend {
    OperationPtr send;
    Status withdrawn;  // why it has been withdrawn; the receiver has not answered
  };

  void submit_send(const OperationPtr& send);
  void submit_receive(const OperationPtr& receive);
  void send_to_self(const OperationPtr& send);
  void on_envelope(int from, ByteReader& reader);
  void on_clearance(int from, const Clearance& clearance);
  void on_withdrawal(int from, const Withdrawal& withdrawal);

  // Gives the message that has been kept to the receive.
  void deliver_kept(const KeptMessagePtr& message, const OperationPtr& receive);
  // Gives the receive a message whose elements are here.
  void deliver(const OperationPtr& receive, const Envelope& envelope, int source,
               const std::byte* elements);
  // Has the elements come.
  void fetch(const OperationPtr& receive, const Envelope& envelope, int source);
  // Prepares the receive for the message; the error says why it does not fit.
  Status accept(Operation& receive, const Envelope& envelope, int source) const;

  Task move_out(OperationPtr send, uint64_t number);
  Task move_in(OperationPtr receive, int source, uint64_t number);
  Task move_ahead(KeptMessagePtr message);
  // Ends a transfer; returns what its operation ends with.
  Status ended(int peer, int32_t set, const Status& status);

  // Clears announced messages of the rank that there is room for.
  void clear_ahead(int rank);
  void give_back(int rank, uint64_t bytes);
  void clear(int rank, uint64_t number, const Status& refusal = {});
  // The message, which is in no queue any more, is for nobody.
  void forget(KeptMessage& message, const Status& why);

  // Ends the receives for which nobody is left who could send.
  void fail_hopeless();
  // Returns whether nobody is left who could send what the receive asks for.
  bool is_hopeless(const Operation& receive) const;

  template <typename Message>
  void tell(int rank, const Message& message);

  EventLoop& loop_;
  Mesh& mesh_;
  BufferPool& buffers_;
  Counters& counters_;
  MessengerHost& host_;
  const int rank_;
  const uint64_t window_;     // bytes with envelopes that a peer may not have taken
  const uint64_t most_held_;  // bytes of announced messages, for each peer
  std::vector<Peer> peers_;
  Mailbox mailbox_;
  std::map<std::pair<int, uint64_t>, AnnouncedSend> sends_;  // by peer and number
  DepartedSenders departed_;
  int moving_ = 0;
  bool has_ended_ = false;
  ByteWriter writer_;
};

}  // namespace perseus
