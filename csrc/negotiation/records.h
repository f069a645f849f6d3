// What ballots say of names that are new, or described otherwise than before.
//
// Most ranks say the same of a name, so records are kept as they travel, in one piece of memory and
// by ascending keys: two ballots' records are merged in one pass over their bytes, and only a name
// of which two ranks say different things is taken apart.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "negotiation/description.h"

namespace perseus {

// Why a rank that was to submit an operation will not: the operation then fails on all ranks.
struct Refusal {
  std::string reason;
  // What the rank has submitted under the same name instead, if that is the reason.
  int32_t instead_set = -1;
  std::string instead_key;
};

// What a rank says of a name.
struct Statement {
  int32_t rank = 0;      // lowest rank that says so
  uint32_t ordinal = 0;  // place in that rank's order of submission
  Description description;
  std::optional<Refusal> refusal;  // in place of the description
};

// What some ranks say of a name. At most two different statements are kept, those of the lowest
// ranks, which is enough to run the operation or to say who differs from whom.
struct Record {
  bool everywhere = true;             // every rank covered has it ready, or refuses it
  std::vector<int32_t> waiting;       // ranks that have waited long for it, ascending
  std::vector<Statement> statements;  // one or two, by rank

  void merge(Record&& other);
};

class Records {
 public:
  // Of a key of which one side has no record: the record it can make up, if any.
  using Substitute = std::function<std::optional<Record>(std::string_view key)>;

  bool empty() const { return bytes_.empty(); }
  // Gives the memory back, which may be much, and is seldom needed.
  void clear() { std::string().swap(bytes_); }
  // Keys must come in ascending order.
  void append(std::string_view key, const Record& record);
  // `ours` and `theirs` make up what only the other side has.
  void merge(const Records& other, const Substitute& ours, const Substitute& theirs);
  std::vector<std::pair<std::string, Record>> unpack() const;

  void write(ByteWriter& writer) const { writer.put_string(bytes_); }
  // False if the bytes are no records.
  bool read(ByteReader& reader);

 private:
  // One key's record, where it lies: the sizes of key and statements, `everywhere`, key,
  // statements.
  struct Entry {
    bool everywhere = true;
    std::string_view key;
    std::string_view body;  // `waiting` and `statements`
  };
  static std::optional<Entry> take(std::string_view& rest);
  static bool read_body(std::string_view body, Record& record);
  static Record unpack(const Entry& entry);
  void append(const Entry& entry);
  void append_merged(const Entry& ours, const Entry& theirs);

  std::string bytes_;
};

}  // namespace perseus
