// How a link finds out that what was sent over it does not arrive as it was sent; see ArrivalWatch.
#include <string>
#include <utility>

#include "transport/framed_link.h"
#include "transport/link_port.h"

namespace perseus {

void FramedLink::request_marks() {
  if (ports_[0]->channel) ports_[0]->channel->kick();
}

bool FramedLink::next_mark_request(Frame& frame) {
  if (marks_asked_ == arrivals_.requested()) return false;
  marks_asked_ = arrivals_.requested();
  frame = {};
  frame.header.magic_and_kind = FrameHeader::kMagic | FrameHeader::kMarkRequest;
  frame.header.number() = marks_asked_;
  return true;
}

void FramedLink::marks_requested(uint64_t number) {
  marks_requested_ = number;
  for (auto& port : ports_) {
    if (port->has_marks && !is_over()) port->channel->kick();
  }
}

bool FramedLink::is_open(int channel) const { return !ports_[channel]->goodbye_received; }

uint64_t FramedLink::bytes_received(int channel) const {
  return ports_[channel]->channel->bytes_received();
}

std::string FramedLink::route(const Port& port) const {
  return port.route.empty() ? "" : " over the connection" + port.route;
}

void FramedLink::peer_answered(uint64_t number) {
  if (is_over() || !verdict_.is_set() || number < doubt_number_) return;
  break_off(environment_.rank_name + " has broken off with " + peer_name_ + ": " + doubt_ +
            "; but that rank answers over another connection, so something between the hosts is to "
            "blame");
}

void FramedLink::on_held_back(int channel, std::chrono::milliseconds silent_for) {
  break_off(
      "what " + peer_name_ + " has sent to " + environment_.rank_name + route(*ports_[channel]) +
      " has not arrived for " + std::to_string(silent_for / std::chrono::seconds(1)) +
      " s (PERSEUS_PEER_TIMEOUT), though that rank answers over another connection: something "
      "between the hosts holds it back");
}

void FramedLink::disturbed(const Port& port, const std::string& how) {
  break_off(environment_.rank_name + " has broken off with " + peer_name_ + route(port) + ": " +
            how);
}

void FramedLink::break_off(std::string why) {
  if (parting_ != Parting::kNo) return stop_parting();
  if (is_over() || !last_words_.empty()) return;
  last_words_ = std::move(why);
  const auto& first = ports_.front();
  if (first->has_marks) first->channel->kick();
  end_lost(Status::blaming_nobody(last_words_));
}

bool FramedLink::next_last_words(const Port& port, Frame& frame) {
  if (!port.carries_control || std::exchange(has_said_them_, true)) return false;
  frame = {};
  frame.header.magic_and_kind = FrameHeader::kMagic | FrameHeader::kBreakOff;
  frame.header.length = static_cast<uint32_t>(last_words_.size());
  frame.header.size = last_words_.size();
  frame.data = reinterpret_cast<const std::byte*>(last_words_.data());
  return true;
}

void FramedLink::not_accepted(const Port& port, const Status& why) {
  if (why.code() != StatusCode::kInternal || !port.has_marks) return fail(why);
  disturbed(port,
            why.message() + "; no rank sends that, so something between the hosts has changed it");
}

void FramedLink::fail_unmarked(const Port& port) {
  disturbed(port, "more than " + std::to_string(kMarkedBytes >> 20) +
                      " MiB of data came without a proof that it sent them: something between the "
                      "hosts has added to what it sent");
}

}  // namespace perseus
