// What operations work on, by handle: it must outlive them, whatever becomes of the call that began
// them. Python can raise what a signal's handler raises as soon as a C function has returned, so
// that function must have taken hold of it. All calls are under the GIL.
#pragma once

#include <pybind11/pybind11.h>

#include <unordered_map>
#include <utility>
#include <vector>

#include "perseus/perseus.h"

namespace perseus::python {

class Kept {
 public:
  static Kept& instance() {
    static auto* kept = new Kept;  // at exit Python may be gone before it
    return *kept;
  }

  void keep(perseus_handle_t handle, pybind11::handle object) {
    objects_[handle] = pybind11::reinterpret_borrow<pybind11::object>(object);
  }

  // None for a handle that nothing is kept for.
  pybind11::object find(perseus_handle_t handle) const {
    const auto found = objects_.find(handle);
    return found == objects_.end() ? pybind11::none() : found->second;
  }

  void let_go(perseus_handle_t handle) {
    const auto found = objects_.find(handle);
    if (found == objects_.end()) return;
    const pybind11::object last = std::move(found->second);  // whose end may run Python
    objects_.erase(found);
  }

  // Of operations whose handles nobody has got hold of.
  void let_go_of_what_is_complete() {
    std::vector<perseus_handle_t> complete;
    for (const auto& [handle, object] : objects_) {
      if (perseus_poll(handle) != 0) complete.push_back(handle);
    }
    for (const perseus_handle_t handle : complete) let_go(handle);
  }

 private:
  std::unordered_map<perseus_handle_t, pybind11::object> objects_;
};

}  // namespace perseus::python
