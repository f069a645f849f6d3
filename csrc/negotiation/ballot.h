// What some ranks together say in one round of agreement: the operations that all of them have
// ready. Ballots are merged pairwise on their way through the ranks. Merging is commutative,
// associative and idempotent, so that dissemination, in which a rank's word may arrive by several
// paths, gives every rank the same ballot.
//
// A name that all ranks know is one bit. A name seen for the first time, or described otherwise
// than before, is a record: its key and what was said of it (records.h). It keeps at most two
// different descriptions, so a ballot does not grow with the number of ranks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "negotiation/description.h"
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

struct Ballot {
  std::vector<uint64_t> bits;  // by id; ready on every rank covered
  Records records;
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
  // Lowest rank covered that has not joined; who speaks for the bits when one of them becomes a
  // record.
  int32_t speaker = 0;

  bool has(uint32_t id) const { return id / 64 < bits.size() && (bits[id / 64] >> (id % 64)) & 1; }
  void set(uint32_t id) {
    if (id / 64 >= bits.size()) bits.resize(id / 64 + 1);
    bits[id / 64] |= uint64_t{1} << (id % 64);
  }

  void clear();  // keeps the memory
  void merge(Ballot&& other, const KnownOperations& known);

  void write(ByteWriter& writer) const;
  bool read(ByteReader& reader);
};

}  // namespace perseus
