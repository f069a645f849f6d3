#include "engine/engine.h"

#include <pthread.h>
#include <sys/prctl.h>

#include <cstdlib>
#include <utility>

#include "base/settings.h"
#include "base/start_thread.h"
#include "base/thread_placement.h"
#include "bootstrap/bootstrap.h"
#include "bootstrap/environment.h"
#include "engine/engine_parts.h"
#include "engine/engine_scope.h"
#include "observe/log.h"

namespace perseus {
namespace {

// How long a rank that has run out of descriptors keeps trying to tell the others.
constexpr std::chrono::seconds kPatienceWithoutDescriptors{2};

}  // namespace

Engine::Engine(Settings settings, bool keeps_links, Names& names, Learned& learned,
               Timeline& timeline, Counters& counters)
    : settings_(std::make_unique<const Settings>(std::move(settings))),
      keeps_links_(keeps_links),
      names_(names),
      learned_(learned),
      timeline_(timeline),
      counters_(counters),
      loop_(std::chrono::microseconds(settings_->spin_us),
            keeps_links ? learned.links.doorbell() : nullptr),
      gpus_(loop_, std::chrono::seconds(settings_->nccl_timeout)) {}

Result<std::unique_ptr<Engine>> Engine::start(Settings settings, const WorldRequest& request,
                                              Names& names, Learned& learned, Timeline& timeline,
                                              Counters& counters) {
  const Status placement = check_thread_placement(settings.thread_affinity, settings.cache_groups);
  if (!placement.is_ok()) {
    decline(placement, request);
    return placement;
  }
  // Another world follows in an elastic job.
  const bool keeps_links = std::getenv("PERSEUS_DRIVER_FD") != nullptr;
  if (!keeps_links) learned.links.clear();
  names.reset_uses();
  std::unique_ptr<Engine> engine(
      new Engine(std::move(settings), keeps_links, names, learned, timeline, counters));
  if (const Status exhausted = engine->loop_.status(); !exhausted.is_ok()) {
    engine.reset();  // telling the others may need the descriptors that it has
    decline(exhausted, request, kPatienceWithoutDescriptors);
    return exhausted;
  }
  PERSEUS_RETURN_IF_ERROR(engine->connect(request));
  const Status started =
      start_thread(engine->thread_, "the engine", [raw = engine.get()] { raw->run_thread(); });
  if (!started.is_ok()) {
    // This thread tells the others.
    engine->loop_.post([&] { engine->parts_->termination.break_at_start(started); });
    engine->loop_.run();
    return started;
  }
  // Everyone is there and can be reached, or init says who is not.
  const Status status = engine->parts_->internal_operations.meet(
      std::chrono::seconds(engine->settings_->start_timeout));
  if (!status.is_ok()) {
    engine->shutdown();
    return status;
  }
  return engine;
}

void Engine::decline(const Status& why, const WorldRequest& request,
                     std::optional<std::chrono::seconds> patience) {
  Settings settings;
  if (patience) settings.start_timeout = static_cast<int>(patience->count());
  auto bootstrap = make_bootstrap(settings, request);
  if (bootstrap.is_ok()) Mesh::decline(*bootstrap.value(), why);
}

Status Engine::connect(const WorldRequest& request) {
  auto bootstrap = make_bootstrap(*settings_, request);
  if (!bootstrap.is_ok()) return bootstrap.status();
  // Asked now: MPI may be finalised before the engine's end.
  if (const Mpi* mpi = bootstrap.value()->mpi()) mpi_thread_level_ = mpi->thread_level();
  auto mesh = Mesh::create(loop_, *settings_, *bootstrap.value(), learned_.tuning.pack(),
                           keeps_links_ ? &learned_.links : nullptr);
  if (!mesh.is_ok()) return mesh.status();
  mesh_ = std::move(mesh).value();
  const int rank = topology().rank;
  configure_log(settings_->log_level, settings_->log_hide_time, rank);
  parts_ = std::make_unique<EngineParts>(
      loop_, *mesh_, names_,
      RunContext{*settings_, buffers_, timeline_, learned_.residuals, counters_, rank, gpus_,
                 mesh_->shares_all_memory() ? nullptr : &mesh_->world_key()});
  // A rank that is new has found nothing, so all go on from what one of them tells.
  parts_->take_over(TunerFindings::unpack(mesh_->experience()));
  parts_->blame.tell_launcher_who_met();
  return {};
}

void Engine::run_thread() {
  pthread_setname_np(pthread_self(), "perseus");
  prctl(PR_SET_TIMERSLACK, 1000);  // nanoseconds: it sleeps for 100 us at times
  const Processors& wanted = topology().engine_processors;
  if (!wanted.is_empty() && !bind_thread_to(wanted)) {
    PERSEUS_LOG(kWarning, "PERSEUS_THREAD_AFFINITY: there is no processor " << wanted.lowest());
  }
  const EngineScope here;
  loop_.run();
}

Engine::~Engine() { shutdown(); }

void Engine::shutdown(const std::string& why) {
  if (!thread_.joinable()) return;
  loop_.post([this, why] { parts_->termination.begin_shutdown(why); });
  thread_.join();
  loop_.remove_poller(&parts_->queue);
  // Fails what was submitted while the thread was ending.
  const EngineScope here;
  parts_->queue.poll();
  // A tuner that could use nothing of an earlier world has nothing better for a later one.
  TunerFindings found = parts_->executor.tuner().findings();
  if (!found.by_class.empty()) learned_.tuning = std::move(found);
  learned_.residuals.world_ended();
}

Announcements& Engine::announcements() const { return parts_->announcements; }

Status Engine::break_world(const std::string& why) {
  // The parts live as long as the loop: until shutdown has joined its thread.
  const Broken news = parts_->termination.failed_here(Status::aborted(why));
  // At once: an operation that this thread submits next must not complete before the news is out.
  parts_->queue.close(Status::aborted(news.why));
  loop_.post([this, news] { parts_->termination.break_world(news); });
  return Status::aborted(news.why);
}

void Engine::help(const Event& awaited, Clock::time_point now, Clock::time_point until) {
  const EngineScope here;
  loop_.help(awaited, now, until);
}

Status Engine::submit(OperationPtr operation) { return parts_->queue.submit(std::move(operation)); }

std::optional<Status> Engine::run(const QuickCall& call) { return parts_->quick_calls.run(call); }

void Engine::refuse(int32_t set, std::string_view key, std::string reason) {
  parts_->queue.refuse(set, key, std::move(reason));
}

Result<int32_t> Engine::add_process_set(std::vector<int32_t> ranks) {
  return parts_->internal_operations.add_process_set(std::move(ranks));
}
Status Engine::remove_process_set(int32_t set) {
  return parts_->internal_operations.remove_process_set(set);
}
Status Engine::open_process_set(int32_t set, std::vector<int32_t> ranks) {
  return parts_->internal_operations.open_process_set(set, std::move(ranks));
}
Status Engine::close_process_set(int32_t set) {
  return parts_->internal_operations.close_process_set(set);
}
Result<SharedRanks> Engine::process_set_ranks(int32_t set) const { return parts_->sets.ranks(set); }
std::vector<int32_t> Engine::process_sets() const { return parts_->sets.ids(); }

}  // namespace perseus
