// The memory of a rank that all ranks of its host can see, and in which it puts what it brings to a
// roll call. Zeroed before its first use. A rank writes to its own board alone, except for the
// attendance, which is kept on the first rank's.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace perseus {

// The most bytes that a rank can bring.
inline constexpr size_t kMostBrought = 4096;

// All that must be the same on all ranks for a call to be the same one.
struct CallForm {
  uint64_t name = 0;  // a hash
  uint32_t use = 0;   // how often this rank has used the name in this world
  uint8_t kind = 0, dtype = 0, reduce_op = 0, dimensions = 0;
  int32_t root = 0;
  uint32_t bytes = 0;
  std::array<uint16_t, 4> shape{};

  bool operator==(const CallForm&) const = default;
};

struct BoardMemory {
  static constexpr size_t kLine = 64, kApart = 128;
  // A few bytes come in the line that says what they belong to.
  static constexpr size_t kInline = 16;
  struct Entry {
    alignas(kLine) CallForm form;
    uint64_t announced;
    std::array<std::byte, kInline> few;
    alignas(kLine) std::array<std::byte, kMostBrought> many;
  };
  // The world's number in the upper 48 bits, and a bit for each rank. Used in turns.
  struct Attendance {
    alignas(kApart) std::atomic<uint64_t> word;
  };
  std::array<Attendance, 2> attendance;
  // The call, see RollCall::fingerprint, that this rank last took elsewhere.
  alignas(kApart) std::atomic<uint64_t> elsewhere;
  alignas(kApart) std::array<Entry, 2> entries;  // used in turns
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

// A rank's board, which stays in memory for as long as this exists.
struct SharedBoard {
  std::shared_ptr<const void> owner;
  std::byte* data = nullptr;

  explicit operator bool() const { return data != nullptr; }
};

inline constexpr size_t kBoardBytes = 12 << 10;
static_assert(sizeof(BoardMemory) <= kBoardBytes);

}  // namespace perseus
