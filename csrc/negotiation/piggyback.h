// Attachments of an operation that travel with the ballots. If a rank has the small inputs of all
// ranks when the round ends, it can compute the result at once, without another message. If it has
// the sizes of all ranks' inputs, ranks need not swap them before the data.
//
// A rank sends its attachment along if its ballot names that operation and nothing else. So if all
// ranks have sent theirs, that operation is what the round agrees on. Merging is commutative,
// associative and idempotent, as ballots need: attachments of one kind and operation are collected.
// If one of two ballots has none, or that of another operation, or of another kind, all are
// dropped, and the operation goes the usual way on every rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/bytes.h"

namespace perseus {

// The attachment of one rank.
struct Attachment {
  enum class Kind : uint8_t {
    kInput,
    kSizes,  // how many rows each tensor of its input has, or go to each rank: int64_t
  };
  Kind kind = Kind::kInput;
  std::span<const std::byte> bytes;
};

class Piggyback {
 public:
  // Returns whether attachments of `bytes` bytes on each of `size` ranks are small enough to go
  // with ballots.
  static bool fits(int size, size_t bytes) {
    return bytes > 0 && size <= kMostRanks && bytes * static_cast<size_t>(size) <= kMostBytes;
  }

  bool empty() const { return bytes_ == 0; }
  // The operation's id, or kNoId if a record of the ballot describes it.
  uint32_t id() const { return id_; }
  Attachment::Kind kind() const { return kind_; }
  // The size of each rank's attachment.
  uint32_t bytes() const { return bytes_; }

  void clear() { bytes_ = 0; }  // keeps its memory
  // Holds this attachment of the rank of this index, and no other; it must fit.
  void set(uint32_t id, int index, const Attachment& attachment);
  void merge(const Piggyback& other);
  // Returns whether the attachments of all `size` ranks are here.
  bool is_of_all(int size) const {
    return !empty() && size <= kMostRanks && ranks_ == UINT64_MAX >> (kMostRanks - size);
  }
  // By index, one after the other.
  std::span<const std::byte> attachments() const { return attachments_; }

  void write(ByteWriter& writer) const;
  bool read(ByteReader& reader);

 private:
  static constexpr int kMostRanks = 64;
  static constexpr size_t kMostBytes = 4096;

  std::byte* of(int index) { return attachments_.data() + size_t{bytes_} * index; }
  const std::byte* of(int index) const { return attachments_.data() + size_t{bytes_} * index; }
  // Makes room for the attachments of these ranks and of all with lower indices.
  void make_room(uint64_t ranks);

  uint32_t id_ = 0;
  Attachment::Kind kind_ = Attachment::Kind::kInput;
  uint32_t bytes_ = 0;                  // of one attachment; 0: there are none
  uint64_t ranks_ = 0;                  // a bit for each index whose attachment is here
  std::vector<std::byte> attachments_;  // by index; undefined where one is missing
};

}  // namespace perseus
