// One channel's view of its link: what the channel carries, and how far it has come. Included by
// the link alone. Loop thread.
#pragma once

#include <climits>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "transport/framed_link.h"

namespace perseus {

class FramedLink::Port final : public FramePort {
 public:
  Port(FramedLink& link, int index, bool control, bool data, bool express)
      : index(index),
        carries_control(control),
        carries_data(data),
        is_express(express),
        link_(link) {}

  bool next(Frame& frame, uint64_t room) override { return link_.next(*this, frame, room); }
  void sent(const Frame& frame) override { link_.sent(*this, frame); }
  bool arrived(const FrameHeader& header, const std::byte* data, Lease lease) override {
    return link_.arrived(*this, header, data, std::move(lease));
  }
  std::byte* target(const FrameHeader& header) override;
  bool landed(const FrameHeader& header) override;
  bool awaits_data() const override;
  uint64_t max_length() const override { return link_.environment_.chunk_bytes; }
  void failed(const Status& why) override { link_.channel_failed(*this, why); }
  void disturbed(const std::string& how) override { link_.disturbed(*this, how); }

  // Returns an error if no peer sends such a frame on this channel.
  Status check(const FrameHeader& header) const;

  // Takes the mark that is due, if there is one; `request` is the peer's latest.
  bool next_mark(Frame& frame, uint64_t request);
  void take_goodbye(Frame& frame);
  // Count data, of which there is at most so much between two marks.
  void data_taken(const FrameHeader& header) { unmarked_out_ += kMarkedFrame + header.length; }
  // Returns whether the peer may have sent that much without a mark.
  bool count_arrived(const FrameHeader& header);
  void mark_arrived() { unmarked_in_ = 0; }

  const int index;
  const bool carries_control, carries_data, is_express;
  std::unique_ptr<Channel> channel;
  bool has_marks = false;
  std::string route;                  // " from ADDRESS to ADDRESS", or ""
  int32_t last_priority = INT32_MAX;  // of the last data that the channel has taken
  bool goodbye_handed = false, goodbye_sent = false, goodbye_received = false;

 private:
  FramedLink& link_;
  uint64_t unmarked_out_ = 0, unmarked_in_ = 0;  // bytes of data since the last mark
  uint64_t answered_ = 0;                        // the peer's request that the last mark answered
};

}  // namespace perseus
