#include "capi/waiting.h"

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "capi/c_status.h"
#include "capi/process.h"
#include "engine/engine_scope.h"
#include "state/announcements.h"

namespace perseus {
namespace {

// While it waits, the thread does the engine's work if it may and as long as there is some. Then it
// yields for the time that the settings give, and then sleeps.
bool wait_for_event(Event& event, int64_t time_out_ms) {
  if (event.is_set()) return true;
  const Process& process = Process::instance();
  const std::chrono::nanoseconds spin = process.spin.load(std::memory_order_relaxed);
  const auto began = Clock::now();
  std::optional<std::chrono::nanoseconds> time_out;
  if (is_bound(time_out_ms)) time_out = std::chrono::milliseconds(time_out_ms);
  if (const auto engine = process.engine(); engine != nullptr && time_out_ms != 0) {
    engine->help(event, began, time_out ? began + *time_out : Clock::time_point::max());
    if (event.is_set()) return true;
  }
  const auto spent = Clock::now() - began;
  if (time_out) *time_out -= spent;
  return event.wait(time_out, spin - spent);
}

Status in_progress() { return {StatusCode::kInProgress, "the operation is still under way"}; }

// A graph cannot wait for an event from outside it.
bool is_captured(const Gpu& gpu, CuStream stream) {
  const CurrentContext current(gpu);
  const auto captured = gpu.is_captured(stream);
  return !captured.is_ok() || captured.value();
}

}  // namespace

bool is_bound(int64_t time_out_ms) {
  constexpr int64_t kCenturyMs = int64_t{100} * 365 * 24 * 3600 * 1000;
  return time_out_ms >= 0 && time_out_ms < kCenturyMs;
}

Status check_may_wait(int64_t time_out_ms) {
  if (time_out_ms == 0 || !EngineScope::is_here()) return {};
  return Status::invalid_argument(
      "a callback may not wait, since it would wait for itself; it may submit, or wait with a "
      "time-out of 0");
}

Status wait_for(Operation& operation, int64_t time_out_ms) {
  if (!operation.done.is_set()) PERSEUS_RETURN_IF_ERROR(check_may_wait(time_out_ms));
  return wait_for_event(operation.done, time_out_ms) ? operation.status : in_progress();
}

Status wait_on_stream(Operation& operation, void* stream, int64_t time_out_ms) {
  auto* const waiting = static_cast<CuStream>(stream);
  if (operation.gpu == nullptr || is_captured(*operation.gpu, waiting)) {
    return wait_for(operation, time_out_ms);
  }
  if (!operation.launched.is_set()) PERSEUS_RETURN_IF_ERROR(check_may_wait(time_out_ms));
  if (!wait_for_event(operation.launched, time_out_ms)) return in_progress();
  if (operation.done.is_set()) return operation.status;
  Gpu& gpu = *operation.gpu;
  const CurrentContext current(gpu);
  Status status = current.status();
  for (const GpuEvent& result : operation.results) {
    if (status.is_ok()) status = gpu.make_stream_wait(waiting, result);
  }
  if (!status.is_ok()) return status;
  // The operation is agreed on and queued, so another one of the same name may be submitted. To the
  // caller it counts as done.
  Process& process = Process::instance();
  operation.give_back_name(process.names);
  if (const auto engine = process.engine()) {
    engine->announcements().note_completed(operation.announced);
  }
  return {};
}

Status unknown_handle(perseus_handle_t handle) {
  if (const Operation* inherited = Process::instance().handles.find_inherited(handle)) {
    return Status::not_initialized(
        title(inherited->key) +
        ": it belongs to the process that this one was forked from; only that process can wait for "
        "it or take its result, and in this one Perseus is not initialized");
  }
  return Status::invalid_argument("handle " + std::to_string(handle) +
                                  " was never given out, or has been released");
}

}  // namespace perseus
