#include "engine/quick_calls.h"

#include <unistd.h>

#include <cstring>
#include <mutex>
#include <utility>

#include "base/float_environment.h"
#include "base/settings.h"
#include "base/text_hash.h"
#include "base/world_key.h"
#include "engine/engine_scope.h"
#include "engine/process_sets.h"
#include "execution/finite_check.h"
#include "execution/run_options.h"

namespace perseus {
namespace {

// Returns whether some ranks of this host have to share a processor.
bool is_crowded_host(const Mesh& mesh) {
  return mesh.topology().local_size() > sysconf(_SC_NPROCESSORS_ONLN);
}

}  // namespace

QuickCalls::QuickCalls(EventLoop& loop, Mesh& mesh, const RunContext& context,
                       const ProcessSets& sets, const SubmissionQueue& queue,
                       Announcements& announcements, LastSubmission& last)
    : loop_(loop),
      mesh_(mesh),
      timeline_(context.timeline),
      counters_(context.counters),
      sets_(sets),
      queue_(queue),
      announcements_(announcements),
      last_(last),
      are_possible_(are_possible(mesh, context.settings)) {}

// A rank that takes no part for such a reason lets no roll call be held, so all ranks compute the
// same.
bool QuickCalls::are_possible(const Mesh& mesh, const Settings& settings) {
  const int size = mesh.topology().size;
  return mesh.shares_all_memory() && size > 1 && size <= RollCall::kMostRanks &&
         settings.spin_us > 0 && wanted_algorithm(settings) == AllreduceAlgorithm::kAuto &&
         settings.wire_dtype == WireDtype::kNone && !FiniteCheck::is_on(settings);
}

void QuickCalls::open(int tries_left) {
  std::vector<SharedBoard> boards = mesh_.boards();
  if (!boards.empty()) {
    owned_ = std::make_unique<RollCall>(text_hash(mesh_.world_key().name()), mesh_.topology().rank,
                                        std::move(boards), queue_.is_closed(),
                                        RollCall::Manner{.yields = is_crowded_host(mesh_)});
    group_ = &sets_.world().group;
    roll_.store(owned_.get(), std::memory_order_release);
  } else if (tries_left > 0) {
    loop_.call_at(Clock::now() + kBetweenTries, [this, tries_left] { open(tries_left - 1); });
  }
}

bool QuickCalls::is_at_rest() const {
  return !queue_.has_news() &&
         counters_.operations_submitted.value() ==
             counters_.operations_completed.value() + counters_.operations_failed.value();
}

std::optional<Status> QuickCalls::run(const QuickCall& call) {
  RollCall* const roll = roll_.load(std::memory_order_acquire);
  if (roll == nullptr) {
    if (are_possible_ && !is_asked_for_.exchange(true)) {
      loop_.post([this] { open(kMostTries); });
    }
    return {};
  }
  std::unique_lock lock(*roll, std::try_to_lock);
  if (!lock || queue_.is_closed()) return {};
  std::optional<Status> done = run(call, *roll);
  const bool visits = done && ++held_ % kPerVisit == 0;
  lock.unlock();
  if (visits) {
    const EngineScope here;
    loop_.visit();
  }
  return done;
}

std::optional<Status> QuickCalls::run(const QuickCall& call, RollCall& roll) {
  if (timeline_.enabled() || !is_at_rest() || !roll.expects_others()) {
    roll.take_elsewhere(call.form);
    return {};
  }
  const bool brings = call.form.kind != static_cast<uint8_t>(OperationKind::kBroadcast) ||
                      call.form.root == mesh_.topology().rank;
  const std::span<const std::byte> input(call.input, brings ? call.form.bytes : 0);
  if (!roll.attend(call.form, input, announcements_.own())) return {};
  last_.note_roll_call(*call.name);
  counters_.roll_calls.add();
  counters_.operations_submitted.add();
  Status status = finish(call, roll);
  (status.is_ok() ? counters_.operations_completed : counters_.operations_failed).add();
  return status;
}

Status QuickCalls::finish(const QuickCall& call, const RollCall& held) {
  const size_t bytes = call.form.bytes;
  switch (static_cast<OperationKind>(call.form.kind)) {
    case OperationKind::kAllreduce: {
      const DefaultFloatEnvironment the_engines;
      const auto op = static_cast<ReduceOp>(call.form.reduce_op);
      const bool is_average = op == ReduceOp::kAverage;
      PERSEUS_RETURN_IF_ERROR(allreduce_gathered(
          *group_, buffers_, held.inputs(), call.output, call.elements,
          static_cast<DataType>(call.form.dtype), is_average ? ReduceOp::kSum : op,
          is_average ? 1.0 / group_->size : 1.0));
      counters_.bytes_reduced.add(bytes);
      break;
    }
    case OperationKind::kBroadcast: {
      const auto root = static_cast<size_t>(call.form.root);
      std::memcpy(call.output, held.inputs().data() + root * bytes, bytes);
      counters_.bytes_broadcast.add(bytes);
      break;
    }
    default: break;  // a barrier
  }
  announcements_.note_completed(held.announced());
  return {};
}

}  // namespace perseus
