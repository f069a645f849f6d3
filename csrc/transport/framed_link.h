// The only implementation of Link. It cuts messages into frames, and any of the link's channels
// that is free pulls the next frame. Control messages go before all data, and on channel 0 only, so
// they stay in order.
//
// If there are several channels, channel 0 is the express channel. Apart from control messages it
// carries only data that is more urgent than the data that the other channels have taken: that data
// waits in the kernel's queues, where nothing can overtake it. A link also holds back while other
// links have more urgent data: it then uses one stream only. It does not stop altogether, since the
// other links may not fill the network card, or may be stuck.
//
//   connecting -> up -> closing -> closed     this rank says goodbye first
//                    -> left                  the peer does
//   any        -> failed                      the connection broke, or could not be made
//
// If the mesh keeps connections for the next world, a link that is over parts from its peer, unless
// a connection is broken: both still say goodbye on each channel, and drop what else arrives. The
// channels are then between two frames, and can move; see kept_links.h.
//
//   cut -> under way -> done                  cut: the goodbye is withheld
//   any -> no                                 a connection broke, or it took too long
//
// Loop thread.
#pragma once

#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/buffer_pool.h"
#include "base/event_loop.h"
#include "base/status.h"
#include "transport/arrival_watch.h"
#include "transport/channel.h"
#include "transport/control_messages.h"
#include "transport/inbox.h"
#include "transport/link.h"
#include "transport/link_priorities.h"
#include "transport/send_queue.h"

namespace perseus {

// Written by the loop thread, read by any.
struct TrafficCounters {
  using Counter = std::atomic<uint64_t>;
  Counter control_messages_sent = 0, control_bytes_sent = 0;
  Counter control_messages_received = 0, control_bytes_received = 0;
  Counter data_bytes_sent[3] = {0, 0, 0};  // by Channel::Kind
  Counter frames_sent = 0, frames_received = 0, unexpected_frames = 0;
  Counter connections_made = 0, connections_kept = 0;

  static void add(Counter& counter, uint64_t amount) {
    counter.store(counter.load(std::memory_order_relaxed) + amount, std::memory_order_relaxed);
  }
};

// A link reports to the mesh through this. All calls but link_control come at the end of a state
// change, and may come from within a call to the link.
class LinkObserver {
 public:
  // The link has something to move for the first time, and must be connected.
  virtual void connection_needed(int peer) = 0;
  virtual void link_control(int peer, std::span<const std::byte> message) = 0;
  // If why.peer() is Status::kNobody, something between the ranks is to blame.
  virtual void link_lost(int peer, const Status& why) = 0;
  virtual void link_closed(int peer) = 0;

 protected:
  ~LinkObserver() = default;
};

// Shared by all links of a mesh.
struct LinkEnvironment {
  EventLoop& loop;
  BufferPool& buffers;
  LinkObserver& observer;
  TrafficCounters& counters;
  uint64_t chunk_bytes;   // size of the largest frame that may arrive
  uint64_t frame_bytes;   // size of the largest frame that is sent; at most chunk_bytes
  int streams = INT_MAX;  // how many of a link's channels carry data
  int rank = -1;          // this rank
  std::string rank_name = "this rank";
  // How long data may be on its way without moving; 0 for ever.
  std::chrono::milliseconds silence{0};
  bool keeps_connections = false;   // for the next world
  LinkPriorities priorities{loop};  // among links of several channels
};

class FramedLink final : public Link, private PriorityListener, private ArrivalWatchHost {
 public:
  // peer_name: "rank 3 on host7". control_channels: the number of channels, of which channel 0
  // carries control messages. Unless there is a data channel after them, all of them carry data,
  // too. If there are several, channel 0 carries only urgent data.
  FramedLink(LinkEnvironment& environment, int peer, std::string peer_name, int control_channels,
             bool has_data_channel);
  ~FramedLink() override;

  // The port for channel `index`.
  FramePort& port(int index);
  bool is_express(int index) const { return index == 0 && control_channels_ > 1; }
  int data_channel_index() const { return control_channels_; }
  // Adds the channel and starts it.
  void attach(int index, std::unique_ptr<Channel> channel);
  bool has_channel(int index) const;
  // Returns whether all channels are attached.
  bool is_connected() const { return attached_ == static_cast<int>(ports_.size()); }
  // Returns whether nothing can be sent or received any more.
  bool is_over() const { return state_ != State::kOpen && state_ != State::kClosing; }
  // Returns whether the peer has said goodbye.
  bool has_left() const { return state_ == State::kLeft; }
  // Returns whether it has still to part from its peer.
  bool is_parting() const { return parting_ == Parting::kCut || parting_ == Parting::kUnderWay; }
  // Returns whether data of the peer is awaited.
  bool awaits_data() const { return !is_over() && inbox_.awaits(); }

  // See Channel::peer_board.
  SharedBoard peer_board() const;

  // Asks the observer to connect the link. Only the first call does so.
  void request_connection();
  bool is_connection_requested() const { return connection_requested_; }
  // The peer has begun to connect, so this rank need not ask for it.
  void mark_connection_requested() { connection_requested_ = true; }

  void send_control(std::span<const std::byte> message);
  // Sends what is queued, then goodbye. link_closed follows, at once if the link is over.
  void close();
  // Ends all transfers with kAborted, with an error that names the peer and `why`, and tells the
  // observer.
  void fail(const Status& why);
  // One of the link's connections cannot be made. If the peer answers over another one, something
  // between the hosts is to blame.
  void cannot_connect(const Status& why);
  // Ends all transfers with `why` as it is, since this rank gives up. Does not tell the observer.
  void abort(const Status& why);
  // Does what abort does, for a link that can part from its peer. Control messages that wait are
  // still sent. The goodbye follows with the next abort() or close().
  void cut(const Status& why);
  // Closes the connections if the link has not parted from its peer.
  void stop_parting();
  // Returns the channels of a link that has parted, each of which can move; else none. Not from
  // within a call to the link or its channels.
  std::vector<std::unique_ptr<Channel>> take_channels();

 private:
  enum class State { kOpen, kClosing, kLeft, kFailed, kClosed };
  enum class Parting { kNo, kCut, kUnderWay, kDone };
  class Port;

  void start_send(Transfer& transfer) override;
  void start_receive(Transfer& transfer) override;
  void on_lower_priority() override;

  bool awaits_data_since(uint32_t turn) const override { return inbox_.awaits_since(turn); }
  bool is_open(int channel) const override;
  uint64_t bytes_received(int channel) const override;
  void request_marks() override;
  void on_held_back(int channel, std::chrono::milliseconds silent_for) override;

  bool next(Port& port, Frame& frame, uint64_t room);
  bool next_mark_request(Frame& frame);
  // The channels that carry data, without the express channel.
  std::span<const std::unique_ptr<Port>> streams() const;
  // Returns whether the next data may go to this port.
  bool may_carry_data(const Port& port);
  // Returns whether the next data is more urgent than data that another channel has taken.
  bool is_overtaking() const;
  // Tells the other links the priority of the next message.
  void report_priority();
  void sent(Port& port, const Frame& frame);
  bool arrived(Port& port, const FrameHeader& header, const std::byte* data, Lease lease);
  // Returns whether the channel is to hand over more.
  bool takes_more(const Port& port) const;
  Status control_arrived(const FrameHeader& header, const std::byte* data);
  // Returns whether the peer has said goodbye on any channel.
  bool has_any_goodbye() const;
  void goodbye_arrived(Port& port);
  void marks_requested(uint64_t number);
  void channel_failed(Port& port, const Status& why);
  // A connection other than that for control messages is missing. Asks the peer for a mark, and
  // ends the link once it has answered, or has not for a moment. `how` says what has happened.
  void connection_failed(const std::string& how, const Status& why);
  // The peer has answered this request for a mark.
  void peer_answered(uint64_t number);
  // Something between the ranks has changed what goes over this channel.
  void disturbed(const Port& port, const std::string& how);
  // Ends the link for a reason that no rank is to blame for, and tells the peer. Otherwise each of
  // the two would take the other for lost.
  void break_off(std::string why);
  bool next_last_words(const Port& port, Frame& frame);
  // The link cannot go on after what has arrived.
  void not_accepted(const Port& port, const Status& why);
  // More data has come than the peer sends without a mark.
  void fail_unmarked(const Port& port);
  // Returns " over the connection from ADDRESS to ADDRESS", or "".
  std::string route(const Port& port) const;
  // Makes the channels look for data to send.
  void kick_data();
  void finish_closing_if_done();
  // Ends the link, and tells the observer.
  void end_lost(const Status& why);
  // Closes the channels, or begins to part, and ends all outstanding transfers with `why`.
  void end(State state, const Status& why, Parting parting = Parting::kNo);

  bool can_part() const;
  void say_goodbye();
  bool next_while_parting(Port& port, Frame& frame, uint64_t room);
  void sent_while_parting(Port& port, const Frame& frame);
  bool arrived_while_parting(Port& port, const FrameHeader& header);
  void finish_parting_if_done();

  LinkEnvironment& environment_;
  const std::string peer_name_;
  const int control_channels_;
  bool connection_requested_ = false;
  State state_ = State::kOpen;
  Parting parting_ = Parting::kNo;
  Status end_status_;  // what transfers end with once the link is over
  int attached_ = 0;
  const size_t place_;  // in environment_.priorities
  std::vector<std::unique_ptr<Port>> ports_;

  SendQueue sends_;
  ControlMessages controls_;
  Inbox inbox_;
  ArrivalWatch arrivals_;
  uint64_t marks_asked_ = 0;      // the last request that was handed to a channel
  uint64_t marks_requested_ = 0;  // the peer's last request
  std::string last_words_;        // for the peer; not empty while the link breaks off
  bool has_said_them_ = false;
  // Set once one of several connections has ended or cannot be made: the peer may be about to say
  // why, or to show that it lives.
  Alarm verdict_;
  std::string doubt_;          // what has happened
  uint64_t doubt_number_ = 0;  // the request for a mark that was made then
};

}  // namespace perseus
