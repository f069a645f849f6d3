// The words of messengers to each other. They travel as control messages: in order, and ahead of
// data.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/bytes.h"
#include "base/status.h"
#include "codec/codec.h"
#include "negotiation/description.h"

namespace perseus {

// Announces a message between two ranks.
struct Envelope {
  int32_t process_set = 0;
  int32_t tag = 0;
  uint64_t number = 0;    // counts the messages from this sender to this receiver, from 1
  bool is_whole = false;  // the elements follow; otherwise they wait for a Clearance
  bool in_runs = false;   // the elements move in runs: see MessageForm
  TensorDescription tensor;
  int32_t codec = kCodecNone;  // that has encoded the elements
  uint64_t encoded_bytes = 0;  // what that gives; 0 if there is none
  std::string refusal =
      {};  // why the sender's program cannot send it, in place of elements; else empty

  uint64_t bytes() const;  // of the elements as they travel

  void write(ByteWriter& writer) const;  // without the elements
  static std::optional<Envelope> read(ByteReader& reader);

 private:
  bool may_be_encoded() const;
};

// Answers an envelope without elements.
struct Clearance {
  uint64_t number = 0;
  bool in_runs = false;  // as in the envelope, or because the receiver wants them in runs
  Status refusal = {};   // why the receiver does not take them; ok: send them now

  void write(ByteWriter& writer) const;
  static std::optional<Clearance> read(ByteReader reader);
};

// Asks the receiver to refuse the message, unless it has cleared it.
struct Withdrawal {
  uint64_t number = 0;

  void write(ByteWriter& writer) const;
  static std::optional<Withdrawal> read(ByteReader reader);
};

// So many bytes that came with envelopes have been taken, so that as many more may come.
struct Credit {
  uint64_t bytes = 0;

  void write(ByteWriter& writer) const;
  static std::optional<Credit> read(ByteReader reader);
};

}  // namespace perseus
