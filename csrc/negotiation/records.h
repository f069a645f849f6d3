// The records of a ballot, for names that are new or whose description has changed.
//
// Most ranks describe a name alike. So records are kept in the form in which they are sent, in one
// piece of memory, by ascending keys. Two ballots' records are merged in one pass over their bytes,
// and only a name that two ranks describe differently is decoded.
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

// The reason why a rank does not submit an operation that it was to submit. The operation then
// fails on all ranks.
struct Refusal {
  std::string reason;
  // If the rank submitted another operation under the same name: that one's process set and key.
  int32_t instead_set = -1;
  std::string instead_key;
};

// A rank's description of a name, or its refusal.
struct Statement {
  int32_t rank = 0;      // lowest rank that says so
  uint32_t ordinal = 0;  // position in that rank's order of submission
  Description description;
  std::optional<Refusal> refusal;  // in place of the description
};

// The statements of some ranks about a name. At most two different ones are kept, those of the
// lowest ranks. That is enough to run the operation, or to say which two ranks differ.
struct Record {
  bool everywhere = true;             // every rank covered has it ready, or refuses it
  std::vector<int32_t> waiting;       // ranks that have waited long for it, ascending
  std::vector<Statement> statements;  // one or two, by rank

  void merge(Record&& other);
};

class Records {
 public:
  // Called for a key that only the other side has a record of. Returns the record that this side's
  // bit for the key stands for; nothing if this side has no bit for it.
  using Substitute = std::function<std::optional<Record>(std::string_view key)>;

  bool empty() const { return bytes_.empty(); }
  // Frees the memory too, which may be large and is rarely needed.
  void clear() { std::string().swap(bytes_); }
  // Keys must come in ascending order.
  void append(std::string_view key, const Record& record);
  // `ours` and `theirs` supply the record of a key that only the other side has.
  void merge(const Records& other, const Substitute& ours, const Substitute& theirs);
  std::vector<std::pair<std::string, Record>> unpack() const;

  void write(ByteWriter& writer) const { writer.put_string(bytes_); }
  // Returns false if the bytes are not records.
  bool read(ByteReader& reader);

 private:
  // One key's record in bytes_: the sizes of key and body, `everywhere`, key, body.
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
