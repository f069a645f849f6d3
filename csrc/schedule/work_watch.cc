#include "schedule/work_watch.h"

#include <algorithm>
#include <bit>

namespace perseus {
namespace {

constexpr uint64_t kSmallestBytes = 256 << 10;

}  // namespace

int WorkWatch::class_of(uint64_t largest) {
  if (largest < kSmallestBytes) return kSmall;
  // 256 KiB, 2 MiB and 16 MiB begin a class.
  return std::min(1 + (static_cast<int>(std::bit_width(largest / kSmallestBytes)) - 1) / 3, 3);
}

void WorkWatch::note_batch(uint64_t bytes, uint64_t largest) {
  ++batches_;
  bytes_ += bytes;
  largest_ = std::max(largest_, largest);
  if (look_batches_ == 0 || batches_ < look_batches_ || bytes_ < look_bytes_) return;
  const int now = class_of(largest_);
  changed_.reset();
  if (now != class_ && now != kSmall) changed_ = now;
  batches_ = bytes_ = largest_ = 0;
}

WorkHabit WorkWatch::learn() {
  const uint64_t steps = std::max<uint64_t>(steps_, 1);
  look_batches_ = std::max<uint64_t>(kStepsInALook * batches_ / steps, kStepsInALook);
  look_bytes_ = kStepsInALook * bytes_ / steps;
  return expect(class_of(largest_));
}

WorkHabit WorkWatch::expect(int work_class) {
  class_ = work_class;
  changed_.reset();
  batches_ = bytes_ = largest_ = 0;
  return {class_, look_batches_, look_bytes_};
}

void WorkWatch::resume(const WorkHabit& habit) {
  look_batches_ = habit.look_batches;
  look_bytes_ = habit.look_bytes;
  expect(habit.work_class);
}

}  // namespace perseus
