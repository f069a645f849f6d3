// The gradients of a training loop, a layer above single operations: keeps track of which gradients
// were submitted in which batch, and calls back when they are done.
#pragma once

#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_set>
#include <vector>

#include "base/status.h"
#include "capi/gradient_lists.h"
#include "engine/engine.h"
#include "perseus/perseus.h"
#include "state/operation.h"

namespace perseus {

// perseus.h says which threads may call what. Operations complete on the library's threads.
class Gradients : private GradientLists::Owner {
 public:
  explicit Gradients(const perseus_gradients_options_t& options);
  // Waits for what is under way, and for callbacks.
  ~Gradients();
  Gradients(const Gradients&) = delete;
  Gradients& operator=(const Gradients&) = delete;

  // Returns whether this process was forked from the one that made the object. It never sees the
  // operations of that process complete.
  bool is_inherited() const { return getpid() != made_by_; }

  Result<int32_t> add(const char* name, const perseus_tensor_t& tensor);
  Status submit(int32_t number, void* stream);
  Status wait(int32_t number, int64_t time_out_ms);
  Status wait_all(int64_t time_out_ms);
  Status wait_on_stream(int32_t number, void* stream, int64_t time_out_ms);

 private:
  struct Gradient {
    Gradients* owner;
    int32_t number;
    std::string name;
    int32_t id;  // of its name, from perseus_register
    perseus_tensor_t tensor;
    std::vector<int64_t> shape;
    perseus_handle_t handle = 0;  // of the last submission; 0: there was none
    int64_t handle_of = 0;        // the batch of that submission, counted from 1
    int64_t submitted = 0;        // submissions so far, one in each batch
    int being_submitted = 0;      // submissions whose handles are not known yet
    int64_t done = 0;             // submissions whose callbacks have come
    Status refusal = Status();    // of the last submission; ok if it was accepted
  };
  // A gradient's last submission.
  struct Last {
    OperationPtr operation;  // null if none was accepted
    Status refusal;          // of a submission after it
  };
  // A batch that is not done.
  struct Batch {
    size_t remaining = 0;                  // gradients, and the comparison of the lists
    perseus_status_t status = PERSEUS_OK;  // of the first failure
    std::string message;
  };

  // Marks the gradient as submitted in its next batch; an error if it may not be submitted now.
  // Returns whether it is the batch's first.
  Result<bool> enter(Gradient& gradient);
  Status second_time(const Gradient& gradient) const;
  // Undoes enter().
  void leave(Gradient& gradient, bool was_first);
  void open_batch();
  Batch& batch(int64_t number) { return batches_[static_cast<size_t>(number) % batches_.size()]; }
  Status hand_over(Gradient& gradient, int64_t turn, void* stream);
  void complete(Gradient& gradient, perseus_status_t status, const char* message);
  // Counts one operation less under way.
  void end_one();
  // Counts `parts` of a batch as done, and calls batch_done if these were the last.
  void note_done(int64_t number, size_t parts, perseus_status_t status, const char* message);

  // Has the ranks compare what they have registered; once in each engine, during its first batch.
  Status show_list_once(const std::shared_ptr<Engine>& engine);
  std::vector<int64_t> on_compared(const Status& status) override;
  void on_settled() override;
  // The error if the ranks' lists are known to differ.
  Status difference() const;
  // Waits until the ranks have compared their lists; kInProgress if the time ends first.
  Status wait_for_comparison(int64_t time_out_ms);

  // `wait` waits for the operation that was submitted last, for at most a time-out.
  template <typename Wait>
  Status wait_for_last(int32_t number, int64_t time_out_ms, Wait wait);
  Result<Last> last_of(int32_t number);
  Result<Gradient*> find(int32_t number);
  std::string title(const Gradient& gradient) const;

  const pid_t made_by_ = getpid();
  const perseus_gradients_options_t options_;
  const std::string name_;
  std::deque<Gradient> gradients_;  // a deque: they must stay where they are
  std::unordered_set<std::string> names_;

  std::mutex mutex_;
  std::condition_variable is_idle_;
  std::condition_variable is_known_;  // a handle is known, or the result of the comparison
  int64_t batch_ = -1;                // the batch that is being submitted
  size_t unsubmitted_ = 0;            // gradients, in that batch
  size_t under_way_ = 0;              // operations, until their callbacks have returned
  // By batch number modulo the size. There are more than two at once only if callbacks come late.
  std::vector<Batch> batches_ = std::vector<Batch>(2);

  GradientLists lists_;
  std::weak_ptr<Engine> shown_in_;  // the engine of the last comparison, under way or done
  int64_t shown_at_ = 0;            // the batch of that comparison
  bool are_compared_ = false;
  std::atomic<bool> lists_differ_{false};
  std::string why_;  // how they differ, once they do
};

}  // namespace perseus
