// Ranks that are threads of one test program, each with a loop and a mesh of its own. A rank's work
// is a coroutine. Header-only, for the tests of every room above the transports.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/event_loop.h"
#include "base/settings.h"
#include "base/task.h"
#include "transport/mesh.h"
#include "transport/thread_bootstrap.h"

namespace perseus {

// Lets the loop turn once: NextTurn next{loop}; co_await next;
struct NextTurn {
  EventLoop& loop;
  bool await_ready() const noexcept { return false; }
  void await_suspend(std::coroutine_handle<> handle) { loop.schedule(handle); }
  void await_resume() const noexcept {}
};

// Records the mesh's events; a coroutine may wait for the next one: co_await listener.news().
class TestListener : public MeshListener {
 public:
  explicit TestListener(EventLoop& loop) : loop_(loop) {}

  struct Message {
    int from;
    std::string text;
  };
  struct Loss {
    int peer;
    Status why;
  };
  std::deque<Message> controls;
  std::vector<Loss> lost;

  struct News {
    TestListener& listener;
    bool await_ready() const noexcept { return listener.unseen_; }
    void await_suspend(std::coroutine_handle<> handle) { listener.waiter_ = handle; }
    void await_resume() const noexcept { listener.unseen_ = false; }
  };
  News news() { return News{*this}; }

 private:
  void on_control(int from, std::span<const std::byte> message) override {
    controls.push_back(
        {from, std::string(reinterpret_cast<const char*>(message.data()), message.size())});
    wake();
  }
  void on_rank_lost(int rank, const Status& why) override {
    lost.push_back({rank, why});
    wake();
  }
  void on_connection_disturbed(int rank, const Status& why) override { on_rank_lost(rank, why); }
  void wake() {
    unseen_ = true;
    if (waiter_) loop_.schedule(std::exchange(waiter_, nullptr));
  }

  EventLoop& loop_;
  bool unseen_ = false;
  std::coroutine_handle<> waiter_;
};

struct RankContext {
  int rank;
  int size;
  EventLoop& loop;
  Mesh& mesh;
  TestListener& listener;
  ThreadRendezvous& rendezvous;

  void send_text(int peer, const std::string& text) {
    mesh.send_control(peer, std::as_bytes(std::span(text)));
  }
};

using RankBody = std::function<Task(RankContext&)>;

// Settings for a test, with time-outs that end a hanging test within seconds.
inline Settings test_settings(const std::vector<std::pair<std::string, std::string>>& values = {}) {
  const auto get = [&](const char* name) -> const char* {
    for (const auto& [key, value] : values) {
      if (key == name) return value.c_str();
    }
    if (std::string(name) == "PERSEUS_START_TIMEOUT") return "20";
    return nullptr;
  };
  Result<Settings> settings = Settings::from(get);
  EXPECT_TRUE(settings.is_ok()) << settings.status().message();
  return settings.is_ok() ? std::move(settings).value() : Settings();
}

struct RankRun : TaskObserver {
  RankRun(EventLoop& l, Mesh& m, std::chrono::milliseconds linger_time)
      : loop(l), mesh(m), linger(linger_time) {}
  void task_finished(const Status& s) override {
    status = s;
    mesh.close(linger, [this] { loop.stop(); });
  }
  EventLoop& loop;
  Mesh& mesh;
  const std::chrono::milliseconds linger;
  Status status;
};

// One rank from mesh to goodbye, on the calling thread.
inline Status run_rank(ThreadRendezvous& rendezvous, Bootstrap& bootstrap, const Settings& settings,
                       const RankBody& body) {
  EventLoop loop(std::chrono::microseconds(settings.spin_us));
  TestListener listener(loop);
  Result<std::unique_ptr<Mesh>> mesh = Mesh::create(loop, settings, bootstrap);
  if (!mesh.is_ok()) return mesh.status();
  mesh.value()->listen(listener);
  RankContext context{bootstrap.rank(), bootstrap.size(), loop,
                      *mesh.value(),    listener,         rendezvous};
  RankRun run(loop, *mesh.value(), std::chrono::seconds(60));  // under a sanitizer
  loop.post([&] { body(context).start(&run); });
  loop.run();
  return run.status;
}

inline std::vector<Status> run_world_of_threads(int size, const Settings& settings,
                                                const RankBody& body) {
  ThreadRendezvous rendezvous(size);
  std::vector<Status> outcomes(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      ThreadBootstrap bootstrap(rendezvous, rank);
      outcomes[rank] = run_rank(rendezvous, bootstrap, settings, body);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

// How a test program makes worlds: of threads, unless it says otherwise. Under mpirun each rank is
// a process, which runs itself and knows only its own outcome.
struct WorldMaker {
  int largest = 8;
  std::vector<Status> (*run)(int size, const Settings& settings,
                             const RankBody& body) = run_world_of_threads;
};
inline WorldMaker world_maker;

// Returns every rank's outcome.
inline std::vector<Status> run_world(int size, const Settings& settings, const RankBody& body) {
  return world_maker.run(size, settings, body);
}

// The same, and expects every rank to end well.
inline void expect_world_ok(int size, const Settings& settings, const RankBody& body) {
  const std::vector<Status> outcomes = run_world(size, settings, body);
  for (int rank = 0; rank < size; ++rank) {
    EXPECT_TRUE(outcomes[rank].is_ok()) << "rank " << rank << ": " << outcomes[rank].message();
  }
}

}  // namespace perseus
