#include "negotiation/ballot.h"

#include <algorithm>
#include <tuple>

#include "negotiation/rank_lists.h"

namespace perseus {
namespace {

constexpr uint32_t kMaxWords = 1u << 16;  // ids below 4 million

// What a bit for the name says, as a record: another rank has one.
std::optional<Record> as_record(const Ballot& ballot, std::string_view key,
                                const KnownOperations& known) {
  if (ballot.bits.empty()) return std::nullopt;
  const uint32_t id = known.find(std::string(key));
  if (id == kNoId || !ballot.has(id)) return std::nullopt;
  return Record{true, {}, {{ballot.speaker, id, known.description(id), {}}}};
}

}  // namespace

void Ballot::clear() {
  Ballot empty;
  empty.bits.swap(bits);
  empty.bits.clear();
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
  unite(joined, other.joined);
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
  bits.resize(std::min(bits.size(), other.bits.size()));
  for (size_t i = 0; i < bits.size(); ++i) bits[i] &= other.bits[i];
  speaker = std::min(speaker, other.speaker);
}

void Ballot::write(ByteWriter& writer) const {
  writer.put<uint8_t>(all_joined);
  writer.put(last_join_round);
  writer.put(last_join_rank);
  write_ranks(writer, joined);
  writer.put(speaker);
  writer.put(trial);
  writer.put(slowest);
  writer.put<uint32_t>(static_cast<uint32_t>(bits.size()));
  writer.put_bytes(bits.data(), bits.size() * sizeof(uint64_t));
  records.write(writer);
}

bool Ballot::read(ByteReader& reader) {
  all_joined = reader.get<uint8_t>() != 0;
  last_join_round = reader.get<uint64_t>();
  last_join_rank = reader.get<int32_t>();
  if (!read_ranks(reader, joined)) return false;
  speaker = reader.get<int32_t>();
  trial = reader.get<int32_t>();
  slowest = reader.get<uint64_t>();
  const auto words = reader.get<uint32_t>();
  if (words > kMaxWords || !reader.can_hold(words, sizeof(uint64_t))) return false;
  bits.resize(words);
  for (uint64_t& word : bits) word = reader.get<uint64_t>();
  return records.read(reader) && !reader.failed();
}

}  // namespace perseus
