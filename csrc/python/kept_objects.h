// The Python objects whose memory operations use, by handle. They must outlive their operations
// even if the call that submitted one is interrupted: Python can raise a signal handler's exception
// as soon as a C function has returned, so that function itself must keep the object. All calls
// hold the GIL.
#pragma once

#include <pybind11/pybind11.h>

#include <unordered_map>
#include <utility>
#include <vector>

#include "perseus/perseus.h"

namespace perseus::python {

class KeptObjects {
 public:
  static KeptObjects& instance() {
    static auto* kept = new KeptObjects;  // never destroyed: at exit Python may end before it
    return *kept;
  }

  void keep(perseus_handle_t handle, pybind11::handle object) {
    objects_[handle] = pybind11::reinterpret_borrow<pybind11::object>(object);
  }

  // Returns None for a handle that nothing is kept for.
  pybind11::object find(perseus_handle_t handle) const {
    const auto found = objects_.find(handle);
    return found == objects_.end() ? pybind11::none() : found->second;
  }

  void drop(perseus_handle_t handle) {
    const auto found = objects_.find(handle);
    if (found == objects_.end()) return;
    const pybind11::object last = std::move(found->second);  // its end may run Python code
    objects_.erase(found);
  }

  // Drops the objects of complete operations, whose handles nobody may have received.
  void drop_complete() {
    std::vector<perseus_handle_t> complete;
    for (const auto& [handle, object] : objects_) {
      if (perseus_poll(handle) != 0) complete.push_back(handle);
    }
    for (const perseus_handle_t handle : complete) drop(handle);
  }

 private:
  std::unordered_map<perseus_handle_t, pybind11::object> objects_;
};

}  // namespace perseus::python
