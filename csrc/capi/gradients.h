// The gradients of a training loop, above perseus.h's own operations: which of them has been
// submitted in which batch, and whom to tell when they are done.
#pragma once

#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/operation.h"
#include "perseus/perseus.h"

namespace perseus {

// As perseus.h says who may call what; operations complete on the library's threads.
class Gradients {
 public:
  explicit Gradients(const perseus_gradients_options_t& options);
  // Waits for what is under way, and for callbacks.
  ~Gradients();
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
  };
  // One of which something is not done.
  struct Batch {
    size_t remaining = 0;
    bool is_told = false;
    perseus_status_t status = PERSEUS_OK;  // the first that is not
    std::string message;
  };

  // Marks it as submitted in its next batch; an error if that has no place for it. Gives whether it
  // is the batch's first.
  Result<bool> enter(Gradient& gradient);
  void leave(Gradient& gradient, bool was_first);
  void open_batch();
  Batch& batch(int64_t number) { return batches_[static_cast<size_t>(number) % batches_.size()]; }
  void complete(Gradient& gradient, perseus_status_t status, const char* message);
  void tell_end(int64_t number, perseus_status_t status, const std::string& message);

  // The ranks show each other what they have registered, while the first batch is under way: what
  // only some have would be waited for in vain.
  Status show_list();
  void compare_lists(perseus_handle_t handle);
  // How the ranks' lists, one after the other, differ; "" if they do not.
  std::string difference(std::string_view lists) const;
  void fail_all(std::string why);

  template <typename Wait>
  Status wait_unless_lists_differ(int64_t time_out_ms, Wait wait);
  // What was submitted last; null if nothing was.
  Result<OperationPtr> last_of(int32_t number);
  Result<Gradient*> find(int32_t number);
  std::string title(const Gradient& gradient) const;

  const pid_t made_by_ = getpid();
  const perseus_gradients_options_t options_;
  const std::string name_;
  std::deque<Gradient> gradients_;  // which stay where they are

  std::mutex mutex_;
  std::condition_variable is_idle_;
  std::condition_variable is_known_;  // the handle of what is being submitted
  int64_t batch_ = -1;                // the one that is being submitted
  size_t unsubmitted_ = 0;            // in it
  size_t under_way_ = 0;              // operations, until their callbacks have returned
  // By their numbers modulo the size; more than two at once only if callbacks come late.
  std::vector<Batch> batches_ = std::vector<Batch>(2);

  std::string list_;  // of this rank: each name and a null character, and one more at the end
  std::atomic<bool> lists_differ_{false};
  std::string why_;  // once they do
};

}  // namespace perseus
