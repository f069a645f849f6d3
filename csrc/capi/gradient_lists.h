// Compares whether all ranks have registered the same gradients in the same order. A gradient that
// only some ranks have would never be submitted by the others, and these would wait in vain.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "perseus/perseus.h"

namespace perseus {

// One comparison at a time. A thread of the program calls show(); the rest runs on the library's.
class GradientLists {
 public:
  class Owner {
   public:
    // The lists were compared. Ok: all are the same. kMismatch: they differ, as the message says,
    // and nothing more may be submitted. Another error: the job ended first. Returns how often each
    // gradient has been submitted since show().
    virtual std::vector<int64_t> on_compared(const Status& status) = 0;
    // The last call. Gradients that were submitted although the lists differ end by themselves.
    virtual void on_settled() = 0;

   protected:
    ~Owner() = default;
  };

  // `name`: the prefix of the gradients' names, the same on all ranks.
  GradientLists(Owner& owner, perseus_process_set_t set, std::string name)
      : owner_(owner), set_(set), name_(std::move(name)) {}

  // Sends the names of this rank's gradients, none of which is empty, to the other ranks. The
  // owner is called back unless this fails.
  Status show(const std::vector<std::string>& gradients);

 private:
  Status gather(const std::string& what, const void* data, int64_t count, perseus_dtype_t dtype,
                perseus_callback_t callback);
  void compare(perseus_handle_t handle, const Status& status);
  Status gather_counts(const std::string& what, perseus_callback_t callback);
  // Ends gradients that some ranks have submitted and others now will not.
  void settle(perseus_handle_t handle, perseus_status_t status);
  // Refuses the gradients that this rank has submitted less often than another rank.
  void refuse_what_others_have(perseus_handle_t handle);
  // Returns how the lists differ, or "".
  std::string find_difference() const;

  Owner& owner_;
  const perseus_process_set_t set_;
  const std::string name_;
  std::string shown_;  // each name, ended by a null character; one more at the end
  std::vector<std::string> own_;
  std::vector<std::vector<std::string>> of_ranks_;
  std::vector<int64_t> submitted_;  // how often, for each of own_
  std::string why_;
};

}  // namespace perseus
