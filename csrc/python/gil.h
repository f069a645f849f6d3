// Releases the GIL around calls that may block. Used instead of pybind11's guards, because a
// thread, a daemon thread above all, may ask for the GIL again while the interpreter is ending. Up
// to Python 3.13 this ends the thread by unwinding its stack. That aborts the process at the first
// noexcept function, such as pybind11's destructors, and runs destructors that need the GIL. Here
// the thread sleeps instead until the process is gone, as in Python 3.14.
#pragma once

#include <Python.h>
#include <unistd.h>

namespace perseus::python {

// Used only by the thread that makes it.
class Unlocked {
 public:
  Unlocked() : thread_(PyEval_SaveThread()) {}
  ~Unlocked() { lock(); }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

  // Calls `function` with the GIL and returns its result.
  template <class Function>
  auto with_lock(const Function& function) {
    lock();
    const auto result = function();
    thread_ = PyEval_SaveThread();
    return result;
  }

 private:
  // It would not help to ask first whether the interpreter is ending: it may begin to right after.
  void lock() noexcept {
    try {
      PyEval_RestoreThread(thread_);
    } catch (...) {
      // This is pthread_exit unwinding the stack. The unwinding can be held here, but not
      // cancelled.
      for (;;) pause();
    }
  }

  PyThreadState* thread_;
};

}  // namespace perseus::python
