// Inputs of a small operation that travel with the ballots. If a rank has the inputs of all ranks
// when the round ends, it can compute the result at once, without another message.
//
// A rank sends its input along if its ballot names that operation and nothing else. So if all ranks
// have sent theirs, that operation is what the round agrees on. Merging is commutative, associative
// and idempotent, as ballots need: inputs of the same operation are collected. If one of two
// ballots has no input, or that of another operation, all inputs are dropped, and the operation
// goes the usual way on every rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/bytes.h"

namespace perseus {

class Piggyback {
 public:
  // Returns whether inputs of `bytes` bytes on each of `size` ranks are small enough to go with
  // ballots.
  static bool fits(int size, size_t bytes) {
    return bytes > 0 && size <= kMostRanks && bytes * static_cast<size_t>(size) <= kMostBytes;
  }

  bool has_inputs() const { return bytes_ > 0; }
  uint32_t id() const { return id_; }
  // The size of each rank's input.
  uint32_t bytes() const { return bytes_; }

  void clear() { bytes_ = 0; }  // keeps its memory
  // Holds this input of the rank of this index, and no other; it must fit.
  void set(uint32_t id, int index, std::span<const std::byte> input);
  void merge(const Piggyback& other);
  // Returns whether the inputs of all `size` ranks are here.
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
  // Makes room for the inputs of these ranks and of all with lower indices.
  void make_room(uint64_t ranks);

  uint32_t id_ = 0;
  uint32_t bytes_ = 0;             // of one input; 0: there are no inputs
  uint64_t ranks_ = 0;             // a bit for each index whose input is here
  std::vector<std::byte> inputs_;  // by index; undefined where an input is missing
};

}  // namespace perseus
