// The gradients of a training loop, above perseus.h's own operations: which of them has been
// submitted in which batch, and whom to tell when they are done.
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

// As perseus.h says who may call what; operations complete on the library's threads.
class Gradients : private GradientLists::Owner {
 public:
  explicit Gradients(const perseus_gradients_options_t& options);
  // Waits for what is under way, and for callbacks.
  ~Gradients();
  Gradients(const Gradients&) = delete;
  Gradients& operator=(const Gradients&) = delete;

  // Whether this process is a fork of the one that made it, whose operations it never sees done.
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
    int32_t id;  // of its name in perseus_register
    perseus_tensor_t tensor;
    std::vector<int64_t> shape;
    perseus_handle_t handle = 0;  // of what was submitted last; 0: nothing was
    int64_t handle_of = 0;        // in which of its batches, from 1
    int64_t submitted = 0;        // in so many batches
    int being_submitted = 0;      // whose handles are not known yet
    int64_t done = 0;             // whose callbacks have come
    Status refusal = Status();    // of what was submitted last
  };
  // Of a gradient.
  struct Last {
    OperationPtr operation;  // null if none was submitted
    Status refusal;          // of what was submitted after it
  };
  // One of which something is not done.
  struct Batch {
    size_t remaining = 0;                  // gradients, and the comparison of the lists
    perseus_status_t status = PERSEUS_OK;  // the first that is not
    std::string message;
  };

  // Marks it as submitted in its next batch; an error if that has no place for it. Gives whether it
  // is the batch's first.
  Result<bool> enter(Gradient& gradient);
  Status second_time(const Gradient& gradient) const;
  // As if it had not been entered.
  void leave(Gradient& gradient, bool was_first);
  void open_batch();
  Batch& batch(int64_t number) { return batches_[static_cast<size_t>(number) % batches_.size()]; }
  Status hand_over(Gradient& gradient, int64_t turn, void* stream);
  void complete(Gradient& gradient, perseus_status_t status, const char* message);
  // One thing less is under way.
  void end_one();
  // So many parts of a batch are done; tells of its end if that is all.
  void note_done(int64_t number, size_t parts, perseus_status_t status, const char* message);

  // The ranks compare what they have registered while the first batch in an engine is under way.
  Status show_list_once(const std::shared_ptr<Engine>& engine);
  std::vector<int64_t> on_compared(const Status& status) override;
  void on_settled() override;
  // Of the ranks' lists, if they are known to differ.
  Status difference() const;
  // Until the ranks have compared their lists; kInProgress if the time ends first.
  Status wait_for_comparison(int64_t time_out_ms);

  // `wait` is for what was submitted last, and takes a time-out.
  template <typename Wait>
  Status wait_for_last(int32_t number, int64_t time_out_ms, Wait wait);
  Result<Last> last_of(int32_t number);
  Result<Gradient*> find(int32_t number);
  std::string title(const Gradient& gradient) const;

  const pid_t made_by_ = getpid();
  const perseus_gradients_options_t options_;
  const std::string name_;
  std::deque<Gradient> gradients_;  // which stay where they are
  std::unordered_set<std::string> names_;

  std::mutex mutex_;
  std::condition_variable is_idle_;
  std::condition_variable is_known_;  // a handle, or whether the lists differ
  int64_t batch_ = -1;                // the one that is being submitted
  size_t unsubmitted_ = 0;            // in it
  size_t under_way_ = 0;              // operations, until their callbacks have returned
  // By their numbers modulo the size; more than two at once only if callbacks come late.
  std::vector<Batch> batches_ = std::vector<Batch>(2);

  GradientLists lists_;
  std::weak_ptr<Engine> shown_in_;  // where they were compared last, or are being
  int64_t shown_at_ = 0;            // in which batch
  bool are_compared_ = false;
  std::atomic<bool> lists_differ_{false};
  std::string why_;  // once they do
};

}  // namespace perseus
