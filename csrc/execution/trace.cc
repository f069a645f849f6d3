#include "execution/trace.h"

#include <algorithm>
#include <cctype>
#include <string>

namespace perseus {
namespace {

std::string activity(OperationKind kind) {
  std::string name(to_string(kind));
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return name;
}

// {"dtype": "float32", "shape": "[3, 4]", "tensors": 1}; dtype and shape are the first tensor's.
std::string arguments(const Description& description) {
  if (description.tensors.empty()) return {};
  const TensorDescription& tensor = description.tensors.front();
  std::string text = "{\"dtype\": \"" + std::string(to_string(tensor.dtype)) + "\", \"shape\": \"[";
  for (size_t d = 0; d < tensor.shape.size(); ++d) {
    text += (d ? ", " : "") + std::to_string(tensor.shape[d]);
  }
  return text + "]\", \"tensors\": " + std::to_string(description.tensors.size()) + "}";
}

void begin(Timeline& timeline, Operation& operation, std::string_view what,
           std::string_view args = {}) {
  timeline.begin(operation.name(), what, -1, args);
  operation.open_activities += 1;
}

void end(Timeline& timeline, Operation& operation) {
  if (operation.open_activities == 0) return;
  timeline.end(operation.name());
  operation.open_activities -= 1;
}

// How many activities are open on the row of an operation that is agreed on and waits for a stream.
constexpr int kOpenInQueue = 2;

}  // namespace

void trace_message(Timeline& timeline, Operation& operation) {
  if (!timeline.enabled()) return;
  begin(timeline, operation, activity(operation.description.kind),
        arguments(operation.description));
}

void trace_negotiation(Timeline& timeline, Operation& operation) {
  if (!timeline.enabled()) return;
  begin(timeline, operation, "NEGOTIATE_" + activity(operation.description.kind));
}

void trace_agreed(Timeline& timeline, Operation& operation) {
  if (!timeline.enabled()) return;
  end(timeline, operation);
  begin(timeline, operation, activity(operation.description.kind),
        arguments(operation.description));
  begin(timeline, operation, "QUEUE");
}

void trace_complete(Timeline& timeline, Operation& operation) {
  while (operation.open_activities > 0) end(timeline, operation);
}

void trace_shard_begin(Timeline& timeline, const ShardRun& run) {
  if (!timeline.enabled()) return;
  const std::string what = "SHARD " + std::to_string(run.index);
  const std::string bytes = "{\"bytes\": " + std::to_string(run.shard.bytes) + "}";
  for_each_operation(run.shard, [&](uint32_t index) {
    const OperationPtr& operation = run.batch->operations[index];
    if (operation == nullptr) return;
    if (operation->open_activities == kOpenInQueue) end(timeline, *operation);
    timeline.begin(operation->name(), what, run.timeline_row, bytes);
  });
}

void trace_shard_end(Timeline& timeline, const ShardRun& run) {
  if (!timeline.enabled()) return;
  for_each_operation(run.shard, [&](uint32_t index) {
    const OperationPtr& operation = run.batch->operations[index];
    if (operation != nullptr) timeline.end(operation->name(), run.timeline_row);
  });
}

TracedStep::TracedStep(Timeline& timeline, const ShardRun& run, std::string_view step)
    : timeline_(timeline.enabled() ? &timeline : nullptr), run_(run) {
  if (timeline_ == nullptr) return;
  for_each_operation(run_.shard, [&](uint32_t index) {
    const OperationPtr& operation = run_.batch->operations[index];
    if (operation != nullptr) timeline_->begin(operation->name(), step, run_.timeline_row);
  });
}

TracedStep::~TracedStep() {
  if (timeline_ != nullptr) trace_shard_end(*timeline_, run_);
}

}  // namespace perseus
