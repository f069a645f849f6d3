#include "negotiation/ballot.h"

#include <algorithm>
#include <tuple>

#include "negotiation/rank_lists.h"

namespace perseus {
namespace {

constexpr uint32_t kMaxWords = 1u << 16;  // ids below 4 million

// Flags in a ballot's first byte. What a ballot rarely has takes bytes only if it is there: most
// ballots then fit one cache line.
constexpr uint8_t kAllJoined = 1, kHasPiggyback = 2, kHasAnnouncement = 4, kHasJoins = 8,
                  kHasTrial = 16, kHasLaunches = 32, kHasRecords = 64;

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
  bits.clear();
  if (!records.empty()) records.clear();
  piggyback.clear();
  joined.clear();
  all_joined = false;
  last_join_round = 0;
  last_join_rank = -1;
  trial = -1;
  slowest = 0;
  time = 0;
  announced = 0;
  launches_ended = UINT64_MAX;
  speaker = 0;
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

uint8_t Ballot::flags() const {
  const auto flag = [](bool is_set, uint8_t value) { return is_set ? value : uint8_t{0}; };
  return flag(all_joined, kAllJoined) | flag(!piggyback.empty(), kHasPiggyback) |
         flag(announced != 0, kHasAnnouncement) |
         flag(last_join_rank >= 0 || last_join_round != 0 || !joined.empty(), kHasJoins) |
         flag(trial != -1 || slowest != 0, kHasTrial) | flag(launches_ended != 0, kHasLaunches) |
         flag(!records.empty(), kHasRecords);
}

void Ballot::write(ByteWriter& writer) const {
  const uint8_t has = flags();
  writer.put(has);
  writer.put(time);
  writer.put(speaker);
  bits.write(writer);
  if ((has & kHasPiggyback) != 0) piggyback.write(writer);
  if ((has & kHasAnnouncement) != 0) writer.put(announced);
  if ((has & kHasJoins) != 0) {
    writer.put(last_join_round);
    writer.put(last_join_rank);
    write_ranks(writer, joined);
  }
  if ((has & kHasTrial) != 0) {
    writer.put(trial);
    writer.put(slowest);
  }
  if ((has & kHasLaunches) != 0) writer.put(launches_ended);
  if ((has & kHasRecords) != 0) records.write(writer);
}

bool Ballot::read(ByteReader& reader) {
  clear();
  const auto has = reader.get<uint8_t>();
  all_joined = (has & kAllJoined) != 0;
  time = reader.get<uint64_t>();
  speaker = reader.get<int32_t>();
  if (!bits.read(reader)) return false;
  if ((has & kHasPiggyback) != 0 && !piggyback.read(reader)) return false;
  if ((has & kHasAnnouncement) != 0) announced = reader.get<uint64_t>();
  if ((has & kHasJoins) != 0) {
    last_join_round = reader.get<uint64_t>();
    last_join_rank = reader.get<int32_t>();
    if (!read_ranks(reader, joined)) return false;
  }
  if ((has & kHasTrial) != 0) {
    trial = reader.get<int32_t>();
    slowest = reader.get<uint64_t>();
  }
  launches_ended = (has & kHasLaunches) != 0 ? reader.get<uint64_t>() : 0;
  if ((has & kHasRecords) != 0 && !records.read(reader)) return false;
  return !reader.failed();
}

}  // namespace perseus
