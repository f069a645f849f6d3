// Agreement of one process set on what is ready, with no master.
//
// Ranks agree in rounds. In a round every rank casts a ballot of what it has ready; dissemination
// (Hensgen, Finkel, Manber 1988) spreads the merged ballots: in hop k a rank sends what it has
// merged so far to the rank 2^k after it and hears from the rank 2^k before it, so that after
// ceil(log2 N) messages each way every rank holds the same merged ballot, for any N, and no rank
// does more than another. What the ballot says is ready everywhere is agreed.
//
// A round is begun by a rank that has something to say that it has not said, and joined by a rank
// that has anything ready when a message of that round reaches it. A rank with nothing ready lets
// the messages wait: without it nothing can be agreed anyway. So rounds happen at the pace of the
// slowest rank, several submissions share one, and nothing is sent when nothing is new.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/name_map.h"
#include "base/status.h"
#include "negotiation/agreement.h"
#include "negotiation/ballot.h"

namespace perseus {

// What a Negotiator needs of its surroundings.
class NegotiatorHost {
 public:
  // Sends to the set's rank of this index. Messages to one rank must arrive in order.
  virtual void send(int to_index, std::span<const std::byte> message) = 0;
  virtual void agreed(const Agreement& agreement) = 0;
  // This rank's input of a pending operation, of as many bytes on all ranks, that is done once
  // those of all ranks are at hand; empty if it cannot be done so.
  virtual std::span<const std::byte> input([[maybe_unused]] const std::string& key) { return {}; }
  // The latest time of an agreement of this rank's, in any set. A host of one set needs none.
  virtual uint64_t time() const { return 0; }
  virtual ~NegotiatorHost() = default;
};

// Does no input or output of its own and knows no clock; used by one thread.
class Negotiator final : private KnownOperations {
 public:
  // index: this rank in the set; ranks: the set's, in the world, for messages to people. prefix:
  // bytes that go before each message, for whoever takes it apart.
  Negotiator(int index, int size, const std::vector<int>& ranks, size_t capacity,
             std::vector<std::byte> prefix, NegotiatorHost& host);

  // This rank has the operation ready. The key must not be pending here already, unless it is
  // refused: then this waits its turn. Nothing is sent before advance().
  void submit(const std::string& key, std::shared_ptr<const Description> description);
  // This rank was to submit the operation and cannot: what the others submit under the key, once,
  // fails. The key must not be pending here, unless it is refused.
  void refuse(const std::string& key, Refusal refusal);
  // This rank has waited long for the pending operation, and wants the others to know.
  void mark_overdue(const std::string& key);
  // Whether this rank takes part in rounds that others begin though it has nothing ready.
  void attend(bool always) { attends_ = always; }
  // The same while launches wait for those that are under way to end on all ranks.
  void attend_to_launches(bool always) { attends_to_launches_ = always; }
  // How many launches have ended here; goes with the ballots from now on. Where others wait for
  // that, a round is begun to say what the last ballot did not.
  void launches_ended(uint64_t count, bool others_wait) {
    launches_ended_ = count;
    has_news_ |= others_wait && count > launches_told_;
  }
  // Another rank has to know how this round ends: this one takes part in it at once.
  void demand(uint64_t round) { demanded_round_ = std::max(demanded_round_, round); }
  // Once what is pending is done, this rank has everything ready that others submit, until all have
  // joined.
  void join();
  // The tuner's result for a trial; goes with the ballots until the next is given. Begins no round.
  void measured(int32_t trial, uint64_t result) {
    trial_ = trial;
    result_ = result;
  }
  // A message of another rank of the set, without the prefix. An error if it is none of ours.
  Status receive(std::span<const std::byte> message);
  // Begins or joins a round if there is reason to. Call after submit, join and receive.
  void advance();

  // Not ok once a ballot has come that no rank of ours casts: no round ends any more.
  const Status& failure() const { return failure_; }

  // A rank of the set takes part in no round after this one: a later one can end only for those who
  // need no more messages of it, and what is then ready cannot run. Whether that was not known.
  bool limit_rounds(uint64_t last_round);
  // No further agreement is possible.
  bool is_exhausted() const { return completed_rounds_ >= last_round_; }
  uint64_t last_round() const { return last_round_; }
  uint64_t completed_rounds() const { return completed_rounds_; }
  // Whether this rank has cast its ballot in a round that has not ended, and when.
  bool is_in_round() const { return in_round_; }
  uint64_t time_of_ballot() const { return time_of_ballot_; }

  // Whether the name was agreed on after that round.
  bool has_agreed_since(const std::string& key, uint64_t round) const;
  // Whether this rank now has everything ready that others submit.
  bool has_joined() const { return joined_; }

  struct Counters {
    uint64_t agreements = 0;
    uint64_t messages_sent = 0, bytes_sent = 0;
    uint64_t messages_received = 0, bytes_received = 0;
    uint64_t descriptions_sent = 0;  // records, beyond bits, in ballots cast here
  };
  const Counters& counters() const { return counters_; }

 private:
  static constexpr int kMaxHops = 32;

  struct Pending {
    uint32_t ordinal = 0;
    std::shared_ptr<const Description> description;
    std::optional<Refusal> refusal;  // in place of the description
    bool is_overdue = false;

    bool exists() const { return description != nullptr || refusal; }
  };
  struct Known {
    std::shared_ptr<const KnownOperation> operation;  // null: a free place
    uint64_t last_used = 0;                           // round
    Pending pending;                                  // if its bit stands
  };

  const Description& description(uint32_t id) const override {
    return known_[id].operation->description;
  }
  uint32_t find(const std::string& key) const override;

  void add(const std::string& key, Pending pending);
  // Lets it stand in the coming ballots: as a bit, if that says all of it.
  void place(uint32_t id, const std::string& key, Pending pending);
  // Here and below, `id` is the key's: kNoId if there is none.
  bool is_pending(uint32_t id, const std::string& key) const;
  // Takes it out: nothing if there is none.
  Pending take_pending(uint32_t id, const std::string& key);
  size_t pending_count() const { return standing_ + to_describe_.size(); }
  void forget_pending();
  // Forgets what is pending under the key, and gives its turn to what waits behind it. Whether it
  // was a refusal.
  bool conclude(const std::string& key);
  bool can_join() const;
  bool should_begin() const;
  void begin_round();
  // Makes records of what bits do not say.
  void describe();
  // Sends the input of the only operation that is pending along, if it is small.
  void attach_input();
  void send_hop();
  void run_hops();
  bool is_valid(const Ballot& ballot) const;
  void complete_round();
  uint32_t learn(const std::string& key, const Description& description);
  Agreement::Ready ready(uint32_t id) const;
  void conclude_records();
  void conclude_bits();
  void forget_unused();
  void forget(uint32_t id);

  const int index_;
  const int size_;
  const int rank_;  // in the world
  const int hops_;
  const size_t capacity_;
  const std::vector<std::byte> prefix_;
  NegotiatorHost& host_;

  // What is pending and said by bits is in the registry, the rest here. Both are kept from round to
  // round, for a rank that is ahead of others has thousands of names pending for many of them.
  Bits standing_bits_;
  size_t standing_ = 0;
  NameMap<Pending> to_describe_;
  size_t refusals_ = 0;  // of what is pending
  // What came under a key that is pending as a refusal, in order.
  std::vector<std::pair<std::string, Pending>> behind_refusals_;
  uint32_t next_ordinal_ = 0;
  bool has_news_ = false;  // something is pending that no ballot of ours has said
  bool attends_ = false;
  bool attends_to_launches_ = false;
  uint64_t launches_ended_ = 0;
  uint64_t launches_told_ = 0;  // in the last ballot
  uint64_t demanded_round_ = 0;
  bool joining_ = false;
  bool joined_ = false;
  uint64_t join_round_ = 0;
  int32_t trial_ = -1;
  uint64_t result_ = 0;

  // Registry: the same on all ranks but for what is pending, since only agreements change it.
  std::vector<Known> known_;  // by id
  std::set<uint32_t> free_ids_;
  std::unordered_map<std::string, uint32_t> ids_;

  uint64_t completed_rounds_ = 0;
  uint64_t last_round_ = UINT64_MAX;
  Status failure_;
  bool in_round_ = false;
  uint64_t time_of_ballot_ = 0;
  int hop_ = 0;
  Ballot ballot_;
  // Ballots that have arrived, by round (this one or the next) and hop.
  struct Arrival {
    bool has_arrived = false;
    Ballot ballot;
  };
  std::array<std::array<Arrival, kMaxHops>, 2> inbox_;
  Agreement agreement_;  // of the last round
  ByteWriter writer_;
  Counters counters_;
};

}  // namespace perseus
