// The C interface that perseus.mxnet.engine calls.
#include <pthread.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <string>

#include "backlog.h"
#include "engine_operation.h"
#include "outcome.h"

#define PERSEUS_MXNET_API extern "C" __attribute__((visibility("default")))

using perseus::mxnet::EngineOperation;
using perseus::mxnet::Outcome;

namespace {

using SharedOutcome = std::shared_ptr<Outcome>;

thread_local std::string last_error;

// Before a fork MXNet waits for all operations of its engine. Fork handlers run in the reverse of
// the order of their registration, so by then libperseus has locked what those operations need.
// This handler is registered last and so waits first.
void wait_before_forks() {
  perseus_is_initialized();  // registers libperseus's own handler
  static constexpr auto kForAsLongAsMxnet = std::chrono::hours(24 * 365);
  pthread_atfork([] { perseus::mxnet::backlog().settle(kForAsLongAsMxnet); }, nullptr, nullptr);
}

}  // namespace

// Finds MXNet, whose library is at this path. Returns "", or what is wrong with it.
PERSEUS_MXNET_API const char* perseus_mxnet_open(const char* library) {
  last_error = perseus::mxnet::find_api(library);
  if (last_error.empty()) wait_before_forks();
  return last_error.c_str();
}

// Hands an operation to MXNet's engine. If the library allocates the results, or MXNet's engine is
// the naive one, *outcome must be passed to perseus_mxnet_release in the end; else it is null.
// Returns "", or the reason if that fails; the other ranks have then been told.
PERSEUS_MXNET_API const char* perseus_mxnet_push(const perseus_mxnet_call_t* call,
                                                 SharedOutcome** outcome) {
  SharedOutcome shared;
  if (call->outputs == nullptr || call->is_naive != 0) shared = std::make_shared<Outcome>();
  last_error = EngineOperation::push(*call, shared);
  const bool is_asked = shared != nullptr && last_error.empty();
  *outcome = is_asked ? new SharedOutcome(std::move(shared)) : nullptr;
  return last_error.c_str();
}

// Called instead of perseus_mxnet_push if the call has failed before. Tells the other ranks.
PERSEUS_MXNET_API void perseus_mxnet_refuse(int32_t id, const char* reason) {
  perseus::mxnet::refuse(id, reason);
}

// Returns PERSEUS_IN_PROGRESS if the call has not ended by then.
PERSEUS_MXNET_API perseus_status_t perseus_mxnet_wait(const SharedOutcome* outcome,
                                                      int64_t milliseconds) {
  return (*outcome)->wait_for(std::chrono::milliseconds(milliseconds));
}

PERSEUS_MXNET_API const char* perseus_mxnet_message(const SharedOutcome* outcome) {
  return (*outcome)->message().c_str();
}

// Gives result `index` as an array, or null if it has no elements. Returns 0, or -1 if MXNet
// refuses; MXNet then has a message.
PERSEUS_MXNET_API int perseus_mxnet_take(const SharedOutcome* outcome, int32_t index,
                                         void** array) {
  return (*outcome)->take(index, array) ? 0 : -1;
}

PERSEUS_MXNET_API const int64_t* perseus_mxnet_shape(const SharedOutcome* outcome, int32_t index,
                                                     int32_t* rank) {
  *rank = static_cast<int32_t>((*outcome)->shape(index).size());
  return (*outcome)->shape(index).data();
}

// The rows that an alltoall received from each rank.
PERSEUS_MXNET_API const int64_t* perseus_mxnet_received_splits(const SharedOutcome* outcome,
                                                               int32_t* count) {
  *count = static_cast<int32_t>((*outcome)->received_splits().size());
  return (*outcome)->received_splits().data();
}

PERSEUS_MXNET_API void perseus_mxnet_release(SharedOutcome* outcome) { delete outcome; }

// Waits until all operations given to MXNet have ended, or until none has ended for this time.
// Returns how many are left.
PERSEUS_MXNET_API int64_t perseus_mxnet_settle(int64_t milliseconds) {
  return perseus::mxnet::backlog().settle(std::chrono::milliseconds(milliseconds));
}
