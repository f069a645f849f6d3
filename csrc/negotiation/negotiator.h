// The ranks of a process set agree on what is ready, with no master.
//
// Ranks agree in rounds. In a round every rank casts a ballot of what it has ready. Dissemination
// (Hensgen, Finkel, Manber 1988) spreads the merged ballots: in hop k a rank sends what it has
// merged so far to the rank 2^k after it, and receives from the rank 2^k before it. After
// ceil(log2 N) messages each way every rank holds the same merged ballot, for any N, and no rank
// has done more than another. The operations that the ballot says are ready everywhere are agreed.
//
// A rank begins a round when it has news that none of its ballots has carried yet. Another rank
// joins the round if it has anything ready when a message of that round reaches it. A rank with
// nothing ready lets the messages wait: without it nothing can be agreed anyway. So rounds happen
// at the pace of the slowest rank, several submissions share one, and nothing is sent when nothing
// is new.
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

// The owner of a Negotiator, as the negotiator sees it.
class NegotiatorHost {
 public:
  // Sends to the rank with this index in the set. Messages to one rank must arrive in order.
  virtual void send(int to_index, std::span<const std::byte> message) = 0;
  virtual void agreed(const Agreement& agreement) = 0;
  // Returns what this rank's ballot should take along for a pending operation, an empty one if
  // nothing. Only if all ranks' attachments are of one kind and size do they come with the
  // agreement.
  virtual Attachment attachment([[maybe_unused]] const std::string& key) { return {}; }
  // The latest Agreement::time of this rank, in any set. A host with one set need not keep it.
  virtual uint64_t time() const { return 0; }
  // The highest number that this rank has announced to the set; 0 if none. It only rises.
  virtual uint64_t announcement() const { return 0; }
  virtual ~NegotiatorHost() = default;
};

// Does no I/O itself and reads no clock. One thread.
class Negotiator final : private KnownOperations {
 public:
  // `index`: this rank's in the set. `ranks`: the world ranks of the set, for error messages.
  // `capacity`: how many names are remembered. `prefix`: bytes that the owner wants at the
  // beginning of each message, to tell it from others.
  Negotiator(int index, int size, const std::vector<int>& ranks, size_t capacity,
             std::vector<std::byte> prefix, NegotiatorHost& host);

  // This rank has the operation ready. The key must not be pending here already, except as a
  // refusal: then this submission waits until the refusal is done. Nothing is sent before
  // advance().
  void submit(const std::string& key, std::shared_ptr<const Description> description);
  // Call when this rank should submit the operation but cannot. The next operation that the others
  // submit under the key fails; later ones do not. The key must not be pending here, except as a
  // refusal.
  void refuse(const std::string& key, Refusal refusal);
  // Call when this rank has waited long for the pending operation. Its next ballots say so.
  void mark_overdue(const std::string& key);
  // If `always`, this rank takes part in rounds that other ranks begin, even if it has nothing
  // ready itself.
  void take_part_always(bool always) { takes_part_always_ = always; }
  // The same; for use while GPU launches wait for earlier launches to end on all ranks.
  void take_part_for_launches(bool always) { takes_part_for_launches_ = always; }
  // From now on, this rank's ballots report that `count` launches have ended here. If later
  // launches wait for that (`others_wait`) and the last ballot did not report it, advance() begins
  // a round.
  void launches_ended(uint64_t count, bool others_wait) {
    launches_ended_ = count;
    has_news_ |= others_wait && count > launches_in_ballot_;
  }
  // Another rank needs this round to end, so this rank takes part in it at once.
  void demand(uint64_t round) { demanded_round_ = std::max(demanded_round_, round); }
  // Once nothing is pending here, this rank counts as ready for whatever the others submit. This
  // ends when all ranks have joined.
  void join();
  // The tuner's result for a trial, which the ballots carry until the next result. Begins no round.
  void measured(int32_t trial, uint64_t result) {
    trial_ = trial;
    result_ = result;
  }
  // Takes a message of another rank of the set, without the prefix. Returns an error if it is not a
  // message that a rank of the set can have sent.
  Status receive(std::span<const std::byte> message);
  // Begins or joins a round if there is reason to. Call it after submit, join and receive.
  void advance();

  // Not ok once a ballot has arrived that no rank of the set can have cast. After that, no round
  // ends.
  const Status& failure() const { return failure_; }

  // Call when a rank of the set will take part in no round after `last_round`. Some ranks may still
  // be able to end a later round, if they need no more messages from that rank, but what that round
  // agrees on cannot run. Returns whether this lowers the limit.
  bool limit_rounds(uint64_t last_round);
  // Returns whether no further agreement is possible.
  bool is_exhausted() const { return completed_rounds_ >= last_round_; }
  uint64_t last_round() const { return last_round_; }
  uint64_t completed_rounds() const { return completed_rounds_; }
  // Returns whether this rank has cast its ballot in a round that has not ended.
  bool is_in_round() const { return in_round_; }
  // Returns the logical time at which this rank cast its last ballot.
  uint64_t time_of_ballot() const { return time_of_ballot_; }

  // Returns whether the name was agreed on, or first described, in a round after `round`.
  bool has_agreed_since(const std::string& key, uint64_t round) const;
  // Returns whether this rank now counts as having everything ready that others submit.
  bool has_joined() const { return joined_; }

  // Returns how many records, which stand in place of bits, the ballots cast here have had in all.
  uint64_t descriptions_sent() const { return descriptions_sent_; }

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
    std::shared_ptr<const KnownOperation> operation;  // null: the id is free
    uint64_t last_used = 0;                           // the round
    Pending pending;                                  // if its bit is in pending_bits_
  };

  const Description& description(uint32_t id) const override {
    return known_[id].operation->description;
  }
  uint32_t find(const std::string& key) const override;

  void add(const std::string& key, Pending pending);
  // Adds the operation to the coming ballots: as a bit if that is enough, else as a record.
  void add_to_ballots(uint32_t id, const std::string& key, Pending pending);
  // Here and below, `id` is the key's id, or kNoId if it has none.
  bool is_pending(uint32_t id, const std::string& key) const;
  // Removes and returns the pending operation; an empty one if there is none.
  Pending take_pending(uint32_t id, const std::string& key);
  size_t pending_count() const { return pending_bit_count_ + to_describe_.size(); }
  void forget_pending();
  // Forgets what is pending under the key. If that was a refusal, submits what waited behind it and
  // returns true.
  bool conclude(const std::string& key);
  bool can_join() const;
  bool should_begin() const;
  void begin_round();
  // Adds records for everything pending that a bit cannot express.
  void describe();
  // Adds the attachment of the only pending operation to the ballot, if it is small enough.
  void attach();
  void hand_on_attachments();
  void send_hop();
  void run_hops();
  bool is_valid(const Ballot& ballot) const;
  // Returns whether an operation of this description can have these attachments.
  bool fits(const Piggyback& piggyback, const Description& its) const;
  void complete_round();
  uint32_t learn(const std::string& key, const Description& description);
  Agreement::Ready ready(uint32_t id) const;
  void conclude_records();
  void conclude_bits();
  void forget_unused();
  void forget(uint32_t id);

  const int index_;
  const int size_;
  const int rank_;  // this rank's number in the world
  const int hops_;
  const size_t capacity_;
  const std::vector<std::byte> prefix_;
  NegotiatorHost& host_;

  // Operations that are pending: those that a bit expresses are in the registry below, the others
  // in to_describe_. Both persist from round to round, since a rank that is ahead of others has
  // thousands of names pending for many rounds.
  Bits pending_bits_;
  size_t pending_bit_count_ = 0;
  NameMap<Pending> to_describe_;
  size_t refusals_ = 0;  // how many of the pending ones are refusals
  // Submissions and refusals under a key that is pending as a refusal, in order.
  std::vector<std::pair<std::string, Pending>> behind_refusals_;
  uint32_t next_ordinal_ = 0;
  bool has_news_ = false;  // there is something that no ballot of this rank has carried
  bool takes_part_always_ = false;
  bool takes_part_for_launches_ = false;
  uint64_t launches_ended_ = 0;
  uint64_t launches_in_ballot_ = 0;  // how many of them the last ballot reported
  uint64_t demanded_round_ = 0;
  bool joining_ = false;
  bool joined_ = false;
  uint64_t join_round_ = 0;
  int32_t trial_ = -1;
  uint64_t result_ = 0;

  // The registry of names. Except for what is pending it is the same on all ranks, since only
  // agreements change it.
  std::vector<Known> known_;  // by id
  std::set<uint32_t> free_ids_;
  std::unordered_map<std::string, uint32_t> ids_;

  uint64_t announced_ = 0;  // Agreement::announced of the last round: the same on all ranks

  uint64_t completed_rounds_ = 0;
  uint64_t last_round_ = UINT64_MAX;
  Status failure_;
  bool in_round_ = false;
  uint64_t time_of_ballot_ = 0;
  int hop_ = 0;
  Ballot ballot_;
  // Ballots that have arrived, by round (the current one or the next) and hop.
  struct Arrival {
    bool has_arrived = false;
    Ballot ballot;
  };
  std::array<std::array<Arrival, kMaxHops>, 2> inbox_;
  Agreement agreement_;  // of the last round
  ByteWriter writer_;
  uint64_t descriptions_sent_ = 0;
};

}  // namespace perseus
