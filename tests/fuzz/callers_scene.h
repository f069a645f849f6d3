// What the scenes share in which callers, several at once, take steps against one server: an input
// is a sequence of steps, each by one of the callers or by the world around them.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "fuzz/caller.h"
#include "fuzz/descriptors.h"
#include "fuzz/fake_clock.h"
#include "fuzz/input.h"

namespace perseus::fuzz {

// `Connection`: a caller's, which reads along what it says, such as RendezvousCaller.
template <typename Connection>
class CallersScene {
 protected:
  using ConnectionPtr = std::unique_ptr<Connection>;
  static constexpr size_t kCallers = 6;

  CallersScene(const uint8_t* data, size_t size) : input_(data, size) {}
  CallersScene(const CallersScene&) = delete;
  virtual ~CallersScene() = default;

  // Lets the server do what there is to do; returns whether there was anything.
  virtual bool run_once() = 0;
  virtual ConnectionPtr call() = 0;
  virtual void drop(ConnectionPtr& caller) { caller.reset(); }
  // What happens while no socket can be opened.
  virtual void pass_scarcity() { settle(); }
  // One step of `caller`, which may be null, or of the world around it.
  virtual void take_step(uint8_t what, ConnectionPtr& caller) = 0;

  void take_steps() {
    for (int step = 0; step < kMostSteps && !input_.empty(); ++step) {
      const auto what = input_.template number<uint8_t>();
      take_step(what & 0x7f, any_caller());
      if (what < 0x80) settle();
    }
  }

  ConnectionPtr& any_caller() { return callers_[input_.template number<uint8_t>() % kCallers]; }

  // Has all say and hear what they can. A server that takes more turns for it spins.
  void settle() {
    for (int turn = 0; turn < kMostTurns; ++turn) {
      bool moved = run_once();
      for (ConnectionPtr& caller : callers_) {
        moved = (caller && caller->caller().flush()) || moved;
      }
      if (!moved) return;
    }
    MUST(false);
  }

  // Callers that say nothing, of which a server keeps a bounded number. `most`: at once.
  void flood(std::span<const Endpoint> where, int most) {
    const auto many = input_.template number<uint8_t>();
    const int count = many < 0xf0 ? many % 16 : most;
    for (int i = 0; i < count && flood_.size() < 2 * static_cast<size_t>(most); ++i) {
      flood_.emplace_back(where[i % where.size()]);
    }
  }

  void call_without_descriptors(ConnectionPtr& caller) {
    drop(caller);
    settle();
    caller = call();
    const Scarcity scarcity;
    pass_scarcity();
  }

  void pass_time(std::span<const std::chrono::milliseconds> times) {
    pass(times[input_.template number<uint8_t>() % times.size()]);
  }

  // Some of what another connection has said, from any point on.
  template <typename Number>
  std::string part_of_another(size_t most) {
    const ConnectionPtr& other = any_caller();
    if (!other || other->said().empty()) return "";
    return other->said().substr(input_.template number<Number>() % other->said().size(), most);
  }

  Input input_;
  std::array<ConnectionPtr, kCallers> callers_;
  std::vector<Caller> flood_;

 private:
  static constexpr int kMostSteps = 64;
  static constexpr int kMostTurns = 2000;
};

}  // namespace perseus::fuzz
