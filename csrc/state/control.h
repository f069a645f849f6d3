// The engine's own messages, ahead of all data. The first byte tells which.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"

namespace perseus {

enum class ControlKind : uint8_t {
  kBallot = 1,       // int32 process set, then the negotiator's message
  kLeaving = 2,      // Leaving
  kBroken = 3,       // Broken
  kStallQuery = 4,   // StallQuery
  kStallAnswer = 5,  // StallAnswer
  kPing = 6,         // nothing more
  kPong = 7,         // nothing more
  kRoundDemand = 8,  // RoundDemand
  kClosed = 9,       // Closed
};

// A rank is shutting down; passed on by everyone who had not heard. What has been agreed on in
// these rounds it still takes part in, and in nothing after.
struct Leaving {
  int32_t rank = -1;
  std::string why;                                   // empty: it shut down in order
  std::vector<std::pair<int32_t, uint64_t>> rounds;  // the last round ended there, by process set

  // 0: the rank knows of no such set.
  uint64_t last_round(int32_t set) const;

  std::vector<std::byte> write() const;
  static std::optional<Leaving> read(ByteReader reader);
};

// The sender waits for this round of a process set to end: the receiver is to take part at once.
struct RoundDemand {
  int32_t process_set = 0;
  uint64_t round = 0;

  std::vector<std::byte> write() const;
  static std::optional<RoundDemand> read(ByteReader reader);
};

// A rank has closed a process set: the same, of the set alone. Passed on by every member to whom it
// says something new.
struct Closed {
  int32_t process_set = 0;
  int32_t rank = -1;
  uint64_t last_round = 0;  // that it ended there

  std::vector<std::byte> write() const;
  static std::optional<Closed> read(ByteReader reader);
};

// Operations cannot go on; passed on by everyone who had not heard.
struct Broken {
  int32_t rank = -1;  // that has died, failed or left
  std::string why;
  bool has_left = false;

  std::vector<std::byte> write() const;
  static std::optional<Broken> read(ByteReader reader);
};

// Which of these does the receiver not have pending?
struct StallQuery {
  int32_t process_set = 0;
  uint64_t rounds = 0;  // of the set, that the sender has completed
  std::vector<std::string> keys;

  std::vector<std::byte> write() const;
  static std::optional<StallQuery> read(ByteReader reader);
};
struct StallAnswer {
  int32_t process_set = 0;
  std::vector<std::string> missing;
  std::string last_submitted;

  std::vector<std::byte> write() const;
  static std::optional<StallAnswer> read(ByteReader reader);
};

}  // namespace perseus
