// Small operations for which all ranks of a world, on one host, call at about the same time. Each
// rank writes its input down where all can see it, and ticks its name off. Once all names are
// ticked off, each rank has all inputs and computes the result by itself. Nothing is agreed on by
// messages, and no other thread takes part, so this takes a few crossings of a cache line between
// processors.
//
// A rank that has waited in vain takes its tick back, and takes its call elsewhere: the engine then
// agrees on the operation as on any other. That the last tick is set and that a tick is taken back
// exclude each other, since both change one word. So a roll call ends for all ranks or for none:
//
//   write down -> tick off -> all are there -> the calls are the same: held
//                    |                      -> they differ: all take them elsewhere
//                    +-> waited in vain, or another rank took this call elsewhere -> elsewhere
//
// The word of an attendance starts with the number of the world. A rank that was left behind in an
// earlier world can change nothing in a later one, even where both use the same memory.
//
// Any thread, one at a time: try_lock.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "rollcall/board.h"

namespace perseus {

class RollCall {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr int kMostRanks = 16;
  // The longest that a rank waits for the others. If they come that much later, the way that an
  // operation takes hardly counts.
  static constexpr std::chrono::microseconds kPatience{20};

  struct Manner {
    std::chrono::nanoseconds patience = kPatience;
    bool yields = false;  // while it waits: there are more ranks than processors
  };

  // `boards`: by rank. `world`: a number that no other world of these processes has. Calls end once
  // `closed` is true.
  RollCall(uint64_t world, int rank, std::vector<SharedBoard> boards,
           const std::atomic<bool>& closed, Manner manner);
  RollCall(const RollCall&) = delete;

  bool try_lock() { return mutex_.try_lock(); }
  void unlock() { mutex_.unlock(); }

  // Returns whether it is worth while to attend the next call. If it is not, the call is to be
  // taken elsewhere.
  bool expects_others();
  // Brings `input`, of form.bytes bytes or none, and the number `announced`. Returns whether all
  // ranks were there with calls of this form. The call is then done, on all ranks, and inputs() and
  // announced() are what they brought. Otherwise it is to be taken elsewhere, on all ranks.
  bool attend(const CallForm& form, std::span<const std::byte> input, uint64_t announced);
  // This rank takes the call elsewhere without attending. The others need not wait.
  void take_elsewhere(const CallForm& form);

  // By rank, form.bytes of each.
  std::span<const std::byte> inputs() const { return inputs_; }
  // The highest number that a rank has brought.
  uint64_t announced() const { return announced_; }

 private:
  enum class Presence { kAll, kNotAll };

  BoardMemory& board(int rank) const { return *reinterpret_cast<BoardMemory*>(boards_[rank].data); }
  std::atomic<uint64_t>& attendance() const { return board(0).attendance[round_ & 1].word; }
  // A tick is a 1 in every other use of an attendance, and else a 0.
  bool ticks_are_ones() const { return (round_ >> 1 & 1) == 0; }
  bool is_this_world(uint64_t word) const { return word >> kMostRanks == world_; }
  bool is_full(uint64_t word) const;
  static uint64_t fingerprint(const CallForm& form);

  void fetch() const;
  void fetch_entries() const;
  void write_down(const CallForm& form, std::span<const std::byte> input, uint64_t announced);
  // Sets this rank's tick or takes it back. Returns false, and does nothing, if the world is over,
  // or if it would take back a tick of a full attendance.
  bool set_tick(bool present);
  // Returns whether all have come. If not, this rank's tick has been taken back.
  bool await_others(const CallForm& form);
  bool is_taken_elsewhere(uint64_t call) const;
  // Reads what all have written. Returns false if their calls differ, or the world is over.
  bool collect(const CallForm& form);
  // A call has been in vain, since nobody came.
  void lose_trust();

  std::mutex mutex_;
  const uint64_t world_;  // 48 bits
  const int rank_;
  const std::vector<SharedBoard> boards_;
  const std::atomic<bool>& closed_;
  const Manner manner_;

  uint64_t round_ = 0;  // how many roll calls have been held
  // After waiting in vain, so many calls are taken elsewhere, and twice as many each time.
  static constexpr uint32_t kMostLeftOut = 256;
  uint32_t to_leave_out_ = 0, left_out_last_ = 0;
  std::vector<std::byte> inputs_;
  uint64_t announced_ = 0;
};

}  // namespace perseus
