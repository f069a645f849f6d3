#include "negotiation/ballot.h"

#include <algorithm>
#include <tuple>

#include "negotiation/rank_lists.h"

namespace perseus {
namespace {

constexpr uint32_t kMaxWords = 1u << 16;  // ids below 4 million

// Flags in a ballot's first byte.
constexpr uint8_t kAllJoined = 1, kHasPiggyback = 2, kHasAnnouncement = 4;

// The bit for a name as a record, to be merged with another rank's record of it.
std::optional<Record> as_record(const Ballot& ballot, std::string_view key,
                                const KnownOperations& known) {
  if (ballot.bits.empty()) return std::nullopt;
  const uint32_t id = known.find(std::string(key));
  if (id == kNoId || !ballot.bits.has(id)) return std::nullopt;
  return Record{true, {}, {{ballot.speaker, id, known.description(id), {}}}};
}

}  // namespace

void Bits::write(ByteWriter& writer) const {
  size_t words = words_.size();
  while (words > 0 && words_[words - 1] == 0) --words;
  writer.put<uint32_t>(static_cast<uint32_t>(words));
  writer.put_bytes(words_.data(), words * sizeof(uint64_t));
}

bool Bits::read(ByteReader& reader) {
  const auto words = reader.get<uint32_t>();
  if (words > kMaxWords || !reader.can_hold(words, sizeof(uint64_t))) return false;
  words_.resize(words);
  for (uint64_t& word : words_) word = reader.get<uint64_t>();
  return true;
}

void Ballot::clear() {
  Ballot empty;
  std::swap(empty.bits, bits);
  empty.bits.clear();
  std::swap(empty.piggyback, piggyback);
  empty.piggyback.clear();
  empty.joined.swap(joined);
  empty.joined.clear();
  *this = std::move(empty);
}

void Ballot::merge(Ballot&& other, const KnownOperations& known) {
  if (std::tie(last_join_round, last_join_rank) <
      std::tie(other.last_join_round, other.last_join_rank)) {
    last_join_round = other.last_join_round;
    last_join_rank = other.last_join_rank;
  }
  merge_ranks(joined, other.joined);
  piggyback.merge(other.piggyback);
  time = std::max(time, other.time);
  announced = std::max(announced, other.announced);
  launches_ended = std::min(launches_ended, other.launches_ended);
  if (other.all_joined) return;
  if (all_joined) {
    bits = std::move(other.bits);
    records = std::move(other.records);
    speaker = other.speaker;
    trial = other.trial;
    slowest = other.slowest;
    all_joined = false;
    return;
  }
  trial = trial == other.trial ? trial : -1;
  slowest = std::max(slowest, other.slowest);

  if (!records.empty() || !other.records.empty()) {
    records.merge(
        other.records, [&](std::string_view key) { return as_record(*this, key, known); },
        [&](std::string_view key) { return as_record(other, key, known); });
  }
  bits.intersect(other.bits);
  speaker = std::min(speaker, other.speaker);
}

void Ballot::write(ByteWriter& writer) const {
  writer.put<uint8_t>((all_joined ? kAllJoined : 0) | (piggyback.empty() ? 0 : kHasPiggyback) |
                      (announced == 0 ? 0 : kHasAnnouncement));
  writer.put(last_join_round);
  writer.put(last_join_rank);
  write_ranks(writer, joined);
  writer.put(time);
  writer.put(launches_ended);
  writer.put(speaker);
  writer.put(trial);
  writer.put(slowest);
  bits.write(writer);
  records.write(writer);
  if (!piggyback.empty()) piggyback.write(writer);
  if (announced != 0) writer.put(announced);
}

bool Ballot::read(ByteReader& reader) {
  const auto flags = reader.get<uint8_t>();
  all_joined = (flags & kAllJoined) != 0;
  last_join_round = reader.get<uint64_t>();
  last_join_rank = reader.get<int32_t>();
  if (!read_ranks(reader, joined)) return false;
  time = reader.get<uint64_t>();
  launches_ended = reader.get<uint64_t>();
  speaker = reader.get<int32_t>();
  trial = reader.get<int32_t>();
  slowest = reader.get<uint64_t>();
  if (!bits.read(reader) || !records.read(reader)) return false;
  piggyback.clear();
  if ((flags & kHasPiggyback) != 0 && !piggyback.read(reader)) return false;
  announced = (flags & kHasAnnouncement) != 0 ? reader.get<uint64_t>() : 0;
  return !reader.failed();
}

}  // namespace perseus
