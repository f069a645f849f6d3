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
// OutgoingMessages is the left side, IncomingMessages the right one. Engine thread.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>

#include "messages/departed_senders.h"
#include "messages/incoming_messages.h"
#include "messages/message_lines.h"
#include "messages/outgoing_messages.h"
#include "state/control.h"

namespace perseus {

class Messenger {
 public:
  // A rank keeps at most `credit` bytes for each other one; the same on all ranks.
  Messenger(EventLoop& loop, Mesh& mesh, BufferPool& buffers, GpuThreads& gpus, Counters& counters,
            uint64_t credit, MessengerHost& host);

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
  bool is_idle() const { return lines_.is_idle(); }

  // Adds the ranks that a send or a receive here waits for.
  void add_awaited(std::set<int>& ranks) const;
  // Calls `visit` for each send and each receive that waits.
  void for_each_waiting(const std::function<void(const Operation&)>& visit) const;
  // "which last sent tag 6", or "which has sent nothing"
  std::string last_from(int rank) const { return incoming_.last_from(rank); }

 private:
  MessageLines lines_;
  DepartedSenders departed_;
  OutgoingMessages outgoing_;
  IncomingMessages incoming_;
  bool has_ended_ = false;
};

}  // namespace perseus
