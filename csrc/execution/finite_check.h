// Looks for NaN and infinity in what a shard reduces (PERSEUS_ALLREDUCE_NANCHECK): in what this
// rank gives, before, and in the result, after. Engine thread.
//
// In a sum or product what is not finite stays so, and the result is the same on all ranks. So each
// finds out by itself that there is something to say, and only then do they tell each other what
// they gave. All learn who it was or, if nobody, that the reduction made it. Where the others can
// not know, as in a reduce-scatter, they always ask. Of minima and maxima infinity is a part.
#pragma once

#include <cstdint>
#include <span>

#include "base/task.h"
#include "collectives/scratch_array.h"
#include "execution/shard_run.h"

namespace perseus {

class FiniteCheck {
 public:
  static bool is_on(const Settings& settings) { return settings.nan_check != NanCheck::kOff; }

  // `pieces`: what the shard reduces, of tensors of one operation or of several.
  FiniteCheck(ShardRun& run, RunContext& context, std::span<const Piece> pieces);
  // kOutOfMemory, before anything else is called.
  Status ready() const;

  bool is_on() const { return mode_ != NanCheck::kOff; }
  bool puts_zeros() const { return mode_ == NanCheck::kZero; }

  enum Side { kInput, kResult };
  // Elements of a piece, the first of which is `offset` in it. Zeros are put in here.
  void search(Side side, size_t piece, std::byte* values, size_t elements, size_t offset = 0);
  // The same where somebody has searched `source` while copying it: what was found there first, and
  // the copy, where zeros are put.
  void found(Side side, size_t piece, const std::byte* source, size_t first, std::byte* copy,
             size_t elements, size_t offset = 0);

  // The same where a kernel has searched it: element `offset` of the piece is the first.
  void found_on_gpu(Side side, size_t piece, uint64_t offset, bool is_infinity);

  // To be run once the result has been searched. `is_shared`: all ranks have the same result.
  bool has_to_conclude(bool is_shared) const;
  Task conclude(bool is_shared);

 private:
  // The first that is not finite on one side: an element of the tensor, and what it is.
  using ValueCode = uint64_t;
  struct Finding {
    ValueCode side[2];
  };
  struct PieceReport;  // of all ranks, about one piece

  DataType dtype(const Piece& piece) const;
  Operation* operation(const Piece& piece) const;
  void conclude_alone(bool is_shared);
  void record(const Piece& piece, const PieceReport& report);

  ShardRun& run_;
  RunContext& context_;
  const NanCheck mode_;
  const std::span<const Piece> pieces_;
  ScratchArray<Finding> findings_;  // by piece; none when off
  bool found_[2] = {false, false};  // on that side, in any piece
};

}  // namespace perseus
