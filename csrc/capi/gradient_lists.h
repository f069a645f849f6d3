// Whether the ranks have registered the same gradients, in the same order: what only some have the
// others would never submit, and these would wait for in vain.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "perseus/perseus.h"

namespace perseus {

// One comparison at a time: show() by a thread of the program, the rest on the library's.
class GradientLists {
 public:
  class Owner {
   public:
    // The ranks' lists are the same; kMismatch if not, with how they differ; any other status if
    // the job ended before they could be compared. Where they differ nothing may be submitted any
    // more. Gives how often each gradient has been, since show().
    virtual std::vector<int64_t> on_compared(const Status& status) = 0;
    // The last call: what was submitted of gradients that differ ends by itself.
    virtual void on_settled() = 0;

   protected:
    ~Owner() = default;
  };

  // `name`: what the names of the gradients begin with, on all ranks.
  GradientLists(Owner& owner, perseus_process_set_t set, std::string name)
      : owner_(owner), set_(set), name_(std::move(name)) {}

  // Shows the others this rank's gradients by their names, none of which is empty. The owner is
  // told unless this fails.
  Status show(const std::vector<std::string>& gradients);

 private:
  Status gather(const std::string& what, const void* data, int64_t count, perseus_dtype_t dtype,
                perseus_callback_t callback);
  void compare(perseus_handle_t handle, const Status& status);
  Status gather_counts(const std::string& what, perseus_callback_t callback);
  // Some ranks have submitted gradients that others have not, and now will not.
  void settle(perseus_handle_t handle, perseus_status_t status);
  // Those of which this rank has submitted fewer than any other.
  void refuse_what_others_have(perseus_handle_t handle);
  // "" if there is none.
  std::string find_difference() const;

  Owner& owner_;
  const perseus_process_set_t set_;
  const std::string name_;
  std::string shown_;  // each name and a null character, and one more at the end
  std::vector<std::string> own_;
  std::vector<std::vector<std::string>> of_ranks_;
  std::vector<int64_t> submitted_;  // of own_
  std::string why_;
};

}  // namespace perseus
