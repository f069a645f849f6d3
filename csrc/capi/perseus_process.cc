// perseus.h: init, shutdown, this process's place in the job, and what holds for all of the
// process.
#include <string>
#include <vector>

#include "base/interruption.h"
#include "base/large_memory.h"
#include "bootstrap/meeting_board.h"
#include "capi/c_status.h"
#include "capi/process.h"
#include "perseus/perseus.h"

using perseus::Process;
using perseus::Status;
using perseus::Topology;

namespace {

// Returns a property of the running engine's topology, or -1 without an engine.
template <typename Get>
int32_t topology_value(Get get) {
  const auto engine = Process::instance().engine();
  return engine == nullptr ? -1 : static_cast<int32_t>(get(engine->topology()));
}

}  // namespace

extern "C" {

int32_t perseus_version(void) {
  return PERSEUS_VERSION_MAJOR * 10000 + PERSEUS_VERSION_MINOR * 100 + PERSEUS_VERSION_PATCH;
}

void perseus_set_interruption_check(int (*check)(void* user), void* user) {
  perseus::set_interruption_check(check, user);
}

void perseus_set_meeting_board(int32_t (*board)(void* user, int32_t generation, int32_t port),
                               void* user) {
  perseus::set_meeting_board(board, user);
}

void perseus_prefer_huge_pages(void* memory, size_t bytes) {
  perseus::prefer_huge_pages(memory, bytes);
}

perseus_status_t perseus_init(const perseus_init_options_t* options) {
  std::vector<int> ranks;
  if (options != nullptr) {
    if (options->struct_size < sizeof *options) {
      return perseus::to_c(Status::invalid_argument("the options' struct_size is not set"));
    }
    if (options->rank_count < 0 || (options->ranks == nullptr && options->rank_count != 0)) {
      return perseus::to_c(Status::invalid_argument(
          "rank_count is " + std::to_string(options->rank_count) + ", but " +
          (options->rank_count < 0 ? "it must not be negative" : "ranks is a null pointer")));
    }
    if (options->rank_count > 0) {
      ranks.assign(options->ranks, options->ranks + options->rank_count);
    }
  }
  return perseus::to_c(Process::instance().init(ranks));
}

perseus_status_t perseus_shutdown(void) { return perseus_shutdown_because(nullptr); }

perseus_status_t perseus_shutdown_because(const char* why) {
  return perseus::to_c(Process::instance().shutdown(why == nullptr ? "" : why));
}

int32_t perseus_is_initialized(void) { return Process::instance().engine() != nullptr; }

int32_t perseus_rank(void) {
  return topology_value([](const Topology& t) { return t.rank; });
}
int32_t perseus_size(void) {
  return topology_value([](const Topology& t) { return t.size; });
}
int32_t perseus_local_rank(void) {
  return topology_value([](const Topology& t) { return t.local_rank(); });
}
int32_t perseus_local_size(void) {
  return topology_value([](const Topology& t) { return t.local_size(); });
}
int32_t perseus_cross_rank(void) {
  return topology_value([](const Topology& t) { return t.cross_rank(); });
}
int32_t perseus_cross_size(void) {
  return topology_value([](const Topology& t) { return t.cross_size(); });
}
int32_t perseus_is_homogeneous(void) {
  return topology_value([](const Topology& t) { return t.is_homogeneous(); });
}
int32_t perseus_processor_share(void) {
  return topology_value([](const Topology& t) { return t.processor_share; });
}

int32_t perseus_mpi_thread_level(void) {
  const auto engine = Process::instance().engine();
  if (engine == nullptr || !engine->mpi_thread_level()) return -1;
  return static_cast<int32_t>(*engine->mpi_thread_level());
}

}  // extern "C"
