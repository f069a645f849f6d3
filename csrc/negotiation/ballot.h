// A ballot says which operations some ranks all have ready in one round of agreement. Ballots are
// merged pairwise on their way through the ranks. Merging is commutative, associative and
// idempotent: with dissemination, one rank's ballot may reach another by several paths, and still
// every rank ends up with the same merged ballot.
//
// A name that all ranks know takes one bit. A name that is new, or whose description has changed,
// takes a record: its key and its descriptions (records.h). A record keeps at most two different
// descriptions, so a ballot does not grow with the number of ranks.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "negotiation/description.h"
#include "negotiation/piggyback.h"
#include "negotiation/records.h"

namespace perseus {

// The description behind each bit, which all ranks know.
class KnownOperations {
 public:
  virtual const Description& description(uint32_t id) const = 0;
  // Returns the id of a key, or kNoId.
  virtual uint32_t find(const std::string& key) const = 0;

 protected:
  ~KnownOperations() = default;
};
inline constexpr uint32_t kNoId = UINT32_MAX;

// A set of small ids.
class Bits {
 public:
  bool has(uint32_t id) const {
    return id / 64 < words_.size() && (words_[id / 64] >> (id % 64)) & 1;
  }
  void set(uint32_t id) {
    if (id / 64 >= words_.size()) words_.resize(id / 64 + 1);
    words_[id / 64] |= uint64_t{1} << (id % 64);
  }
  // The id must be in the set.
  void reset(uint32_t id) { words_[id / 64] &= ~(uint64_t{1} << (id % 64)); }
  void intersect(const Bits& other) {
    words_.resize(std::min(words_.size(), other.words_.size()));
    for (size_t i = 0; i < words_.size(); ++i) words_[i] &= other.words_[i];
  }
  void clear() { words_.clear(); }
  bool empty() const { return words_.empty(); }

  // Calls `visit(id)` for each id, in ascending order.
  template <typename Visit>
  void for_each(Visit visit) const {
    for (size_t word = 0; word < words_.size(); ++word) {
      for (uint64_t rest = words_[word]; rest != 0; rest &= rest - 1) {
        visit(static_cast<uint32_t>(word * 64 + std::countr_zero(rest)));
      }
    }
  }

  void write(ByteWriter& writer) const;
  bool read(ByteReader& reader);

 private:
  std::vector<uint64_t> words_;
};

// A rank is covered by a ballot if its own ballot has been merged into it.
struct Ballot {
  Bits bits;  // operations that are ready on every rank covered
  Records records;
  Piggyback piggyback;
  // Every rank covered has joined, and so has everything ready: the neutral element of merging.
  bool all_joined = false;
  // The ranks that have joined, ascending. Empty except at the uneven end of an epoch.
  std::vector<int32_t> joined;
  // The last join: the round in which a rank first said that it joined, and that rank.
  uint64_t last_join_round = 0;
  int32_t last_join_rank = -1;
  // The tuner's trial that every rank covered has measured, or -1, and the slowest rank's result.
  int32_t trial = -1;
  uint64_t slowest = 0;
  // The latest agreement that a rank covered has heard of; see Agreement::time.
  uint64_t time = 0;
  // The highest number that a rank covered has announced and no agreement has carried; 0: none.
  uint64_t announced = 0;
  // How many GPU launches have ended on every rank covered; see LaunchOrder.
  uint64_t launches_ended = UINT64_MAX;
  // The lowest rank covered that has not joined. When a bit has to become a record, this rank is
  // named as the one that said so.
  int32_t speaker = 0;

  void clear();  // keeps its memory
  void merge(Ballot&& other, const KnownOperations& known);

  void write(ByteWriter& writer) const;
  bool read(ByteReader& reader);

 private:
  uint8_t flags() const;
};

}  // namespace perseus
