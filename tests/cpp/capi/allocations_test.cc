// Nothing allocates on the steady path: once every name has been seen and every pool has grown to
// what is in flight at once, a step takes no memory from the heap, on no thread of the process.
//
// Counts `operator new`. Results that the library makes for the caller come from malloc, and are
// the caller's to take, so they do not count.
#include <execinfo.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <ostream>

#include "capi/world.h"
#include "sanitizers.h"

namespace {

constexpr int kTracesKept = 24;
constexpr int kDepth = 12;

// The stacks of the last counted allocations, shown when there should be none.
struct Trace {
  std::array<void*, kDepth> frames;
  int depth = 0;
};
std::array<Trace, kTracesKept> traces;
std::atomic<uint64_t> allocations{0};
std::atomic<bool> counting{false};

void* allocate(size_t bytes, size_t alignment) noexcept {
  if (counting.load(std::memory_order_relaxed)) {
    const uint64_t number = allocations.fetch_add(1, std::memory_order_relaxed);
    if (number < kTracesKept)
      traces[number].depth = backtrace(traces[number].frames.data(), kDepth);
  }
  const size_t size = std::max<size_t>(bytes, 1);
  return alignment <= alignof(std::max_align_t)
             ? std::malloc(size)
             : std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
}

void* allocate_or_throw(size_t bytes, size_t alignment) {
  void* memory = allocate(bytes, alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

// The array forms and the sized ones end up in these.
void* operator new(size_t bytes) { return allocate_or_throw(bytes, 1); }
void* operator new(size_t bytes, std::align_val_t alignment) {
  return allocate_or_throw(bytes, static_cast<size_t>(alignment));
}
void* operator new(size_t bytes, const std::nothrow_t&) noexcept { return allocate(bytes, 1); }
void* operator new(size_t bytes, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return allocate(bytes, static_cast<size_t>(alignment));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }

namespace perseus::test {
namespace {

enum class Output { kInPlace, kTheLibrarys };

// One step of one rank. Its memory is allocated once, before the first step.
class Step {
 public:
  // An operation on `tensors` tensors of this shape.
  Submission& add(perseus_operation_t operation, const std::string& name,
                  std::vector<int64_t> shape, Output output = Output::kInPlace, int tensors = 1) {
    int64_t elements = 1;
    for (int64_t extent : shape) elements *= extent;
    Work& work = *works_.emplace_back(std::make_unique<Work>(operation, name));
    work.shape = std::move(shape);
    for (int t = 0; t < tensors; ++t) {
      float* data = work.data.emplace_back(static_cast<size_t>(elements)).data();
      work.submission.tensor(data, output == Output::kInPlace ? data : nullptr, work.shape,
                             PERSEUS_FLOAT32);
    }
    work.submission.raw.callback = [](void*, perseus_handle_t, perseus_status_t, const char*) {};
    handles_.reserve(works_.size());
    return work.submission;
  }

  void run() {
    handles_.clear();
    for (const auto& work : works_) handles_.push_back(work->submission.submit());
    for (perseus_handle_t handle : handles_) {
      REQUIRE(perseus_wait(handle, -1) == PERSEUS_OK);
      perseus_release(handle);
    }
  }

 private:
  struct Work {
    Work(perseus_operation_t operation, const std::string& name) : submission(operation, name) {}
    std::vector<int64_t> shape;
    std::vector<std::vector<float>> data;
    Submission submission;
  };
  std::vector<std::unique_ptr<Work>> works_;
  std::vector<perseus_handle_t> handles_;
};

Step one_small_allreduce(int) {
  Step step;
  step.add(PERSEUS_ALLREDUCE, "a gradient of a layer", {16});
  return step;
}

// As many tensors as ResNet-50 has, of one to four dimensions.
Step many_merged_allreduces(int) {
  Step step;
  const std::vector<std::vector<int64_t>> shapes = {{64}, {16, 3, 3, 16}, {128, 16}, {100, 2, 5}};
  for (size_t i = 0; i < 161; ++i) {
    step.add(PERSEUS_ALLREDUCE, "gradient of layer number " + std::to_string(i), shapes[i % 4])
        .raw.priority = static_cast<int32_t>(i);
  }
  return step;
}

Step one_sharded_allreduce(int) {
  Step step;
  step.add(PERSEUS_ALLREDUCE, "a large gradient", {1'000'003});
  return step;
}

Step one_scaled_average(int) {
  Step step;
  Submission& average = step.add(PERSEUS_ALLREDUCE, "a scaled average", {300'001});
  average.raw.reduce_op = PERSEUS_AVERAGE;
  average.raw.prescale = 0.5;
  return step;
}

Step one_coded_allreduce(int) {
  Step step;
  Submission& coded = step.add(PERSEUS_ALLREDUCE, "an encoded gradient", {100'003});
  REQUIRE(perseus_find_codec("fp16", &coded.raw.codec) == PERSEUS_OK);
  return step;
}

// Rounds to whole numbers, which loses something each time.
Step one_allreduce_with_error_feedback(int) {
  perseus_codec_t rounding{};
  rounding.struct_size = sizeof rounding;
  rounding.name = "rounding";
  rounding.error_feedback = 1;
  rounding.encoded_size = [](void*, size_t elements) { return elements * sizeof(float); };
  rounding.encode = [](void*, const float* from, size_t count, void* to) {
    for (size_t i = 0; i < count; ++i) static_cast<float*>(to)[i] = std::round(from[i]);
  };
  rounding.decode = [](void*, const void* from, float* to, size_t count) {
    std::memcpy(to, from, count * sizeof(float));
  };
  Step step;
  Submission& coded = step.add(PERSEUS_ALLREDUCE, "a rounded gradient", {1000});
  REQUIRE(perseus_register_codec(&rounding, &coded.raw.codec) == PERSEUS_OK);
  return step;
}

// Operations of one to five tensors and of none, which reuse each other's memory.
Step groups_and_a_barrier(int) {
  Step step;
  for (int tensors = 1; tensors <= 5; ++tensors) {
    step.add(PERSEUS_ALLREDUCE, "a group of " + std::to_string(tensors) + " tensors", {2, 3, 10},
             Output::kInPlace, tensors);
  }
  step.add(PERSEUS_BARRIER, "the end of the step for all", {}, Output::kInPlace, 0);
  return step;
}

Step two_broadcasts(int) {
  Step step;
  step.add(PERSEUS_BROADCAST, "small parameters", {1000}).raw.root = 0;
  step.add(PERSEUS_BROADCAST, "large parameters", {1'000'000}).raw.root = 1;
  return step;
}

Step one_allgather(int rank) {
  Step step;
  step.add(PERSEUS_ALLGATHER, "rows of every rank", {rank + 1, 100}, Output::kTheLibrarys);
  return step;
}

Step one_alltoall(int) {
  Step step;
  step.add(PERSEUS_ALLTOALL, "rows for every rank", {12, 100}, Output::kTheLibrarys);
  return step;
}

Step one_reduce_scatter(int) {
  Step step;
  step.add(PERSEUS_REDUCESCATTER, "rows to be summed", {13, 1000}, Output::kTheLibrarys);
  return step;
}

struct Case {
  const char* name;
  Step (*make)(int rank);
  friend void PrintTo(const Case& work, std::ostream* out) { *out << work.name; }
};

constexpr Case kCases[] = {
    {"OneSmallAllreduce", one_small_allreduce},
    {"ManyMergedAllreduces", many_merged_allreduces},
    {"OneShardedAllreduce", one_sharded_allreduce},
    {"OneScaledAverage", one_scaled_average},
    {"OneCodedAllreduce", one_coded_allreduce},
    {"OneAllreduceWithErrorFeedback", one_allreduce_with_error_feedback},
    {"GroupsAndABarrier", groups_and_a_barrier},
    {"TwoBroadcasts", two_broadcasts},
    {"OneAllgather", one_allgather},
    {"OneAlltoall", one_alltoall},
    {"OneReduceScatter", one_reduce_scatter},
};

struct Topology {
  const char* name;
  int size;
  bool is_two_hosts;
  const char* transport;
  friend void PrintTo(const Topology& topology, std::ostream* out) { *out << topology.name; }
};

constexpr Topology kTopologies[] = {
    {"Shm", 3, false, "auto"},
    {"Tcp", 2, false, "tcp"},
    {"TwoHosts", 4, true, "auto"},
};

class Allocations : public testing::TestWithParam<std::tuple<Case, Topology>> {};

// With a sanitizer, a few steps show that reused memory is handed over correctly; more would take
// minutes. Without one, the tuner has enough steps: it changes plans until it has found the best.
constexpr int kWarmUp = kIsSanitized ? 5 : 120;
// The number of operations in flight differs between steps, so a pool may still grow now and then;
// an allocation in every step shows in each window.
constexpr int kWindows = kIsSanitized ? 1 : 24, kStepsPerWindow = kIsSanitized ? 5 : 16;

void show_traces() {
  for (const Trace& trace : traces) {
    if (trace.depth == 0) return;
    backtrace_symbols_fd(trace.frames.data(), trace.depth, STDERR_FILENO);
    std::fprintf(stderr, "\n");
  }
}

TEST_P(Allocations, ThereAreNoneOnceAllIsKnown) {
  const auto& [work, topology] = GetParam();
  // The search for stalled operations every few seconds may allocate; on a slow machine a step may
  // take as long.
  World(topology.size, {{"PERSEUS_TRANSPORT", topology.transport},
                        {"PERSEUS_STALL_CHECK_DISABLE", "1"},
                        {"PERSEUS_NAME_CONFLICT_TIME_SECONDS", "86400"}})
      .run_bare([work = work, topology = topology](int rank) {
        if (topology.is_two_hosts) {
          setenv("PERSEUS_HOSTNAME", rank < topology.size / 2 ? "first" : "second", 1);
        }
        REQUIRE(perseus_init(nullptr) == PERSEUS_OK);
        {
          Step step = work.make(rank);
          for (int i = 0; i < kWarmUp; ++i) step.run();
          Trace warm_up;  // the first backtrace loads a library
          warm_up.depth = backtrace(warm_up.frames.data(), kDepth);
          uint64_t fewest = UINT64_MAX;
          for (int window = 0; window < kWindows; ++window) {
            allocations.store(0);
            counting.store(true);
            for (int i = 0; i < kStepsPerWindow; ++i) step.run();
            counting.store(false);
            fewest = std::min(fewest, allocations.load());
          }
          if (!kIsSanitized && fewest != 0) {
            std::fprintf(stderr, "rank %d: %.2f allocations a step\n", rank,
                         static_cast<double>(fewest) / kStepsPerWindow);
            show_traces();
          }
          REQUIRE(kIsSanitized || fewest == 0);
          // No rank leaves while others count.
          REQUIRE(Submission(PERSEUS_BARRIER, "the end of the count").run() == PERSEUS_OK);
        }
        REQUIRE(perseus_shutdown() == PERSEUS_OK);
      });
}

INSTANTIATE_TEST_SUITE_P(
    Work, Allocations, testing::Combine(testing::ValuesIn(kCases), testing::ValuesIn(kTopologies)),
    [](const auto& info) {
      return std::string(std::get<0>(info.param).name) + std::get<1>(info.param).name;
    });

}  // namespace
}  // namespace perseus::test
