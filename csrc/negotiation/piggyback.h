// Inputs of a small operation that travel with the ballots: who has those of all ranks when the
// round ends can do the operation at once, without another message.
//
// A rank sends its input along when its ballot says that operation and nothing else; so if all
// ranks have sent theirs, that operation is what the round agrees on. Merging is commutative,
// associative and idempotent, as ballots need it: inputs of the same operation come together, and
// none takes all. The operation then goes the usual way, on every rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/bytes.h"

namespace perseus {

class Piggyback {
 public:
  // Whether the inputs of all ranks are few enough to go with ballots.
  static bool fits(int size, size_t bytes) {
    return bytes > 0 && size <= kMostRanks && bytes * static_cast<size_t>(size) <= kMostBytes;
  }

  bool has_inputs() const { return bytes_ > 0; }
  uint32_t id() const { return id_; }
  // Of each rank's input.
  uint32_t bytes() const { return bytes_; }

  void clear() { bytes_ = 0; }  // keeps the memory
  // The input of the rank of this index; it must fit.
  void set(uint32_t id, int index, std::span<const std::byte> input);
  void merge(const Piggyback& other);
  bool is_of_all(int size) const {
    return has_inputs() && size <= kMostRanks && ranks_ == UINT64_MAX >> (kMostRanks - size);
  }
  // By index, one after the other.
  std::span<const std::byte> inputs() const { return inputs_; }

  void write(ByteWriter& writer) const;
  bool read(ByteReader& reader);

 private:
  static constexpr int kMostRanks = 64;
  static constexpr size_t kMostBytes = 4096;

  std::byte* input(int index) { return inputs_.data() + size_t{bytes_} * index; }
  const std::byte* input(int index) const { return inputs_.data() + size_t{bytes_} * index; }
  // Has room for the inputs of these ranks and of those with lower indices.
  void make_room(uint64_t ranks);

  uint32_t id_ = 0;
  uint32_t bytes_ = 0;             // 0: there is none
  uint64_t ranks_ = 0;             // whose inputs are here, a bit for each index
  std::vector<std::byte> inputs_;  // by index; what is not there is not set
};

}  // namespace perseus
