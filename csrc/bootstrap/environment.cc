#include "bootstrap/environment.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "base/hmac.h"
#include "base/secret.h"
#include "base/sha256.h"
#include "bootstrap/slurm.h"

namespace perseus {
namespace {

// The distance from the port of torchrun's own store to that of the rendezvous. If torchrun has
// taken a free port, Linux is likely to give the next one to a connection, but hardly ever the one
// after it. If that is taken all the same, more ports are tried at the same distance from each
// other.
constexpr int kPortStep = 2;
constexpr int kPortsTried = 4;

using Get = std::function<const char*(const char*)>;

constexpr int kMostRanks = 1 << 24;

// The variables by which MPI launchers tell rank and size. Null size: only MPI itself knows it.
struct MpiVariables {
  const char* rank;
  const char* size;
};
constexpr MpiVariables kMpiVariables[] = {
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},  // Open MPI
    {"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"},    // MVAPICH
    {"PMI_RANK", "PMI_SIZE"},                          // MPICH, Intel MPI, Slurm's pmi2
    {"PALS_RANKID", nullptr},                          // Cray
    {"PMIX_RANK", nullptr},                            // other launchers that use PMIx
};

bool is_set(const Get& get, const char* name) {
  const char* value = get(name);
  return value != nullptr && *value != '\0';
}

Status missing(const char* name, const std::string& because) {
  return Status::invalid_argument(std::string(name) + " is not set, though " + because);
}

Result<int> read_int(const Get& get, const char* name, int low, int high) {
  const std::string text = get(name);
  int value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || stop != text.data() + text.size() || value < low || value > high) {
    return Status::invalid_argument(std::string(name) + "='" + text + "' is not a number of " +
                                    std::to_string(low) + " to " + std::to_string(high));
  }
  return value;
}

Status read_rank_and_size(const Get& get, const char* rank_name, const char* size_name,
                          LaunchEnvironment& out) {
  out.source = rank_name;
  if (!is_set(get, rank_name)) return missing(rank_name, std::string(size_name) + " is");
  if (!is_set(get, size_name)) return missing(size_name, std::string(rank_name) + " is");
  Result<int> size = read_int(get, size_name, 1, kMostRanks);
  if (!size.is_ok()) return size.status();
  Result<int> rank = read_int(get, rank_name, 0, kMostRanks);
  if (!rank.is_ok()) return rank.status();
  if (rank.value() >= size.value()) {
    return Status::invalid_argument(std::string(rank_name) + "=" + std::to_string(rank.value()) +
                                    " is not below " + size_name + "=" +
                                    std::to_string(size.value()));
  }
  out.rank = rank.value();
  out.size = size.value();
  return Status::ok();
}

Status read_secret(const Get& get, std::string& out) {
  Result<std::string> secret = from_hex(get("PERSEUS_SECRET"));
  if (!secret.is_ok()) {
    return Status::invalid_argument("PERSEUS_SECRET: " + secret.status().message());
  }
  // Whoever has seen one handshake can try out short secrets.
  if (secret.value().size() < kLeastSecretBytes) {
    return Status::invalid_argument("PERSEUS_SECRET has " + std::to_string(secret.value().size()) +
                                    " bytes; it must have at least " +
                                    std::to_string(kLeastSecretBytes) + " (" +
                                    std::to_string(2 * kLeastSecretBytes) +
                                    " hexadecimal digits), such as `openssl rand -hex 32` prints");
  }
  out = std::move(secret).value();
  return Status::ok();
}

// Derives a secret, for launchers that hand out none, from variables that are the same on all
// ranks. Others could guess it. On one host it only names the secret that rank 0 will make. Between
// hosts it keeps jobs apart that meet by mistake; where others can reach the hosts, users must set
// PERSEUS_SECRET.
Status read_or_derive_secret(const Get& get, std::initializer_list<const char*> names,
                             bool one_host, LaunchEnvironment& out) {
  if (is_set(get, "PERSEUS_SECRET")) return read_secret(get, out.secret);
  Sha256 hash;
  for (const char* name : names) {
    hash.update(name);
    hash.update("=");
    if (is_set(get, name)) hash.update(get(name));
    hash.update("\n");
  }
  const Sha256Digest digest = hash.finish();
  out.secret.assign(digest.begin(), digest.end());
  out.needs_local_secret = one_host;
  out.has_guessable_secret = !one_host;
  return Status::ok();
}

Result<LaunchEnvironment> read_perseus(const Get& get) {
  LaunchEnvironment out;
  const bool meets = is_set(get, "PERSEUS_RENDEZVOUS");
  // Scripts that start their ranks themselves may set only Horovod's names.
  const bool horovod = meets && !is_set(get, "PERSEUS_RANK") && !is_set(get, "PERSEUS_SIZE") &&
                       is_set(get, "HOROVOD_RANK");
  if (meets && !horovod && !is_set(get, "PERSEUS_RANK")) {
    return missing("PERSEUS_RANK", "PERSEUS_RENDEZVOUS is");
  }
  PERSEUS_RETURN_IF_ERROR(read_rank_and_size(get, horovod ? "HOROVOD_RANK" : "PERSEUS_RANK",
                                             horovod ? "HOROVOD_SIZE" : "PERSEUS_SIZE", out));
  if (out.size == 1) return out;
  out.kind = LaunchEnvironment::Kind::kRendezvous;
  const std::string because = "there are " + std::to_string(out.size) + " ranks to meet";
  if (!meets) return missing("PERSEUS_RENDEZVOUS", because);
  Result<HostPort> where = parse_host_port(get("PERSEUS_RENDEZVOUS"));
  if (!where.is_ok()) {
    return Status::invalid_argument("PERSEUS_RENDEZVOUS: " + where.status().message());
  }
  out.rendezvous = {std::move(where).value()};
  if (!is_set(get, "PERSEUS_SECRET")) return missing("PERSEUS_SECRET", because);
  PERSEUS_RETURN_IF_ERROR(read_secret(get, out.secret));
  if (is_set(get, "PERSEUS_SURVIVORS")) {
    Result<int> survivors = read_int(get, "PERSEUS_SURVIVORS", 0, 1);
    if (!survivors.is_ok()) return survivors.status();
    out.survivors = survivors.value() == 1;
  }
  return out;
}

// Where rank 0 serves the rendezvous: at `host` and `ports`, unless the environment says otherwise.
Status read_master(const Get& get, std::string host, std::vector<int> ports,
                   std::vector<HostPort>& out) {
  if (is_set(get, "PERSEUS_MASTER_ADDR")) host = get("PERSEUS_MASTER_ADDR");
  if (is_set(get, "PERSEUS_MASTER_PORT")) {
    Result<int> chosen = read_int(get, "PERSEUS_MASTER_PORT", 1, 65535);
    if (!chosen.is_ok()) return chosen.status();
    ports = {chosen.value()};
  }
  for (const int port : ports) out.push_back(HostPort{host, static_cast<uint16_t>(port)});
  return Status::ok();
}

// If all ranks are on one host, other hosts need not reach the rendezvous.
constexpr const char* kThisHost = "127.0.0.1";

Result<LaunchEnvironment> read_torchrun(const Get& get) {
  LaunchEnvironment out;
  PERSEUS_RETURN_IF_ERROR(read_rank_and_size(get, "RANK", "WORLD_SIZE", out));
  if (out.size == 1) return out;
  out.kind = LaunchEnvironment::Kind::kRendezvous;
  out.rank_0_serves = true;
  out.serves = out.rank == 0;
  const std::string because = "RANK and WORLD_SIZE are";
  if (!is_set(get, "MASTER_ADDR")) return missing("MASTER_ADDR", because);
  std::vector<int> ports;
  if (!is_set(get, "PERSEUS_MASTER_PORT")) {
    if (!is_set(get, "MASTER_PORT")) return missing("MASTER_PORT", because);
    Result<int> store_port = read_int(get, "MASTER_PORT", 1, 65535 - kPortStep);
    if (!store_port.is_ok()) return store_port.status();
    for (int i = 1; i <= kPortsTried; ++i) {
      const int port = store_port.value() + i * kPortStep;
      if (port <= 65535) ports.push_back(port);
    }
  }
  const bool one_host = is_set(get, "LOCAL_WORLD_SIZE") &&
                        get("LOCAL_WORLD_SIZE") == std::string_view(get("WORLD_SIZE"));
  PERSEUS_RETURN_IF_ERROR(
      read_master(get, one_host ? kThisHost : get("MASTER_ADDR"), ports, out.rendezvous));
  // With the restart count, ranks left over from a failed attempt cannot join the next one.
  PERSEUS_RETURN_IF_ERROR(
      read_or_derive_secret(get,
                            {"TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR",
                             "MASTER_PORT", "WORLD_SIZE"},
                            one_host, out));
  // Jobs with the same secret may try each other's ports, so the port is made part of the secret.
  if (out.rendezvous.size() > 1) {
    const Sha256Digest of_job =
        hmac_sha256(out.secret, "MASTER_PORT=" + std::string(get("MASTER_PORT")));
    out.secret.assign(of_job.begin(), of_job.end());
  }
  return out;
}

Result<LaunchEnvironment> read_srun(const Get& get) {
  LaunchEnvironment out;
  // The step's number of tasks, which may differ from the job's.
  const char* size_name =
      is_set(get, "SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
  PERSEUS_RETURN_IF_ERROR(read_rank_and_size(get, "SLURM_PROCID", size_name, out));
  if (out.size == 1) return out;
  out.kind = LaunchEnvironment::Kind::kRendezvous;
  out.rank_0_serves = true;
  out.serves = out.rank == 0;
  Result<std::string> host = first_slurm_host(get("SLURM_STEP_NODELIST"));
  if (!host.is_ok()) {
    return Status::invalid_argument("SLURM_STEP_NODELIST: " + host.status().message());
  }
  if (!is_set(get, "SLURM_JOB_ID")) return missing("SLURM_JOB_ID", "SLURM_PROCID is");
  const bool one_host =
      is_set(get, "SLURM_STEP_NUM_NODES") && get("SLURM_STEP_NUM_NODES") == std::string_view("1");
  PERSEUS_RETURN_IF_ERROR(read_or_derive_secret(
      get, {"SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_JOB_UID", "SLURM_CLUSTER_NAME"}, one_host,
      out));
  // Below the range from which systems assign ports, so that it is not taken by chance.
  constexpr int kFirstPort = 15000;
  constexpr int kPorts = 16000;
  const std::string step = is_set(get, "SLURM_STEP_ID") ? get("SLURM_STEP_ID") : "0";
  const Sha256Digest hash = sha256(std::string(get("SLURM_JOB_ID")) + "." + step);
  const int port = kFirstPort + (hash[0] << 8 | hash[1]) % kPorts;
  PERSEUS_RETURN_IF_ERROR(
      read_master(get, one_host ? kThisHost : host.value(), {port}, out.rendezvous));
  return out;
}

// Returns nothing if no MPI launcher has set its variables.
Result<std::optional<LaunchEnvironment>> read_mpi(const Get& get) {
  for (const MpiVariables& variables : kMpiVariables) {
    if (!is_set(get, variables.rank)) continue;
    LaunchEnvironment out;
    if (variables.size != nullptr) {
      PERSEUS_RETURN_IF_ERROR(read_rank_and_size(get, variables.rank, variables.size, out));
      if (out.size == 1) return std::optional(out);
    } else {
      Result<int> rank = read_int(get, variables.rank, 0, kMostRanks);
      if (!rank.is_ok()) return rank.status();
      out.rank = rank.value();
      out.size = 0;  // MPI will tell
      out.source = variables.rank;
    }
    out.kind = LaunchEnvironment::Kind::kMpi;
    if (is_set(get, "PERSEUS_SECRET")) PERSEUS_RETURN_IF_ERROR(read_secret(get, out.secret));
    return std::optional(out);
  }
  return std::optional<LaunchEnvironment>();
}

}  // namespace

Result<LaunchEnvironment> read_launch_environment(const Get& get,
                                                  const std::function<bool()>& mpi_library_found) {
  if (is_set(get, "PERSEUS_RANK") || is_set(get, "PERSEUS_SIZE") ||
      is_set(get, "PERSEUS_RENDEZVOUS")) {
    return read_perseus(get);
  }
  // A batch script has SLURM_PROCID too; only processes that srun starts belong to a step.
  const bool srun = is_set(get, "SLURM_PROCID") && is_set(get, "SLURM_STEP_NODELIST");
  Result<std::optional<LaunchEnvironment>> mpi = read_mpi(get);
  if (!mpi.is_ok()) return mpi.status();
  if (std::optional<LaunchEnvironment>& found = mpi.value()) {
    if (found->kind != LaunchEnvironment::Kind::kMpi) return *found;
    // srun sets PMI's variables whether or not there is an MPI library, and the library may not use
    // that PMI. Under mpirun, though, Slurm's variables are those of mpirun's own daemons.
    if (srun && found->source != "OMPI_COMM_WORLD_RANK") {
      Result<LaunchEnvironment> by_slurm = read_srun(get);
      if (by_slurm.is_ok() && by_slurm.value().rank == found->rank &&
          (found->size == 0 || found->size == by_slurm.value().size)) {
        found->without_mpi = std::make_shared<const LaunchEnvironment>(std::move(by_slurm).value());
      }
    }
    if (found->without_mpi != nullptr && !mpi_library_found()) return *found->without_mpi;
    return *found;  // if there is no library, loading it fails and says what was tried
  }
  if (is_set(get, "RANK") && is_set(get, "WORLD_SIZE")) return read_torchrun(get);
  if (srun) return read_srun(get);
  return LaunchEnvironment{};
}

Result<int> place_in_world(const std::vector<int>& ranks, int rank, int size) {
  if (ranks.empty()) return rank;
  std::vector<bool> seen(size, false);
  int place = -1;
  for (size_t i = 0; i < ranks.size(); ++i) {
    const std::string name = "rank " + std::to_string(ranks[i]) + " in the ranks given to init";
    if (ranks[i] < 0 || ranks[i] >= size) {
      return Status::invalid_argument(name + " is not one of the " + std::to_string(size) +
                                      " launched");
    }
    if (seen[ranks[i]]) return Status::invalid_argument(name + " is there twice");
    seen[ranks[i]] = true;
    if (ranks[i] == rank) place = static_cast<int>(i);
  }
  return place;
}

}  // namespace perseus
