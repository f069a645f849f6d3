// One operation that this process has submitted, from submit to release.
//
//   submitted -> (in the queue) -> pending -> agreed -> running -> complete
//
// Any state but the last may go straight to complete, with an error. Until it is complete, only the
// thread that runs the engine's loop touches it, except for `done`. From then on it is read-only
// and belongs to the holder of the handle.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/event.h"
#include "base/status.h"
#include "device/cuda/gpu.h"
#include "negotiation/description.h"
#include "state/names.h"

namespace perseus {

// Frees memory of the host or of a GPU. On a GPU something may still be using it.
struct FreeMemory {
  void operator()(std::byte* memory) const {
    if (!Gpu::free(memory)) std::free(memory);
  }
};
using OwnedMemory = std::unique_ptr<std::byte[], FreeMemory>;

// A tensor of an operation: the caller's memory, and the shape of the result.
struct OperationTensor {
  const std::byte* input = nullptr;
  std::byte* output = nullptr;  // the caller's, or allocated's
  OwnedMemory allocated;
  // The caller's memory for a result whose size becomes known later; becomes the output if it fits.
  std::byte* offered = nullptr;
  uint64_t offered_bytes = 0;
  Shape result_shape;
};

// The first NaN or infinity that was found in an operation; see FiniteCheck.
struct NonFinite {
  std::pair<uint32_t, uint64_t> place;  // index of the tensor, and of the element in it
  std::string text;
  bool is_logged_here = false;  // this rank is to log it
  bool is_agreed = false;       // all ranks know
};

// The ends of a message between two ranks. Of a receive that is complete: of the message that came.
struct MessageEnds {
  static constexpr int32_t kAny = -1;
  // A receive of any tag takes messages with lower ones, so that libraries can have tags that no
  // program asks for by accident.
  static constexpr int32_t kFirstOfLibraries = 1 << 30;

  int32_t peer = kAny;                // a rank of the world; a receive may leave it open
  int32_t tag = kAny;                 // likewise
  DataType dtype = DataType::kUint8;  // what came
};

class Operation;
using OperationCallback = std::function<void(Operation& operation)>;

class Operation {
 public:
  int64_t handle = 0;
  int32_t name_id = -1;  // in Names; -1 for the engine's own operations
  std::atomic<bool> holds_name{false};
  int32_t process_set = 0;
  std::string key;
  Description description;
  std::vector<OperationTensor> tensors;
  std::vector<int64_t> splits;  // alltoall: rows for each rank of the set
  MessageEnds message;          // send and receive
  std::string refusal;          // likewise: why the program cannot make the call; else empty
  OperationCallback callback;
  bool is_bound = false;  // its callback runs only on the engine's own thread
  // For tensors on a GPU: the GPU, and the event after which the inputs are ready. No event: they
  // are ready now.
  Gpu* gpu = nullptr;
  GpuEvent ready;
  // Once `launched` is set: the events after which the results are ready. `launched` is set when
  // the operation is done, or before.
  std::vector<GpuEvent> results;
  std::atomic<int> unlaunched_shards{0};
  Event launched;

  // A shard has been queued to the GPU, and will be done at `until`. GPU's thread.
  void shard_launched(const GpuEvent& until) {
    results.push_back(until);
    if (unlaunched_shards.fetch_sub(1, std::memory_order_acq_rel) == 1) launched.set();
  }

  // The name may be used again. Any thread, any number of times.
  void give_back_name(Names& names) {
    if (holds_name.exchange(false, std::memory_order_acq_rel)) names.give_back(name_id);
  }

  // The engine thread's.
  int unfinished_shards = 0;
  int open_activities = 0;  // in the timeline
  Status first_error;
  std::optional<NonFinite> non_finite;
  // When it was submitted, or the first that the engine took up together with it: for reports of
  // stalls.
  std::chrono::steady_clock::time_point submitted_at;

  // Results; valid once done.is_set().
  Status status;
  std::vector<int64_t> received_splits;  // alltoall
  uint64_t sequence = 0;                 // see Agreement::Ready
  uint64_t announced = 0;                // see Agreement
  int32_t last_rank = -1;                // join
  // add_process_set: the set to open or close here, set at submission.
  int32_t new_set = -1;
  Event done;

  std::string_view name() const { return name_of_key(key); }

  // Resets it, but keeps the memory of its strings and vectors; see Recycler.
  void recycle() {
    name_id = -1;
    process_set = 0;
    key.clear();
    Description fresh;
    fresh.tensors.swap(description.tensors);
    fresh.tensors.clear();
    description = std::move(fresh);
    tensors.clear();
    splits.clear();
    message = MessageEnds();
    refusal.clear();
    received_splits.clear();
    callback = nullptr;
    is_bound = false;
    gpu = nullptr;
    ready = GpuEvent();
    results.clear();
    launched.clear();
    unfinished_shards = open_activities = 0;
    first_error = status = Status();
    non_finite.reset();
    last_rank = new_set = -1;
    sequence = announced = 0;
    done.clear();
  }
};
using OperationPtr = std::shared_ptr<Operation>;

// Returns the status of the operation when it ends with `why`. When the job is aborted, all
// outstanding operations end for one reason; the status then says which operation it is about.
Status status_for(const Operation& operation, Status why);

}  // namespace perseus
