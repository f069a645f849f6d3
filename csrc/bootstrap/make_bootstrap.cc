#include <map>
#include <mutex>
#include <utility>

#include "base/hmac.h"
#include "base/secret.h"
#include "base/settings.h"
#include "bootstrap/bootstrap.h"
#include "bootstrap/environment.h"
#include "bootstrap/listen_addresses.h"
#include "bootstrap/local_meeting.h"
#include "bootstrap/meeting_board.h"
#include "bootstrap/mpi_bootstrap.h"
#include "bootstrap/rendezvous_bootstrap.h"
#include "bootstrap/rendezvous_server.h"
#include "bootstrap/single_bootstrap.h"
#include "bootstrap/spare_ports.h"
#include "mpi/mpi_library.h"
#include "mpi/mpi_process.h"
#include "observe/log.h"

namespace perseus {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Clock = Socket::Clock;

Result<std::unique_ptr<Bootstrap>> single(const Mpi* mpi = nullptr) {
  return std::unique_ptr<Bootstrap>(std::make_unique<SingleBootstrap>(mpi));
}

// Starts a server at the first of the job's places that is free.
Result<std::unique_ptr<RendezvousServer>> start_at_first_free(const LaunchEnvironment& launch,
                                                              const std::string& interfaces) {
  Status failure;  // at the first place
  for (const HostPort& where : launch.rendezvous) {
    Result<std::unique_ptr<RendezvousServer>> started = RendezvousServer::start(
        listen_addresses(where.host, interfaces), where.port, launch.size, launch.secret);
    if (started.is_ok()) return started;
    if (failure.is_ok()) failure = started.status();
  }
  const size_t others = launch.rendezvous.size() - 1;
  const std::string nor = others == 0 ? "" : ", nor at " + std::to_string(others) + " more ports";
  return Status(failure.code(), "rank 0 serves the rendezvous of the others, but " +
                                    failure.message() + nor +
                                    "; set PERSEUS_MASTER_PORT to a free port, the same for all "
                                    "ranks");
}

// Starts a server at any free port, which the other ranks learn. A board may be silent or lie, so
// they look at the job's places, too.
Result<std::unique_ptr<RendezvousServer>> start_anywhere(const LaunchEnvironment& launch,
                                                         const std::string& interfaces) {
  const auto addresses = listen_addresses(launch.rendezvous[0].host, interfaces);
  Result<std::unique_ptr<RendezvousServer>> started =
      RendezvousServer::start(addresses, 0, launch.size, launch.secret);
  if (!started.is_ok() || launch.meets_locally) return started;
  for (const HostPort& where : launch.rendezvous) {
    if (started.value()->also_listen(addresses, where.port).is_ok()) break;
  }
  return started;
}

// Serves the rendezvous from this process until it exits, since ranks that call init again return
// to it. Returns the port.
Result<uint16_t> ensure_rendezvous_served(const LaunchEnvironment& launch,
                                          const std::string& interfaces) {
  static std::mutex mutex;
  // By the first of the job's ports, and its secret.
  using Job = std::pair<uint16_t, std::string>;
  static auto* servers = new std::map<Job, std::unique_ptr<RendezvousServer>>;
  std::lock_guard lock(mutex);
  std::unique_ptr<RendezvousServer>& server =
      (*servers)[{launch.rendezvous[0].port, launch.secret}];
  if (server == nullptr) {
    const bool anywhere = launch.any_port && (launch.meets_locally || has_meeting_board());
    Result<std::unique_ptr<RendezvousServer>> started =
        anywhere ? start_anywhere(launch, interfaces) : start_at_first_free(launch, interfaces);
    if (!started.is_ok()) return started.status();
    server = std::move(started).value();
  }
  return server->port();
}

// Rank 0's side of the meeting of this host's ranks under `name`.
Result<LocalMeeting> hold_local_meeting(const std::string& name, LaunchEnvironment launch,
                                        const std::string& interfaces) {
  Result<LocalMeetingPlace> place = LocalMeetingPlace::take(name);
  if (!place.is_ok()) return place.status();
  LocalMeeting meeting{random_bytes(kSecretBytes), 0};
  if (launch.needs_local_secret) launch.secret = meeting.secret;
  const Result<uint16_t> port = ensure_rendezvous_served(launch, interfaces);
  if (!port.is_ok()) {
    std::move(place).value().decline(port.status(), launch.size - 1);
    return port.status();
  }
  meeting.port = port.value();
  PERSEUS_RETURN_IF_ERROR(std::move(place).value().tell(meeting));
  return meeting;
}

// Where the ranks of this host meet, all of which call it.
Result<LocalMeeting> local_meeting(const LaunchEnvironment& launch, const std::string& interfaces,
                                   Clock::time_point deadline) {
  static std::mutex mutex;
  static auto* known = new std::map<std::string, LocalMeeting>;
  std::lock_guard lock(mutex);
  const Sha256Digest digest = hmac_sha256(launch.secret, "local meeting");
  const std::string name = to_hex(std::string(digest.begin(), digest.end()));
  if (const auto found = known->find(name); found != known->end()) return found->second;
  Result<LocalMeeting> meeting = launch.serves ? hold_local_meeting(name, launch, interfaces)
                                               : find_local_meeting(name, deadline);
  if (meeting.is_ok()) known->emplace(name, meeting.value());
  return meeting;
}

// Makes `launch` say where the server is, and lets rank 0 serve.
Status prepare_to_meet(LaunchEnvironment& launch, const Settings& settings, int generation,
                       Clock::time_point deadline) {
  if (launch.meets_locally) {
    Result<LocalMeeting> meeting = local_meeting(launch, settings.interfaces, deadline);
    if (!meeting.is_ok()) return meeting.status();
    if (launch.needs_local_secret) launch.secret = meeting.value().secret;
    launch.rendezvous = {{launch.rendezvous[0].host, meeting.value().port}};
    return Status::ok();
  }
  if (!launch.serves) return Status::ok();
  const Result<uint16_t> port = ensure_rendezvous_served(launch, settings.interfaces);
  if (!port.is_ok()) return port.status();
  launch.rendezvous = {{launch.rendezvous[0].host, port.value()}};
  if (launch.any_port && has_meeting_board()) leave_meeting_port(generation, port.value());
  return Status::ok();
}

Result<std::unique_ptr<Bootstrap>> bootstrap_by_rendezvous(LaunchEnvironment launch,
                                                           const Settings& settings,
                                                           const std::vector<int>& ranks,
                                                           int generation) {
  const milliseconds time_out = seconds(settings.start_timeout);
  const Clock::time_point deadline = Clock::now() + time_out;
  add_spare_ports(launch);
  PERSEUS_RETURN_IF_ERROR(prepare_to_meet(launch, settings, generation, deadline));
  Result<int> place = place_in_world(ranks, launch.rank, launch.size);
  if (!place.is_ok()) return place.status();
  if (place.value() < 0) return single();
  RendezvousBootstrap::Options options;
  options.servers = launch.rendezvous;
  if (launch.any_port && !launch.meets_locally && !launch.serves && has_meeting_board()) {
    options.left_port = [generation] { return left_meeting_port(generation); };
  }
  options.secret = launch.secret;
  options.has_guessable_secret = launch.has_guessable_secret;
  options.rank = place.value();
  options.size = ranks.empty() ? launch.size : static_cast<int>(ranks.size());
  options.ranks = ranks;
  options.rank_0_serves = launch.rank_0_serves;
  options.is_numbered = launch.is_numbered;
  options.generation = generation;
  options.time_out = std::chrono::ceil<milliseconds>(deadline - Clock::now());
  Result<std::unique_ptr<Bootstrap>> bootstrap = RendezvousBootstrap::create(options);
  if (bootstrap.status().code() == StatusCode::kUnreachable && launch.source == "SLURM_PROCID") {
    return Status::unreachable(
        bootstrap.status().message() +
        "; PERSEUS_MASTER_ADDR may name the host of rank 0 as the others know it");
  }
  return bootstrap;
}

Result<std::unique_ptr<Bootstrap>> bootstrap_by_mpi(const LaunchEnvironment& launch,
                                                    const Settings& settings,
                                                    const std::vector<int>& ranks, int generation) {
  const milliseconds time_out = seconds(settings.start_timeout);
  const std::string launched_as = launch.source + " says that an MPI launcher started this process";
  Result<Mpi*> mpi = load_mpi(settings.mpi_library);
  if (!mpi.is_ok()) {
    return Status(mpi.status().code(), launched_as + ", but " + mpi.status().message());
  }
  Result<MpiProcess> process = join_mpi(*mpi.value(), time_out);
  if (!process.is_ok()) return process.status();
  const auto& [_, comm, rank, size, here] = process.value();
  const int launched = launch.size != 0                ? launch.size
                       : launch.without_mpi != nullptr ? launch.without_mpi->size
                                                       : size;
  if (launch.rank != rank || launched != size) {
    const std::string as_mpi_has_it = "to " + mpi.value()->version() + " it is rank " +
                                      std::to_string(rank) + " of " + std::to_string(size);
    if (launch.without_mpi != nullptr) {
      PERSEUS_LOG(kInfo, launched_as << ", but " << as_mpi_has_it << "; meeting without MPI");
      return bootstrap_by_rendezvous(*launch.without_mpi, settings, ranks, generation);
    }
    const std::string of = launch.size == 0 ? "" : " of " + std::to_string(launch.size);
    return Status::invalid_argument(
        launched_as + " as rank " + std::to_string(launch.rank) + of + ", but " + as_mpi_has_it +
        "; set PERSEUS_MPI_LIBRARY to the library that belongs to the launcher");
  }
  Result<int> place = place_in_world(ranks, rank, size);
  if (!place.is_ok()) return place.status();
  if (place.value() < 0) return single(mpi.value());
  return MpiBootstrap::create(process.value(), ranks, generation, launch.secret, time_out);
}

}  // namespace

Result<std::unique_ptr<Bootstrap>> make_bootstrap(const Settings& settings,
                                                  const WorldRequest& request) {
  Result<LaunchEnvironment> launch =
      request.told
          ? Result<LaunchEnvironment>(*request.told)
          : read_launch_environment([&] { return load_mpi(settings.mpi_library).is_ok(); });
  if (!launch.is_ok()) return launch.status();
  switch (launch.value().kind) {
    case LaunchEnvironment::Kind::kRendezvous:
      return bootstrap_by_rendezvous(launch.value(), settings, request.ranks, request.generation);
    case LaunchEnvironment::Kind::kMpi:
      return bootstrap_by_mpi(launch.value(), settings, request.ranks, request.generation);
    case LaunchEnvironment::Kind::kSingle: break;
  }
  Result<int> place = place_in_world(request.ranks, 0, 1);
  if (!place.is_ok()) return place.status();
  return single();
}

}  // namespace perseus
