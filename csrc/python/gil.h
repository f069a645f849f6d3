// Gives up the GIL around what may block. In place of pybind11's guards, for a thread may come back
// for it while the interpreter ends, daemon threads above all. Up to Python 3.13 that ends the
// thread by unwinding its stack, which aborts the process at the first noexcept function, such as
// pybind11's destructors, and runs others that need the GIL. Here the thread then sleeps until the
// process is gone, as Python 3.14 has it do.
#pragma once

#include <Python.h>
#include <unistd.h>

namespace perseus::python {

// The thread that makes it.
class Unlocked {
 public:
  Unlocked() : thread_(PyEval_SaveThread()) {}
  ~Unlocked() { lock(); }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

  // Calls `function` with the GIL and gives what it returns.
  template <class Function>
  auto with_lock(const Function& function) {
    lock();
    const auto result = function();
    thread_ = PyEval_SaveThread();
    return result;
  }

 private:
  // Asking first whether the interpreter ends would not do: it may begin to right after.
  void lock() noexcept {
    try {
      PyEval_RestoreThread(thread_);
    } catch (...) {
      // This is pthread_exit at its unwinding, which may be stopped but not ended.
      for (;;) pause();
    }
  }

  PyThreadState* thread_;
};

}  // namespace perseus::python
