#include "negotiation/records.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "negotiation/rank_lists.h"

namespace perseus {
namespace {

constexpr size_t kMaxStatements = 2;
constexpr size_t kSizes = 2 * sizeof(uint32_t) + sizeof(uint8_t);
// The layout of a body with one statement and no waiting rank: those two counts, then the rank and
// ordinal of the statement, then its description or refusal.
constexpr size_t kCounts = sizeof(uint32_t) + sizeof(uint8_t);
constexpr size_t kSpeaker = sizeof(int32_t) + sizeof(uint32_t);
constexpr std::string_view kOneStatementAlone("\0\0\0\0\1", kCounts);

std::string_view text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

bool alike(const Statement& a, const Statement& b) {
  if (a.refusal || b.refusal) return a.refusal && b.refusal;
  return compatible(a.description, b.description);
}

void write_statement(ByteWriter& writer, const Statement& statement) {
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

bool read_statement(ByteReader& reader, Statement& statement) {
  statement.rank = reader.get<int32_t>();
  statement.ordinal = reader.get<uint32_t>();
  statement.refusal.reset();
  if (reader.get<uint8_t>() == 0) return statement.description.read(reader);
  Refusal& refusal = statement.refusal.emplace();
  refusal.reason = reader.get_string();
  refusal.instead_set = reader.get<int32_t>();
  refusal.instead_key = reader.get_string();
  return !reader.failed();
}

// Returns whether both have a single statement and the statements are equal, so that nothing need
// be decoded.
bool are_same(std::string_view a, std::string_view b) {
  constexpr size_t kContent = kCounts + kSpeaker;
  return a.size() == b.size() && a.starts_with(kOneStatementAlone) &&
         b.starts_with(kOneStatementAlone) && a.substr(kContent) == b.substr(kContent);
}

int32_t speaker_of(std::string_view body) {
  int32_t rank = 0;
  std::memcpy(&rank, body.data() + kCounts, sizeof rank);
  return rank;
}

}  // namespace

void Record::merge(Record&& other) {
  everywhere = everywhere && other.everywhere;
  merge_ranks(waiting, other.waiting);
  for (Statement& statement : other.statements) {
    const auto same = std::find_if(statements.begin(), statements.end(),
                                   [&](const Statement& s) { return alike(s, statement); });
    if (same == statements.end()) {
      statements.push_back(std::move(statement));
    } else if (statement.rank < same->rank) {
      *same = std::move(statement);
    }
  }
  std::sort(statements.begin(), statements.end(),
            [](const Statement& a, const Statement& b) { return a.rank < b.rank; });
  if (statements.size() > kMaxStatements) statements.resize(kMaxStatements);
}

void Records::append(std::string_view key, const Record& record) {
  ByteWriter body;
  write_ranks(body, record.waiting);
  body.put<uint8_t>(static_cast<uint8_t>(record.statements.size()));
  for (const Statement& statement : record.statements) write_statement(body, statement);
  append({record.everywhere, key, text(body.bytes())});
}

void Records::append(const Entry& entry) {
  const auto key_size = static_cast<uint32_t>(entry.key.size());
  const auto body_size = static_cast<uint32_t>(entry.body.size());
  char sizes[kSizes];
  std::memcpy(sizes, &key_size, sizeof key_size);
  std::memcpy(sizes + sizeof key_size, &body_size, sizeof body_size);
  sizes[kSizes - 1] = entry.everywhere;
  bytes_.append(sizes, kSizes).append(entry.key).append(entry.body);
}

std::optional<Records::Entry> Records::take(std::string_view& rest) {
  if (rest.size() < kSizes) return std::nullopt;
  uint32_t key_size = 0, body_size = 0;
  std::memcpy(&key_size, rest.data(), sizeof key_size);
  std::memcpy(&body_size, rest.data() + sizeof key_size, sizeof body_size);
  const bool everywhere = rest[kSizes - 1] != 0;
  rest.remove_prefix(kSizes);
  if (uint64_t{key_size} + body_size > rest.size()) return std::nullopt;
  const Entry entry{everywhere, rest.substr(0, key_size), rest.substr(key_size, body_size)};
  rest.remove_prefix(size_t{key_size} + body_size);
  return entry;
}

bool Records::read_body(std::string_view body, Record& record) {
  ByteReader reader(std::as_bytes(std::span(body)));
  if (!read_ranks(reader, record.waiting)) return false;
  record.statements.resize(reader.get<uint8_t>());
  if (record.statements.empty() || record.statements.size() > kMaxStatements) return false;
  for (Statement& statement : record.statements) {
    if (!read_statement(reader, statement)) return false;
  }
  return reader.remaining() == 0 && !reader.failed();
}

bool Records::read(ByteReader& reader) {
  bytes_ = reader.get_string();
  std::string_view rest = bytes_, before;
  Record record;  // reused, for its memory
  while (!rest.empty()) {
    const std::optional<Entry> entry = take(rest);
    if (!entry || entry->key <= before || !read_body(entry->body, record)) return false;
    before = entry->key;
  }
  return !reader.failed();
}

Record Records::unpack(const Entry& entry) {
  Record record;
  read_body(entry.body, record);
  record.everywhere = entry.everywhere;
  return record;
}

std::vector<std::pair<std::string, Record>> Records::unpack() const {
  std::vector<std::pair<std::string, Record>> records;
  std::string_view rest = bytes_;
  while (const std::optional<Entry> entry = take(rest)) {
    records.emplace_back(entry->key, unpack(*entry));
  }
  return records;
}

void Records::append_merged(const Entry& ours, const Entry& theirs) {
  if (are_same(ours.body, theirs.body)) {
    const bool ours_is_lower = speaker_of(ours.body) <= speaker_of(theirs.body);
    append(
        {ours.everywhere && theirs.everywhere, ours.key, ours_is_lower ? ours.body : theirs.body});
    return;
  }
  Record record = unpack(ours);
  record.merge(unpack(theirs));
  append(ours.key, record);
}

void Records::merge(const Records& other, const Substitute& ours, const Substitute& theirs) {
  const std::string mine = std::exchange(bytes_, {});
  bytes_.reserve(std::max(mine.size(), other.bytes_.size()));
  const auto append_lone = [this](const Entry& entry, const Substitute& substitute) {
    std::optional<Record> from_bit = substitute(entry.key);
    if (!from_bit) return append({false, entry.key, entry.body});
    Record record = unpack(entry);
    record.merge(std::move(*from_bit));
    append(entry.key, record);
  };
  std::string_view our_rest = mine, their_rest = other.bytes_;
  std::optional<Entry> our = take(our_rest), their = take(their_rest);
  while (our || their) {
    const int order = !their ? -1 : !our ? 1 : our->key.compare(their->key);
    if (order < 0) {
      append_lone(*our, theirs);
    } else if (order > 0) {
      append_lone(*their, ours);
    } else {
      append_merged(*our, *their);
    }
    if (order <= 0) our = take(our_rest);
    if (order >= 0) their = take(their_rest);
  }
}

}  // namespace perseus
