#include "access_history.h"

#include <iterator>
#include <string>

#include "failure.h"

namespace perseus::standin {
namespace {

std::string place_of(const Piece& piece) {
  return piece.component == kHostComponent ? "the host"
                                           : "stream " + std::to_string(piece.component);
}

void require_ordered(const Piece& earlier, const char* earlier_does, const Piece& piece,
                     const char* does, const Clock& clock, uintptr_t start, uintptr_t end) {
  if (clock.covers(earlier.component, earlier.time)) return;
  fail(std::string(earlier.name) + " " + earlier_does + " and " + piece.name + " " + does + " " +
       std::to_string(end - start) + " bytes, " + place_of(earlier) + " and " + place_of(piece) +
       ", not ordered by any event");
}

}  // namespace

void AccessHistory::add(const Piece& piece, const Clock& clock, const void* address, size_t bytes,
                        bool writes) {
  if (bytes == 0) return;
  const auto start = reinterpret_cast<uintptr_t>(address);
  const uintptr_t end = start + bytes;
  split(start);
  split(end);
  const char* does = writes ? "writes" : "reads";
  for (auto each = intervals_.lower_bound(start); each != intervals_.end() && each->first < end;
       ++each) {
    const Interval& interval = each->second;
    if (interval.writer.name != nullptr) {
      require_ordered(interval.writer, "writes", piece, does, clock, each->first, interval.end);
    }
    if (!writes) continue;
    for (const Piece& reader : interval.readers) {
      require_ordered(reader, "reads", piece, does, clock, each->first, interval.end);
    }
  }
  if (writes) {
    intervals_.erase(intervals_.lower_bound(start), intervals_.lower_bound(end));
    intervals_.insert({start, {end, piece, {}}});
    return;
  }
  for (uintptr_t at = start; at < end;) {
    auto each = intervals_.lower_bound(at);
    if (each == intervals_.end() || each->first > at) {
      const uintptr_t gap_end = each == intervals_.end() ? end : std::min(end, each->first);
      each = intervals_.insert({at, {gap_end, {}, {}}}).first;
    }
    // A later reader on the same stream implies the earlier ones.
    std::vector<Piece>& readers = each->second.readers;
    std::erase_if(readers,
                  [&](const Piece& reader) { return reader.component == piece.component; });
    readers.push_back(piece);
    at = each->second.end;
  }
}

void AccessHistory::forget(const void* address, size_t bytes) {
  const auto start = reinterpret_cast<uintptr_t>(address);
  intervals_.erase(intervals_.lower_bound(start), intervals_.lower_bound(start + bytes));
}

void AccessHistory::split(uintptr_t at) {
  auto after = intervals_.lower_bound(at);
  if (after == intervals_.begin()) return;
  auto before = std::prev(after);
  if (before->second.end <= at) return;
  Interval rest = before->second;
  before->second.end = at;
  intervals_.insert({at, std::move(rest)});
}

}  // namespace perseus::standin
