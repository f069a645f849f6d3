// Marks the threads that run an engine, and so may be inside a callback.
#pragma once

namespace perseus {

// The calling thread runs an engine while this lives.
class EngineScope {
 public:
  EngineScope();
  EngineScope(const EngineScope&) = delete;
  ~EngineScope();

  // Returns whether the calling thread runs an engine.
  static bool is_here();

  // To be called in a forked child: a child of a callback has no engine to return to.
  static void after_fork_in_child();
  // Returns whether this process was forked by a callback. It has no other threads, and must end
  // when that callback returns.
  static bool is_child_of_callback();
};

}  // namespace perseus
