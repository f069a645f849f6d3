// perseus.h: init, shutdown, this process's place in the job, and what holds for all of the
// process.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "base/interruption.h"
#include "base/large_memory.h"
#include "base/secret.h"
#include "bootstrap/environment.h"
#include "bootstrap/meeting_board.h"
#include "capi/c_status.h"
#include "capi/process.h"
#include "perseus/perseus.h"

using perseus::Process;
using perseus::Status;
using perseus::Topology;

namespace {

// The size in the first published perseus.h, in which only the environment told ranks.
constexpr size_t kFirstInitOptionsSize = offsetof(perseus_init_options_t, size);

// Reads what the program says in place of the environment.
perseus::Result<perseus::LaunchEnvironment> told_by(const perseus_init_options_t& options) {
  perseus::LaunchEnvironment told;
  told.source = "the rank given to init";
  told.rank = options.rank;
  told.size = options.size;
  if (options.size < 0 || options.rank < 0 || options.rank >= options.size) {
    return Status::invalid_argument("init was given rank " + std::to_string(options.rank) + " of " +
                                    std::to_string(options.size) +
                                    "; a rank must be at least 0 and below the number of ranks");
  }
  if (options.size == 1) return told;
  told.kind = perseus::LaunchEnvironment::Kind::kRendezvous;
  told.is_numbered = options.meeting > 0;
  told.rank_0_serves = !told.is_numbered;
  told.has_guessable_secret = options.secret_is_known != 0;
  const std::string_view places = options.rendezvous == nullptr ? "" : options.rendezvous;
  for (size_t begin = 0; begin < places.size();) {
    const size_t end = std::min(places.find(',', begin), places.size());
    auto place = perseus::parse_host_port(places.substr(begin, end - begin));
    if (!place.is_ok()) {
      return Status::invalid_argument("init's rendezvous: " + place.status().message());
    }
    told.rendezvous.push_back(std::move(place).value());
    begin = end + 1;
  }
  const int32_t* ranks_end = options.ranks + options.rank_count;
  const bool is_left_out =
      options.rank_count > 0 && std::find(options.ranks, ranks_end, options.rank) == ranks_end;
  if (is_left_out) return told;
  if (told.rendezvous.empty()) {
    return Status::invalid_argument("init was given rank " + std::to_string(options.rank) + " of " +
                                    std::to_string(options.size) + ", but no rendezvous");
  }
  auto secret = perseus::from_hex(options.secret == nullptr ? "" : options.secret);
  if (!secret.is_ok()) {
    return Status::invalid_argument("init's secret: " + secret.status().message());
  }
  if (secret.value().size() < perseus::kLeastSecretBytes) {
    return Status::invalid_argument("init's secret has " + std::to_string(secret.value().size()) +
                                    " bytes; it must have at least " +
                                    std::to_string(perseus::kLeastSecretBytes));
  }
  told.secret = std::move(secret).value();
  return told;
}

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
  perseus::WorldRequest request;
  if (options != nullptr) {
    if (options->struct_size < kFirstInitOptionsSize) {
      return perseus::to_c(Status::invalid_argument("the options' struct_size is not set"));
    }
    // A program that was compiled before the last fields existed says nothing in them.
    perseus_init_options_t known{};
    std::memcpy(&known, options, std::min(options->struct_size, sizeof known));
    if (known.rank_count < 0 || (known.ranks == nullptr && known.rank_count != 0)) {
      return perseus::to_c(Status::invalid_argument(
          "rank_count is " + std::to_string(known.rank_count) + ", but " +
          (known.rank_count < 0 ? "it must not be negative" : "ranks is a null pointer")));
    }
    request.ranks.assign(known.ranks, known.ranks + known.rank_count);
    if (known.size != 0) {
      auto told = told_by(known);
      if (!told.is_ok()) return perseus::to_c(told.status());
      request.told = std::move(told).value();
      request.generation = known.meeting;
    }
  }
  return perseus::to_c(Process::instance().init(std::move(request)));
}

perseus_status_t perseus_launched_as(int32_t* rank, int32_t* size, const char** variable) {
  const auto launch = perseus::read_launch_environment([] { return true; });
  if (!launch.is_ok()) return perseus::to_c(launch.status());
  thread_local std::string source;
  source = launch.value().source;
  *rank = launch.value().rank;
  *size = launch.value().size;
  *variable = source.c_str();
  return PERSEUS_OK;
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
