// Error feedback (Seide et al. 2014, "1-bit stochastic gradient descent"): the part of a gradient
// that a codec loses is added to the tensor's next gradient, so that nothing is lost over the
// steps.
//
// In an operation: residuals.of(tensor), add_residual of `last` to the gradient, encode it, decode
// it again, and keep_residual of the two in `next`. Each shard of a tensor does so with its part of
// the tensor's residual. operation_ended then says whether the result counts.
//
// The sum of what counts, plus the residual, is always the sum of the gradients that count. So:
//   - an operation that fails leaves the residual as it was before, whatever its shards have done;
//   - a program that goes back to an earlier state of its model, and does steps again, goes back to
//     the residuals of that state: commit() and restore().
//
// A residual belongs to this rank's own gradients, element by element, and not to a place among the
// ranks. So it stays right in another world, for a name that means the same tensor there: one of
// the set of all ranks that the program has chosen itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace perseus {

// The residuals of all tensors, for the life of the process. Any thread. Different threads may use
// parts of the memory of a tensor that do not overlap.
class Residuals {
 public:
  struct Tensor {
    std::string_view name;
    size_t elements = 0;
    bool outlives_world = true;  // the name means the same tensor in the next world
  };
  // An operation reads the residual in `last`, and leaves the new one in `next`. Valid until the
  // operation has ended.
  struct Parts {
    std::span<const float> last;
    std::span<float> next;
  };

  // The residual, for the operation of this name that is under way: zeros if the tensor is new, or
  // its number of elements has changed.
  Parts of(const Tensor& tensor);
  // The operation of this name has ended. If it has failed, the residual is what it was before.
  void operation_ended(std::string_view name, bool is_ok);

  // Notes the residuals as they are: they belong to a state of the model that the program keeps.
  // Takes a moment, however many there are. No operation should be under way.
  void commit();
  // Goes back to the last commit; without one, does nothing. An operation that is under way goes
  // back when it ends.
  void restore();
  // Forgets all residuals: the program goes on from a state of the model to which they do not
  // belong. No operation should be under way.
  void forget();

  // The world has ended, and no operation is under way any more. Drops the residuals of names that
  // mean nothing in another one, and those that were not used in the last two worlds that used any.
  void world_ended();

  size_t size() const;  // how many tensors

  // The child of a fork has no residuals.
  void before_fork() { mutex_.lock(); }
  void after_fork_in_parent() { mutex_.unlock(); }
  void after_fork_in_child();

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };
  // The first operation since a commit leaves the residual of the commit in `committed`, and any
  // other one the residual before it in `before`. So no memory is copied.
  struct Entry {
    std::vector<float> now, before, committed;
    bool outlives_world = true;
    bool is_open = false;     // an operation is under way
    bool is_first = false;    // the one since the last commit
    bool is_undone = false;   // to go back to the commit when the operation has ended
    uint64_t commit = 0;      // that `committed` is of; 0: unchanged since the last
    uint64_t last_world = 0;  // that has used it

    // The residual and what it was before the operation change places.
    void swap_with_last() { now.swap(is_first ? committed : before); }
    void close(bool is_ok);
    void restore(uint64_t last_commit);
  };

  mutable std::mutex mutex_;
  std::unordered_map<std::string, Entry, Hash, std::equal_to<>> entries_;
  uint64_t commits_ = 0;
  uint64_t world_ = 1;    // of those that used any
  bool is_used_ = false;  // in this world
};

// gradient[i] += residual[i]. Any thread.
void add_residual(float* gradient, const float* residual, size_t elements);

// residual[i] = gradient[i] - decoded[i], or 0 if that is not finite: one overflow must not spoil
// the element for good. `decoded` may be `residual`. Any thread.
void keep_residual(float* residual, const float* gradient, const float* decoded, size_t elements);

}  // namespace perseus
