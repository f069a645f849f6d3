// The engine's own messages, which go ahead of all data. The first byte is the kind.
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
  kWaitQuery = 10,   // WaitQuery
  kWaitAnswer = 11,  // WaitAnswer
  // Messages between two ranks:
  kEnvelope = 12,    // Envelope, and the elements if it is whole
  kClearance = 13,   // Clearance
  kWithdrawal = 14,  // Withdrawal
  kCredit = 15,      // Credit
};

// A rank is shutting down. It still takes part in what was agreed on in these rounds, and in
// nothing after. A rank that hears this for the first time passes it on.
struct Leaving {
  int32_t rank = -1;
  std::string why;                                   // empty: it shut down normally
  std::vector<std::pair<int32_t, uint64_t>> rounds;  // the last round ended there, by process set

  // Returns 0 if the rank knows of no such set.
  uint64_t last_round(int32_t set) const;

  std::vector<std::byte> write() const;
  static std::optional<Leaving> read(ByteReader reader);
};

// The sender waits for this round of a process set to end. The receiver is to take part at once.
struct RoundDemand {
  int32_t process_set = 0;
  uint64_t round = 0;

  std::vector<std::byte> write() const;
  static std::optional<RoundDemand> read(ByteReader reader);
};

// A rank has closed a process set: like Leaving, for one set. A member that learns something new
// from it passes it on.
struct Closed {
  int32_t process_set = 0;
  int32_t rank = -1;
  uint64_t last_round = 0;  // that ended on that rank

  std::vector<std::byte> write() const;
  static std::optional<Closed> read(ByteReader reader);
};

// Operations cannot go on. A rank that hears this for the first time passes it on.
struct Broken {
  int32_t rank = -1;  // the rank that has died, failed or left; -1: none can be told
  std::string why;
  bool has_left = false;
  std::vector<int32_t> others_lost = {};  // more ranks that are given up together with that one

  std::vector<std::byte> write() const;
  static std::optional<Broken> read(ByteReader reader);
};

// Asks which of these operations the receiver does not have pending.
struct StallQuery {
  struct Late {
    std::string key;
    uint32_t waited_seconds = 0;  // since the sender submitted it
  };
  int32_t process_set = 0;
  uint64_t rounds = 0;  // how many the sender has completed in the set
  std::vector<Late> late;

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

// Asks what the receiver waits for, since something has waited for as long as is allowed.
struct WaitQuery {
  uint32_t number = 0;    // of the sender's questions
  uint32_t limit_ms = 0;  // that much is allowed
  // The sender's own operation that has waited for longest.
  int32_t process_set = 0;
  uint64_t rounds = 0;  // how many the sender has completed in the set
  std::string key;

  std::vector<std::byte> write() const;
  static std::optional<WaitQuery> read(ByteReader reader);
};
struct WaitAnswer {
  uint32_t number = 0;  // of the question
  bool has_it = false;  // the operation that was asked about
  bool has_joined = false;
  // Nothing is pending; it waits for data of an operation that was agreed on, and asks nobody.
  bool waits_for_data_only = false;
  // How long its own operation that waits for longest has waited. 0: it waits for nothing.
  uint64_t waited_ms = 0;
  std::string waits_for;       // that operation, as it is to be shown
  std::vector<int32_t> ranks;  // that it takes, or whose data it takes; empty: all
  std::string last_submitted;  // as it is to be shown; empty: nothing
  uint64_t idle_ms = 0;        // since then

  std::vector<std::byte> write() const;
  static std::optional<WaitAnswer> read(ByteReader reader);
};

}  // namespace perseus
