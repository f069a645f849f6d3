#include "transport/framed_link.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "transport/link_port.h"

namespace perseus {
namespace {

// How long the peer may take to explain why it ends a connection. A process that has died closes
// all of them at once, and nobody waits.
constexpr std::chrono::milliseconds kExplained{200};

void add(TrafficCounters::Counter& counter, uint64_t amount) {
  TrafficCounters::add(counter, amount);
}

}  // namespace

FramedLink::FramedLink(LinkEnvironment& environment, int peer, std::string peer_name,
                       int control_channels, bool has_data_channel)
    : Link(peer),
      environment_(environment),
      peer_name_(std::move(peer_name)),
      control_channels_(control_channels),
      place_(environment.priorities.add(*this)),
      sends_(environment.loop),
      controls_(environment.buffers),
      inbox_(environment.loop, environment.buffers),
      arrivals_(environment.loop, environment.silence, *this),
      verdict_(environment.loop) {
  for (int i = 0; i < control_channels; ++i) {
    ports_.push_back(std::make_unique<Port>(*this, i, i == 0, !has_data_channel, is_express(i)));
  }
  if (has_data_channel) {
    ports_.push_back(std::make_unique<Port>(*this, control_channels, false, true, false));
  }
}

FramedLink::~FramedLink() { environment_.priorities.remove(place_); }

FramePort& FramedLink::port(int index) { return *ports_[index]; }

bool FramedLink::has_channel(int index) const { return ports_[index]->channel != nullptr; }

SharedBoard FramedLink::peer_board() const {
  return has_channel(0) ? ports_[0]->channel->peer_board() : SharedBoard();
}

void FramedLink::attach(int index, std::unique_ptr<Channel> channel) {
  Port& port = *ports_[index];
  port.channel = std::move(channel);
  port.has_marks = port.channel->kind() == Channel::Kind::kTcp;
  const std::string route = port.channel->route();
  port.route = route.empty() ? "" : " " + route;
  if (port.has_marks) arrivals_.add_channel(index);
  ++attached_;
  port.channel->start();
  report_priority();
  if (!is_over()) port.channel->kick();
}

void FramedLink::start_send(Transfer& transfer) {
  if (is_over() || state_ == State::kClosing) {
    transfer.finish(environment_.loop,
                    is_over() ? end_status_ : Status::aborted("this rank is shutting down"));
    return;
  }
  sends_.push(transfer);
  report_priority();
  request_connection();
  kick_data();
}

void FramedLink::start_receive(Transfer& transfer) {
  if (is_over()) {
    inbox_.post_last(transfer, end_status_);
  } else {
    transfer.turn = arrivals_.turn();
    const Status posted = inbox_.post(transfer);
    if (!posted.is_ok()) return not_accepted(*ports_[inbox_.channel_of(transfer.tag)], posted);
    arrivals_.watch();
    request_connection();
  }
}

void FramedLink::request_connection() {
  if (std::exchange(connection_requested_, true) || is_over()) return;
  environment_.observer.connection_needed(peer());
}

void FramedLink::send_control(std::span<const std::byte> message) {
  if (is_over() || state_ == State::kClosing) return;
  if (const Status queued = controls_.push(message); !queued.is_ok()) return fail(queued);
  request_connection();
  if (ports_[0]->channel) ports_[0]->channel->kick();
}

void FramedLink::kick_data() {
  for (auto& port : ports_) {
    if (sends_.empty()) return;
    if (port->carries_data && port->channel) port->channel->kick();
  }
}

void FramedLink::on_lower_priority() { kick_data(); }

std::span<const std::unique_ptr<FramedLink::Port>> FramedLink::streams() const {
  const std::span all(ports_);
  if (control_channels_ == 1) return all.last(1);
  return all.subspan(1, std::min<size_t>(environment_.streams, all.size() - 1));
}

bool FramedLink::next(Port& port, Frame& frame, uint64_t room) {
  if (parting_ != Parting::kNo) return next_while_parting(port, frame, room);
  if (is_over() || port.goodbye_handed) return false;
  if (!last_words_.empty()) return next_last_words(port, frame);
  if (port.next_mark(frame, marks_requested_)) return true;
  if (port.carries_control && next_mark_request(frame)) return true;
  room = std::min(room, environment_.frame_bytes);
  if (port.carries_control && controls_.next(frame, room)) return true;
  if (may_carry_data(port) && sends_.next(frame, room)) {
    port.data_taken(frame.header);
    port.last_priority = frame.transfer->priority;
    report_priority();
    return true;
  }
  if (state_ != State::kClosing) return false;
  port.take_goodbye(frame);
  return true;
}

bool FramedLink::may_carry_data(const Port& port) {
  if (!port.carries_data || sends_.empty()) return false;
  const int last = streams().back()->index;
  if (port.index > last || (port.is_express && !is_overtaking())) return false;
  if (port.index == last || sends_.priority() >= environment_.priorities.highest()) return true;
  environment_.priorities.notify_when_lower(place_);
  return false;
}

bool FramedLink::is_overtaking() const {
  return std::ranges::any_of(streams(),
                             [&](auto& port) { return port->last_priority < sends_.priority(); });
}

void FramedLink::report_priority() {
  if (control_channels_ == 1) return;
  const bool sending = is_connected() && !is_over() && !sends_.empty();
  environment_.priorities.set(place_, sending ? sends_.priority() : LinkPriorities::kNone);
}

void FramedLink::sent(Port& port, const Frame& frame) {
  if (parting_ != Parting::kNo) return sent_while_parting(port, frame);
  if (is_over()) return;
  TrafficCounters& counters = environment_.counters;
  add(counters.frames_sent, 1);
  switch (frame.header.kind()) {
    case FrameHeader::kMark:
    case FrameHeader::kMarkRequest:
    case FrameHeader::kBreakOff:
    case FrameHeader::kRenewal: return;
    case FrameHeader::kData:
      add(counters.data_bytes_sent[static_cast<int>(port.channel->kind())], frame.header.length);
      sends_.sent(frame);
      return;
    case FrameHeader::kControl:
      if (!controls_.sent(frame)) return;
      add(counters.control_messages_sent, 1);
      add(counters.control_bytes_sent, frame.header.size);
      return;
    case FrameHeader::kGoodbye:
      port.goodbye_sent = true;
      finish_closing_if_done();
      return;
  }
}

bool FramedLink::arrived(Port& port, const FrameHeader& header, const std::byte* data,
                         Lease lease) {
  if (parting_ != Parting::kNo) return arrived_while_parting(port, header);
  if (is_over()) return false;
  Status status = port.check(header);
  if (status.is_ok()) {
    add(environment_.counters.frames_received, 1);
    bool held = false;
    switch (header.kind()) {
      case FrameHeader::kData:
        if (!port.count_arrived(header)) {
          fail_unmarked(port);
          return false;
        }
        status = inbox_.arrived(header, data, std::move(lease), held, port.index);
        if (held) add(environment_.counters.unexpected_frames, 1);
        break;
      case FrameHeader::kControl: status = control_arrived(header, data); break;
      case FrameHeader::kGoodbye: goodbye_arrived(port); break;
      case FrameHeader::kMark:
        port.mark_arrived();
        arrivals_.marked(port.index, header.number());
        if (port.carries_control) peer_answered(header.number());
        break;
      case FrameHeader::kMarkRequest: marks_requested(header.number()); break;
      case FrameHeader::kBreakOff:
        end_lost(Status::blaming_nobody({reinterpret_cast<const char*>(data), header.length}));
        break;
      case FrameHeader::kRenewal: break;  // refused by check()
    }
  }
  if (!status.is_ok()) not_accepted(port, status);
  return takes_more(port);
}

Status FramedLink::control_arrived(const FrameHeader& header, const std::byte* data) {
  // Keeps the message until the observer has returned, even if that fails the link.
  std::optional<ControlMessages::Arrived> message;
  PERSEUS_RETURN_IF_ERROR(controls_.arrived(header, data, message));
  if (!message) return Status::ok();
  add(environment_.counters.control_messages_received, 1);
  add(environment_.counters.control_bytes_received, message->bytes.size());
  environment_.observer.link_control(peer(), message->bytes);
  return Status::ok();
}

bool FramedLink::has_any_goodbye() const {
  return std::any_of(ports_.begin(), ports_.end(), [](auto& p) { return p->goodbye_received; });
}

void FramedLink::goodbye_arrived(Port& port) {
  port.goodbye_received = true;
  if (!std::all_of(ports_.begin(), ports_.end(), [](auto& p) { return p->goodbye_received; })) {
    return;
  }
  if (state_ == State::kClosing) {
    finish_closing_if_done();
    return;
  }
  end(State::kLeft, Status::without(peer(), peer_name_ + " has shut down"), Parting::kUnderWay);
}

void FramedLink::channel_failed(Port& port, const Status& why) {
  if (parting_ != Parting::kNo) return stop_parting();
  if (is_over() || !last_words_.empty()) return;
  if (port.goodbye_received && state_ == State::kOpen) {
    // The peer has said goodbye on this channel; on the others the goodbye is on its way, or they
    // will fail too.
    port.channel->close();
    return;
  }
  const bool may_be_explained =
      port.has_marks && !port.carries_control && why.code() == StatusCode::kAborted;
  if (!may_be_explained) return fail(why);
  port.channel->close();
  connection_failed("the connection" + port.route + " has ended: " + why.message(), why);
}

void FramedLink::cannot_connect(const Status& why) {
  connection_failed("a connection is missing: " + why.message(), why);
}

void FramedLink::connection_failed(const std::string& how, const Status& why) {
  if (is_over() || verdict_.is_set()) return;
  if (!has_channel(0) || !ports_[0]->has_marks) return fail(why);
  verdict_.set(Clock::now() + kExplained, [this, why] { fail(why); });
  doubt_ = how;
  doubt_number_ = arrivals_.ask();
}

void FramedLink::close() {
  if (parting_ == Parting::kCut) say_goodbye();
  if (is_over()) {
    environment_.observer.link_closed(peer());
    return;
  }
  if (!connection_requested_) {
    // Not connected, so there is nobody to say goodbye to.
    end(State::kClosed, Status::aborted("this rank has shut down"));
    environment_.observer.link_closed(peer());
    return;
  }
  state_ = State::kClosing;
  for (auto& port : ports_) {
    if (port->channel && !is_over()) port->channel->kick();
  }
}

void FramedLink::finish_closing_if_done() {
  const bool done = std::all_of(ports_.begin(), ports_.end(), [](auto& port) {
    return port->goodbye_sent && port->goodbye_received;
  });
  if (!done || state_ != State::kClosing) return;
  end(State::kClosed, Status::aborted(peer_name_ + " has shut down"), Parting::kUnderWay);
  environment_.observer.link_closed(peer());
}

void FramedLink::abort(const Status& why) {
  if (parting_ == Parting::kCut) say_goodbye();
  if (!is_over()) end(State::kFailed, why);
}

void FramedLink::fail(const Status& why) {
  const bool is_own_exhaustion = why.code() == StatusCode::kOutOfMemory;
  end_lost(is_own_exhaustion
               ? Status::without(environment_.rank, environment_.rank_name +
                                                        " cannot keep a connection to " +
                                                        peer_name_ + ": " + why.message())
               : Status::without(peer(), "lost " + peer_name_ + ": " + why.message()));
}

void FramedLink::end_lost(const Status& why) {
  if (is_over()) return;
  const bool was_closing = state_ == State::kClosing;
  end(State::kFailed, why);
  // A rank that is leaving anyway need not hear of it.
  if (was_closing) {
    environment_.observer.link_closed(peer());
  } else {
    environment_.observer.link_lost(peer(), why);
  }
}

void FramedLink::end(State state, const Status& why, Parting parting) {
  parting_ = can_part() ? parting : Parting::kNo;
  state_ = state;
  end_status_ = why;
  arrivals_.stop();
  verdict_.cancel();
  for (auto& port : ports_) {
    if (!port->channel) continue;
    parting_ == Parting::kNo ? port->channel->close() : port->channel->release_transfers();
  }
  sends_.clear(why);
  report_priority();
  if (parting_ == Parting::kNo) controls_.clear();
  if (state == State::kLeft) {
    inbox_.fail_posted(why);
  } else {
    inbox_.clear(why);
  }
  if (parting_ == Parting::kUnderWay) say_goodbye();
}

}  // namespace perseus
