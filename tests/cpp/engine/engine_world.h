// The parts of engines whose ranks are threads of one test program: without the C API, and without
// another process.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/settings.h"
#include "engine/engine_parts.h"
#include "engine/engine_scope.h"
#include "transport/thread_world.h"

namespace perseus {

class EngineRank {
 public:
  // `found`: in an earlier world.
  EngineRank(ThreadRendezvous& rendezvous, int rank, const TunerFindings& found = {})
      : rank_(rank), settings_(test_settings({{"PERSEUS_STALL_CHECK_DISABLE", "1"}})) {
    ThreadBootstrap bootstrap(rendezvous, rank);
    auto mesh = Mesh::create(loop_, settings_, bootstrap, found.pack());
    if (!mesh.is_ok()) throw std::runtime_error(mesh.status().message());
    mesh_ = std::move(mesh).value();
    parts_ = std::make_unique<EngineParts>(
        loop_, *mesh_, names_,
        RunContext{settings_, buffers_, timeline_, residuals_, counters_, rank, gpus_});
    parts_->take_over(TunerFindings::unpack(mesh_->experience()));
    thread_ = std::thread([this] {
      const EngineScope here;
      loop_.run();
    });
  }
  ~EngineRank() { leave(); }

  // Shuts down, giving the others a reason unless it is empty.
  void leave(const std::string& why = "") {
    if (!thread_.joinable()) return;
    loop_.post([this, why] { parts_->termination.begin_shutdown(why); });
    thread_.join();
    loop_.remove_poller(&parts_->queue);
    parts_->queue.poll();
  }

  int rank() const { return rank_; }
  EngineParts& parts() { return *parts_; }
  EventLoop& loop() { return loop_; }
  Mesh& mesh() { return *mesh_; }

  // A sum of `count` floats, all of which are `value`.
  OperationPtr submit(const std::string& name, float value, size_t count = 1,
                      int32_t set = ProcessSet::kWorld) {
    auto operation = std::make_shared<Operation>();
    operation->name_id = names_.id_of(set, OperationKind::kAllreduce, name);
    EXPECT_TRUE(names_.take(operation->name_id)) << name;
    operation->holds_name = true;
    operation->key = names_.find(operation->name_id).value()->key;
    operation->process_set = set;
    operation->description.tensors = {{DataType::kFloat32, {static_cast<int64_t>(count)}}};
    inputs_.push_back(std::vector<float>(count, value));
    operation->tensors.resize(1);
    operation->tensors[0].input = reinterpret_cast<const std::byte*>(inputs_.back().data());
    const Status status = parts_->queue.submit(operation);
    if (!status.is_ok()) {
      operation->status = status;
      operation->done.set();
    }
    return operation;
  }
  static Status wait(const OperationPtr& operation) {
    if (!operation->done.wait(std::chrono::seconds(60))) return Status::timed_out("not done");
    return operation->status;
  }
  static float first(const OperationPtr& operation) {
    return *reinterpret_cast<const float*>(operation->tensors[0].output);
  }

 private:
  const int rank_;
  const Settings settings_;
  Names names_;
  Timeline timeline_;
  Counters counters_;
  std::deque<std::vector<float>> inputs_;
  EventLoop loop_;
  BufferPool buffers_;
  GpuThreads gpus_{loop_, std::chrono::seconds(5)};
  Residuals residuals_;
  std::unique_ptr<Mesh> mesh_;
  std::unique_ptr<EngineParts> parts_;
  std::thread thread_;
};

// Runs `body` on a thread for each rank, and then has all of them leave. `found`: by rank, in an
// earlier world.
inline void run_engine_world(int size, const std::function<void(EngineRank&)>& body,
                             const std::vector<TunerFindings>& found = {}) {
  ThreadRendezvous rendezvous(size);
  ThreadRendezvous end(size);
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r) {
    threads.emplace_back([&, r] {
      EngineRank rank(rendezvous, r, found.empty() ? TunerFindings() : found[r]);
      body(rank);
      EXPECT_TRUE(end.all_gather(r, "", std::chrono::seconds(60)).is_ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace perseus
