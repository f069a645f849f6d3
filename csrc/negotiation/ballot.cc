#include "negotiation/ballot.h"

#include <algorithm>
#include <iterator>
#include <tuple>

namespace perseus {
namespace {

constexpr uint32_t kMaxWords = 1u << 16;  // ids below 4 million
constexpr uint32_t kMaxRecords = 1u << 22;
constexpr size_t kMaxStatements = 2;

bool alike(const Ballot::Statement& a, const Ballot::Statement& b) {
  if (a.refusal || b.refusal) return a.refusal && b.refusal;
  return compatible(a.description, b.description);
}

// Joins two ranks' words on one key, keeping the statements of the lowest ranks.
void merge_statements(std::vector<Ballot::Statement>& into, std::vector<Ballot::Statement>&& from) {
  for (Ballot::Statement& statement : from) {
    const auto same = std::find_if(into.begin(), into.end(),
                                   [&](const Ballot::Statement& s) { return alike(s, statement); });
    if (same == into.end()) {
      into.push_back(std::move(statement));
    } else if (statement.rank < same->rank) {
      *same = std::move(statement);
    }
  }
  std::sort(into.begin(), into.end(), [](const auto& a, const auto& b) { return a.rank < b.rank; });
  if (into.size() > kMaxStatements) into.resize(kMaxStatements);
}

// Where `theirs` has a record of a name for which `ours` has a bit, the bit becomes a record too.
void turn_bits_to_records(Ballot& ours, const Ballot& theirs, const KnownOperations& known) {
  for (const auto& [key, record] : theirs.records) {
    const uint32_t id = known.find(key);
    if (id == kNoId || !ours.has(id) || ours.records.contains(key)) continue;
    ours.records[key] = {true, {}, {{ours.speaker, id, known.description(id), {}}}};
  }
}

// Ascending both.
void unite(std::vector<int32_t>& ranks, const std::vector<int32_t>& others) {
  if (others.empty()) return;
  std::vector<int32_t> all;
  std::set_union(ranks.begin(), ranks.end(), others.begin(), others.end(), std::back_inserter(all));
  ranks = std::move(all);
}

void write_ranks(ByteWriter& writer, const std::vector<int32_t>& ranks) {
  writer.put<uint32_t>(static_cast<uint32_t>(ranks.size()));
  writer.put_bytes(ranks.data(), ranks.size() * sizeof(int32_t));
}

bool read_ranks(ByteReader& reader, std::vector<int32_t>& ranks) {
  const auto count = reader.get<uint32_t>();
  if (!reader.can_hold(count, sizeof(int32_t))) return false;
  ranks.resize(count);
  for (int32_t& rank : ranks) rank = reader.get<int32_t>();
  return true;
}

void write_statement(ByteWriter& writer, const Ballot::Statement& statement) {
  writer.put(statement.rank);
  writer.put(statement.ordinal);
  writer.put<uint8_t>(statement.refusal.has_value());
  if (statement.refusal) {
    writer.put_string(statement.refusal->reason);
    writer.put(statement.refusal->instead_set);
    writer.put_string(statement.refusal->instead_key);
  } else {
    statement.description.write(writer);
  }
}

bool read_statement(ByteReader& reader, Ballot::Statement& statement) {
  statement.rank = reader.get<int32_t>();
  statement.ordinal = reader.get<uint32_t>();
  if (reader.get<uint8_t>() == 0) return statement.description.read(reader);
  Refusal& refusal = statement.refusal.emplace();
  refusal.reason = reader.get_string();
  refusal.instead_set = reader.get<int32_t>();
  refusal.instead_key = reader.get_string();
  return !reader.failed();
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

  turn_bits_to_records(*this, other, known);
  turn_bits_to_records(other, *this, known);
  for (auto& [key, record] : records) {
    if (!other.records.contains(key)) record.everywhere = false;
  }
  for (auto& [key, theirs] : other.records) {
    const auto [ours, is_new] = records.try_emplace(key, std::move(theirs));
    if (is_new) {
      ours->second.everywhere = false;
    } else {
      ours->second.everywhere = ours->second.everywhere && theirs.everywhere;
      unite(ours->second.waiting, theirs.waiting);
      merge_statements(ours->second.statements, std::move(theirs.statements));
    }
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
  writer.put<uint32_t>(static_cast<uint32_t>(records.size()));
  for (const auto& [key, record] : records) {
    writer.put_string(key);
    writer.put<uint8_t>(record.everywhere);
    write_ranks(writer, record.waiting);
    writer.put<uint8_t>(static_cast<uint8_t>(record.statements.size()));
    for (const Statement& statement : record.statements) write_statement(writer, statement);
  }
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
  const auto record_count = reader.get<uint32_t>();
  if (record_count > kMaxRecords || !reader.can_hold(record_count, 6)) return false;
  records.clear();
  for (uint32_t i = 0; i < record_count; ++i) {
    std::string key = reader.get_string();
    Record record;
    record.everywhere = reader.get<uint8_t>() != 0;
    if (!read_ranks(reader, record.waiting)) return false;
    record.statements.resize(reader.get<uint8_t>());
    if (key.empty() || record.statements.empty() || record.statements.size() > kMaxStatements) {
      return false;
    }
    for (Statement& statement : record.statements) {
      if (!read_statement(reader, statement)) return false;
    }
    records.emplace(std::move(key), std::move(record));
  }
  return !reader.failed();
}

}  // namespace perseus
