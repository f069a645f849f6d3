// Records which work last wrote which bytes and which work has read them since, to find unordered
// work on the same bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "clock.h"

namespace perseus::standin {

struct Piece {
  const char* name = nullptr;  // of the call or kernel; lives as long as the process
  size_t component = 0;
  uint64_t time = 0;  // of its component's clock
};

// Not thread-safe.
class AccessHistory {
 public:
  // Ends the process unless all work that conflicts with the piece happened before `clock`.
  void add(const Piece& piece, const Clock& clock, const void* address, size_t bytes, bool writes);
  void forget(const void* address, size_t bytes);

 private:
  struct Interval {
    uintptr_t end;
    Piece writer;  // name null: none
    std::vector<Piece> readers;
  };
  using Intervals = std::map<uintptr_t, Interval>;  // by their start, disjoint

  void split(uintptr_t at);

  Intervals intervals_;
};

}  // namespace perseus::standin
