#include "negotiation/ballot.h"

#include <algorithm>
#include <iterator>
#include <tuple>

namespace perseus {
namespace {

constexpr uint32_t kMaxWords = 1u << 16;  // ids below 4 million
constexpr uint32_t kMaxRecords = 1u << 22;
constexpr size_t kMaxStatements = 2;

constexpr uint8_t kEverywhere = 1, kOverdue = 2;  // a record's flags

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
    ours.records[key] = {true, false, {{ours.speaker, id, known.description(id), {}}}};
  }
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
  if (!other.joined.empty()) {
    std::vector<int32_t> both;
    std::set_union(joined.begin(), joined.end(), other.joined.begin(), other.joined.end(),
                   std::back_inserter(both));
    joined = std::move(both);
  }
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
      ours->second.is_overdue = ours->second.is_overdue || theirs.is_overdue;
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
  writer.put<uint32_t>(static_cast<uint32_t>(joined.size()));
  writer.put_bytes(joined.data(), joined.size() * sizeof(int32_t));
  writer.put(speaker);
  writer.put(trial);
  writer.put(slowest);
  writer.put<uint32_t>(static_cast<uint32_t>(bits.size()));
  writer.put_bytes(bits.data(), bits.size() * sizeof(uint64_t));
  writer.put<uint32_t>(static_cast<uint32_t>(records.size()));
  for (const auto& [key, record] : records) {
    writer.put_string(key);
    writer.put<uint8_t>(static_cast<uint8_t>((record.everywhere ? kEverywhere : 0) |
                                             (record.is_overdue ? kOverdue : 0)));
    writer.put<uint8_t>(static_cast<uint8_t>(record.statements.size()));
    for (const Statement& statement : record.statements) write_statement(writer, statement);
  }
}

bool Ballot::read(ByteReader& reader) {
  all_joined = reader.get<uint8_t>() != 0;
  last_join_round = reader.get<uint64_t>();
  last_join_rank = reader.get<int32_t>();
  const auto joined_count = reader.get<uint32_t>();
  if (!reader.can_hold(joined_count, sizeof(int32_t))) return false;
  joined.resize(joined_count);
  for (int32_t& rank : joined) rank = reader.get<int32_t>();
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
    const auto flags = reader.get<uint8_t>();
    record.everywhere = (flags & kEverywhere) != 0;
    record.is_overdue = (flags & kOverdue) != 0;
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
