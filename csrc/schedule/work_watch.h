// Notices that a job has begun to move tensors of another size than those from which the tuner has
// learnt: what is fastest for 64 MiB at a time may be slow for 1 MiB.
//
// The largest operation tells the class of the work. It is the same in every training step, while
// the bytes under way at once depend on chance. A look at the work covers twenty times what the
// tuner has seen in a step, so that it has whole steps in it, and some outlier does not pass for a
// change of habit. Pure logic. One thread.
#pragma once

#include <cstdint>
#include <optional>

#include "schedule/tuning.h"

namespace perseus {

class WorkWatch {
 public:
  // The class of work that is too small for tuning to make a difference.
  static constexpr int kSmall = 0;

  // Returns the class of work whose largest operation has so many bytes.
  static int class_of(uint64_t largest);

  // Operations were agreed on at once: their bytes, and those of the largest.
  void note_batch(uint64_t bytes, uint64_t largest);
  void note_step() { ++steps_; }

  // The tuner begins to learn.
  void begin() { *this = WorkWatch(); }
  // The tuner has learnt from everything since begin(). Returns what that was.
  WorkHabit learn();
  // The tuner has learnt from work of this class before. Returns the habit from now on.
  WorkHabit expect(int work_class);
  // The tuner of an earlier world has learnt from such work.
  void resume(const WorkHabit& habit);
  // Returns the class of the work of late, if it is not what is expected, and not small.
  std::optional<int> changed() const { return changed_; }

 private:
  static constexpr uint64_t kStepsInALook = 20;

  // Since begin() or in this look.
  uint64_t batches_ = 0, bytes_ = 0, largest_ = 0, steps_ = 0;
  // The least for a look; 0 while the tuner learns.
  uint64_t look_batches_ = 0, look_bytes_ = 0;
  int class_ = kSmall;
  std::optional<int> changed_;
};

}  // namespace perseus
