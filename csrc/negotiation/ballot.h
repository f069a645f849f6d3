// What some ranks together say in one round of agreement: the operations that all of them have
// ready. Ballots are merged pairwise on their way through the ranks. Merging is commutative,
// associative and idempotent, so that dissemination, in which a rank's word may arrive by several
// paths, gives every rank the same ballot.
//
// A name that all ranks know is one bit. A name seen for the first time, or described otherwise
// than before, is a record: its key and what was said of it (records.h). It keeps at most two
// different descriptions, so a ballot does not grow with the number of ranks.
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

// What is known on all ranks: the description behind each bit.
class KnownOperations {
 public:
  virtual const Description& description(uint32_t id) const = 0;
  // Id of a key, or kNoId.
  virtual uint32_t find(const std::string& key) const = 0;

 protected:
  ~KnownOperations() = default;
};
inline constexpr uint32_t kNoId = UINT32_MAX;

// A set of ids.
class Bits {
 public:
  bool has(uint32_t id) const {
    return id / 64 < words_.size() && (words_[id / 64] >> (id % 64)) & 1;
  }
  void set(uint32_t id) {
    if (id / 64 >= words_.size()) words_.resize(id / 64 + 1);
    words_[id / 64] |= uint64_t{1} << (id % 64);
  }
  // The id must be in it.
  void reset(uint32_t id) { words_[id / 64] &= ~(uint64_t{1} << (id % 64)); }
  void intersect(const Bits& other) {
    words_.resize(std::min(words_.size(), other.words_.size()));
    for (size_t i = 0; i < words_.size(); ++i) words_[i] &= other.words_[i];
  }
  void clear() { words_.clear(); }
  bool empty() const { return words_.empty(); }

  // Calls `visit(id)` for each, ascending.
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

struct Ballot {
  Bits bits;  // ready on every rank covered
  Records records;
  Piggyback piggyback;
  // Every rank covered has joined, and so has everything ready: the neutral element.
  bool all_joined = false;
  // Who has joined, ascending. Empty but at the uneven end of an epoch.
  std::vector<int32_t> joined;
  // The last join: the round in which a rank first said that it joined, and that rank.
  uint64_t last_join_round = 0;
  int32_t last_join_rank = -1;
  // The tuner's trial that every rank covered has measured, or -1; and the slowest one's result.
  int32_t trial = -1;
  uint64_t slowest = 0;
  // The latest time of an agreement that a rank covered has heard of; see Agreement::time.
  uint64_t time = 0;
  // Launches on GPUs that have ended on every rank covered; see LaunchOrder.
  uint64_t launches_ended = UINT64_MAX;
  // Lowest rank covered that has not joined; who speaks for the bits when one of them becomes a
  // record.
  int32_t speaker = 0;

  void clear();  // keeps the memory
  void merge(Ballot&& other, const KnownOperations& known);

  void write(ByteWriter& writer) const;
  bool read(ByteReader& reader);
};

}  // namespace perseus
