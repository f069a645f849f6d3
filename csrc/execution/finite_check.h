// Looks for NaN and infinity in what a shard reduces (PERSEUS_ALLREDUCE_NANCHECK): in this rank's
// input, before, and in the result, after. Engine thread.
//
// In a sum or product a value that is not finite stays so, and the result is the same on all ranks.
// So each rank sees by itself that there is something to report, and only then do the ranks
// exchange what they found in their inputs. All learn which rank it was or, if none, that the
// reduction made it. In a reduce-scatter, where a rank sees only its part of the result, they
// always exchange. In minima and maxima infinity is a legitimate value, so nothing is searched.
#pragma once

#include <cstdint>
#include <span>

#include "base/task.h"
#include "collectives/scratch_array.h"
#include "execution/batch.h"

namespace perseus {

class FiniteCheck {
 public:
  static bool is_on(const Settings& settings);

  // `pieces`: the parts of tensors that the shard reduces, of one operation or several.
  FiniteCheck(ShardRun& run, RunContext& context, std::span<const Piece> pieces);
  // Call before anything else. Returns kOutOfMemory if there is no memory for the findings.
  Status ready() const;

  bool is_on() const { return mode_ != NanCheck::kOff; }
  bool puts_zeros() const { return mode_ == NanCheck::kZero; }

  enum Side { kInput, kResult };
  // Searches elements of a piece, of which the first is element `offset` of the piece. Puts zeros
  // in place of what is not finite, if that is asked for.
  void search(Side side, size_t piece, std::byte* values, size_t elements, size_t offset = 0);
  // The same for values that were searched while they were copied from `source` to `copy`. `first`:
  // the first element that is not finite. Zeros are put in the copy.
  void found(Side side, size_t piece, const std::byte* source, size_t first, std::byte* copy,
             size_t elements, size_t offset = 0);

  // The same for values that a kernel has searched: element `offset` of the piece is the first that
  // is not finite.
  void found_on_gpu(Side side, size_t piece, uint64_t offset, bool is_infinity);

  // Run conclude() once the result has been searched, if has_to_conclude(). `is_shared`: all ranks
  // have the same result.
  bool has_to_conclude(bool is_shared) const;
  Task conclude(bool is_shared);

 private:
  // The first value on one side that is not finite: its index in the tensor, and its kind.
  using ValueCode = uint64_t;
  struct Finding {
    ValueCode side[2];
  };
  struct PieceReport;  // what all ranks found in one piece

  DataType dtype(const Piece& piece) const;
  Operation* operation(const Piece& piece) const;
  void conclude_alone(bool is_shared);
  void record(const Piece& piece, const PieceReport& report);

  ShardRun& run_;
  RunContext& context_;
  const NanCheck mode_;
  const std::span<const Piece> pieces_;
  ScratchArray<Finding> findings_;  // by piece; none when off
  bool found_[2] = {false, false};  // by side: something was found in some piece
};

}  // namespace perseus
