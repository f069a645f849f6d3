#include "engine/engine_parts.h"

#include <utility>

#include "base/settings.h"
#include "base/world_key.h"

namespace perseus {
namespace {

std::chrono::seconds stall_limit(const Settings& settings) {
  return std::chrono::seconds(settings.stall_check_disable ? 0 : settings.stall_shutdown_time);
}

std::chrono::seconds report_time(const Settings& settings) {
  return std::chrono::seconds(settings.stall_check_disable ? 0 : settings.stall_check_time);
}

WorldShape shape_of(const Topology& topology) {
  return {.hosts = static_cast<int>(topology.host_names.size()), .ranks = topology.size};
}

}  // namespace

EngineParts::EngineParts(EventLoop& loop, Mesh& mesh, Names& names, const RunContext& context)
    : departures(mesh.topology()),
      blame(mesh.topology(), mesh.world_key().name()),
      tracker(names, context.timeline, context.counters, binding, announcements, blame),
      sets(wire(loop, mesh, context)),
      agreements(wire(loop, mesh, context)),
      termination(loop, mesh, context.gpus, queue, executor, messenger, sets, departures, blame),
      peers(mesh, std::chrono::seconds(context.settings.peer_timeout), sets, messenger, termination,
            departures, blame, watches),
      queue(loop, names, binding, agreements),
      executor(context, {.operations = tracker, .shards = termination, .launches = agreements},
               mesh.topology().local_size(), shape_of(mesh.topology())),
      message_host(mesh, tracker, termination, departures, sets),
      messenger(loop, mesh, context.buffers, context.gpus, context.counters,
                static_cast<uint64_t>(context.settings.message_credit), message_host),
      message_watch(loop, report_time(context.settings), stall_limit(context.settings),
                    context.rank, messenger, context.counters, message_host),
      watches{
          {},
          {loop, context.settings, context.rank, watches.last, context.counters, peers},
          {loop, stall_limit(context.settings), std::chrono::seconds(context.settings.peer_timeout),
           context.rank, mesh.topology().size, watches.last, peers},
          {loop, std::chrono::seconds(context.settings.peer_timeout), peers},
          {loop, std::chrono::seconds(context.settings.name_conflict_time), agreements}},
      handoff(queue, tracker, executor),
      internal_operations(queue, mesh.topology().rank, mesh.topology().size),
      quick_calls(loop, mesh, context, sets, queue, announcements, watches.last) {
  if (mesh.needs_one_thread()) binding.bind_all();
  mesh.listen(peers);
  loop.set_handoff_policy(handoff);
  sets.open_world();
  loop.add_poller(&queue);
}

void EngineParts::take_over(const TunerFindings& findings) {
  if (executor.take_over(findings)) agreements.apply_tuning();
}

Wiring EngineParts::wire(EventLoop& loop, Mesh& mesh, const RunContext& context) {
  return {.loop = loop,
          .settings = context.settings,
          .mesh = mesh,
          .timeline = context.timeline,
          .counters = context.counters,
          .announcements = announcements,
          .blame = blame,
          .departures = departures,
          .tracker = tracker,
          .sets = sets,
          .agreements = agreements,
          .executor = executor,
          .messenger = messenger,
          .message_watch = message_watch,
          .termination = termination,
          .watches = watches};
}

}  // namespace perseus
