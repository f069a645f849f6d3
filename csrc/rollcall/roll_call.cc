#include "rollcall/roll_call.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <utility>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace perseus {
namespace {

constexpr uint64_t kWorldMask = (uint64_t{1} << (64 - RollCall::kMostRanks)) - 1;
// How often a waiting rank looks before it looks at the clock, too.
constexpr int kLooksPerTime = 16;

void relax(bool yields) {
  if (yields) {
    sched_yield();
    return;
  }
#if defined(__SSE2__)
  _mm_pause();
#endif
}

}  // namespace

RollCall::RollCall(uint64_t world, int rank, std::vector<SharedBoard> boards,
                   const std::atomic<bool>& closed, Manner manner)
    : world_(world & kWorldMask),
      rank_(rank),
      boards_(std::move(boards)),
      closed_(closed),
      manner_(manner) {
  inputs_.reserve(boards_.size() * kMostBrought);
  board(rank_).elsewhere.store(0, std::memory_order_relaxed);
  if (rank_ != 0) return;
  for (BoardMemory::Attendance& attendance : board(0).attendance) {
    attendance.word.store(world_ << kMostRanks, std::memory_order_release);
  }
}

bool RollCall::is_full(uint64_t word) const {
  const uint64_t all = (uint64_t{1} << boards_.size()) - 1;
  return word == (world_ << kMostRanks | (ticks_are_ones() ? all : 0));
}

uint64_t RollCall::fingerprint(const CallForm& form) {
  constexpr uint64_t kOdd = 0x9e3779b97f4a7c15;
  return (form.name ^ form.use * kOdd) | 1;  // never 0, which stands for none
}

bool RollCall::expects_others() {
  if (to_leave_out_ == 0) return true;
  --to_leave_out_;
  return false;
}

void RollCall::lose_trust() {
  left_out_last_ = std::clamp<uint32_t>(2 * left_out_last_, 1, kMostLeftOut);
  to_leave_out_ = left_out_last_;
}

void RollCall::take_elsewhere(const CallForm& form) {
  board(rank_).elsewhere.store(fingerprint(form), std::memory_order_release);
}

bool RollCall::is_taken_elsewhere(uint64_t call) const {
  for (size_t rank = 0; rank < boards_.size(); ++rank) {
    const auto& elsewhere = board(static_cast<int>(rank)).elsewhere;
    if (elsewhere.load(std::memory_order_relaxed) == call) return true;
  }
  return false;
}

bool RollCall::attend(const CallForm& form, std::span<const std::byte> input, uint64_t announced) {
  bool is_held = false;
  if (!is_taken_elsewhere(fingerprint(form))) {
    fetch();
    write_down(form, input, announced);
    is_held = set_tick(true) && await_others(form);
  }
  if (is_held) {
    is_held = collect(form);
    ++round_;
    left_out_last_ = 0;
  }
  if (!is_held) take_elsewhere(form);
  return is_held;
}

// Lines come from other processors one after the other unless they are asked for in advance.
void RollCall::fetch() const {
  constexpr int kToWrite = 1;
  __builtin_prefetch(&attendance(), kToWrite);
  __builtin_prefetch(&board(rank_).entries[round_ & 1], kToWrite);
  fetch_entries();
}

void RollCall::fetch_entries() const {
  for (size_t rank = 0; rank < boards_.size(); ++rank) {
    __builtin_prefetch(&board(static_cast<int>(rank)).entries[round_ & 1]);
  }
}

void RollCall::write_down(const CallForm& form, std::span<const std::byte> input,
                          uint64_t announced) {
  BoardMemory::Entry& entry = board(rank_).entries[round_ & 1];
  entry.form = form;
  entry.announced = announced;
  if (input.empty()) return;
  std::byte* const place = input.size() <= entry.few.size() ? entry.few.data() : entry.many.data();
  std::memcpy(place, input.data(), input.size());
}

bool RollCall::set_tick(bool present) {
  const uint64_t own = uint64_t{1} << rank_;
  uint64_t seen = attendance().load(std::memory_order_relaxed);
  uint64_t wanted = 0;
  do {
    if (!is_this_world(seen) || (!present && is_full(seen))) return false;
    wanted = present == ticks_are_ones() ? seen | own : seen & ~own;
  } while (!attendance().compare_exchange_weak(seen, wanted, std::memory_order_acq_rel,
                                               std::memory_order_relaxed));
  return true;
}

bool RollCall::await_others(const CallForm& form) {
  const uint64_t call = fingerprint(form);
  Clock::time_point until;
  for (int looks = 0;; ++looks) {
    const uint64_t word = attendance().load(std::memory_order_acquire);
    if (is_full(word)) return true;
    if (!is_this_world(word)) return false;
    bool gives_up = closed_.load(std::memory_order_relaxed) || is_taken_elsewhere(call);
    if (!gives_up && looks % kLooksPerTime == 0) {
      const Clock::time_point now = Clock::now();
      if (looks == 0) until = now + manner_.patience;
      gives_up = now >= until;
      if (gives_up) lose_trust();
    }
    // The last of the others may have come this moment. If the world is over, nobody has.
    if (gives_up && (set_tick(false) || !is_this_world(attendance().load()))) return false;
    fetch_entries();
    relax(manner_.yields);
  }
}

bool RollCall::collect(const CallForm& form) {
  const size_t size = boards_.size();
  inputs_.resize(size * form.bytes);
  announced_ = 0;
  std::byte* place = inputs_.data();
  for (size_t rank = 0; rank < size; ++rank, place += form.bytes) {
    const BoardMemory::Entry& entry = board(static_cast<int>(rank)).entries[round_ & 1];
    if (entry.form != form) return false;
    announced_ = std::max(announced_, entry.announced);
    const bool is_few = form.bytes <= entry.few.size();
    const std::byte* const brought = is_few ? entry.few.data() : entry.many.data();
    if (form.bytes > 0) std::memcpy(place, brought, form.bytes);
  }
  // If the next world has begun, this may be what a rank has written down there.
#ifndef __SANITIZE_THREAD__  // g++'s ThreadSanitizer has no fences
  std::atomic_thread_fence(std::memory_order_acquire);
#endif
  return is_this_world(attendance().load(std::memory_order_relaxed));
}

}  // namespace perseus
