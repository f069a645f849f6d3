#include "bootstrap/environment.h"

#include <cstdlib>
#include <string_view>

#include "base/hmac.h"
#include "base/secret.h"
#include "base/sha256.h"
#include "bootstrap/ancestry.h"
#include "bootstrap/slurm.h"

namespace perseus {
namespace {

// The distance from the port of torchrun's own store to that of the rendezvous. If torchrun has
// taken a free port, Linux is likely to give the next one to a connection, but hardly ever the one
// after it. If that is taken all the same, more ports are tried at the same distance from each
// other.
constexpr int kPortStep = 2;
constexpr int kPortsTried = 4;

Status missing(const char* name, const std::string& because) {
  return Status::invalid_argument(std::string(name) + " is not set, though " + because);
}

Status read_rank_and_size(const Variables& variables, const char* rank_name, const char* size_name,
                          LaunchEnvironment& out) {
  out.source = rank_name;
  if (!variables.is_set(rank_name)) return missing(rank_name, std::string(size_name) + " is");
  if (!variables.is_set(size_name)) return missing(size_name, std::string(rank_name) + " is");
  Result<int> size = read_int(variables, size_name, 1, kMostRanks);
  if (!size.is_ok()) return size.status();
  Result<int> rank = read_int(variables, rank_name, 0, kMostRanks);
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

Status read_secret(const Variables& variables, std::string& out) {
  Result<std::string> secret = from_hex(variables.get("PERSEUS_SECRET"));
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
Status read_or_derive_secret(const Variables& variables, std::initializer_list<const char*> names,
                             bool one_host, LaunchEnvironment& out) {
  if (variables.is_set("PERSEUS_SECRET")) return read_secret(variables, out.secret);
  Sha256 hash;
  for (const char* name : names) {
    hash.update(name);
    hash.update("=");
    if (variables.is_set(name)) hash.update(variables.get(name));
    hash.update("\n");
  }
  const Sha256Digest digest = hash.finish();
  out.secret.assign(digest.begin(), digest.end());
  out.needs_local_secret = one_host;
  out.has_guessable_secret = !one_host;
  return Status::ok();
}

Result<LaunchEnvironment> read_perseus(const Variables& variables, const Claim& claim) {
  LaunchEnvironment out;
  const bool meets = variables.is_set("PERSEUS_RENDEZVOUS");
  if (meets && !variables.is_set(claim.rank_variable)) {
    return missing(claim.rank_variable, "PERSEUS_RENDEZVOUS is");
  }
  PERSEUS_RETURN_IF_ERROR(
      read_rank_and_size(variables, claim.rank_variable, claim.size_variable, out));
  if (out.size == 1) return out;
  out.kind = LaunchEnvironment::Kind::kRendezvous;
  const std::string because = "there are " + std::to_string(out.size) + " ranks to meet";
  if (!meets) return missing("PERSEUS_RENDEZVOUS", because);
  Result<HostPort> where = parse_host_port(variables.get("PERSEUS_RENDEZVOUS"));
  if (!where.is_ok()) {
    return Status::invalid_argument("PERSEUS_RENDEZVOUS: " + where.status().message());
  }
  out.rendezvous = {std::move(where).value()};
  if (!variables.is_set("PERSEUS_SECRET")) return missing("PERSEUS_SECRET", because);
  PERSEUS_RETURN_IF_ERROR(read_secret(variables, out.secret));
  return out;
}

// Where rank 0 serves the rendezvous: at `host` and `ports`, unless the environment says otherwise.
Status read_master(const Variables& variables, std::string host, std::vector<int> ports,
                   bool one_host, LaunchEnvironment& out) {
  if (variables.is_set("PERSEUS_MASTER_ADDR")) host = variables.get("PERSEUS_MASTER_ADDR");
  if (variables.is_set("PERSEUS_MASTER_PORT")) {
    Result<int> chosen = read_int(variables, "PERSEUS_MASTER_PORT", 1, 65535);
    if (!chosen.is_ok()) return chosen.status();
    ports = {chosen.value()};
  }
  for (const int port : ports) {
    out.rendezvous.push_back(HostPort{host, static_cast<uint16_t>(port)});
  }
  out.any_port = !variables.is_set("PERSEUS_MASTER_PORT");
  out.meets_locally = one_host && (out.any_port || !variables.is_set("PERSEUS_SECRET"));
  return Status::ok();
}

// If all ranks are on one host, other hosts need not reach the rendezvous.
constexpr const char* kThisHost = "127.0.0.1";

// RANK and WORLD_SIZE, or a rank that follows from the place on its host.
Status read_torchruns_rank(const Variables& variables, LaunchEnvironment& out) {
  if (variables.is_set("RANK")) return read_rank_and_size(variables, "RANK", "WORLD_SIZE", out);
  out.source = kDerivedRank;
  Result<int> size = read_int(variables, "WORLD_SIZE", 1, kMostRanks);
  if (!size.is_ok()) return size.status();
  Result<int> rank = derive_rank(variables, size.value());
  if (!rank.is_ok()) return rank.status();
  out.rank = rank.value();
  out.size = size.value();
  return Status::ok();
}

Result<LaunchEnvironment> read_torchrun(const Variables& variables) {
  LaunchEnvironment out;
  PERSEUS_RETURN_IF_ERROR(read_torchruns_rank(variables, out));
  if (out.size == 1) return out;
  out.kind = LaunchEnvironment::Kind::kRendezvous;
  out.rank_0_serves = true;
  out.serves = out.rank == 0;
  const std::string because = out.source + " and WORLD_SIZE are";
  if (!variables.is_set("MASTER_ADDR")) return missing("MASTER_ADDR", because);
  std::vector<int> ports;
  if (!variables.is_set("PERSEUS_MASTER_PORT")) {
    if (!variables.is_set("MASTER_PORT")) return missing("MASTER_PORT", because);
    Result<int> store_port = read_int(variables, "MASTER_PORT", 1, 65535 - kPortStep);
    if (!store_port.is_ok()) return store_port.status();
    for (int i = 1; i <= kPortsTried; ++i) {
      const int port = store_port.value() + i * kPortStep;
      if (port <= 65535) ports.push_back(port);
    }
  }
  const bool one_host =
      variables.is_set("LOCAL_WORLD_SIZE") &&
      variables.get("LOCAL_WORLD_SIZE") == std::string_view(variables.get("WORLD_SIZE"));
  PERSEUS_RETURN_IF_ERROR(read_master(
      variables, one_host ? kThisHost : variables.get("MASTER_ADDR"), ports, one_host, out));
  // With the restart count, ranks left over from a failed attempt cannot join the next one.
  PERSEUS_RETURN_IF_ERROR(
      read_or_derive_secret(variables,
                            {"TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR",
                             "MASTER_PORT", "WORLD_SIZE"},
                            one_host, out));
  // Jobs with the same secret may try each other's ports, so the port is made part of the secret.
  if (out.rendezvous.size() > 1) {
    const Sha256Digest of_job =
        hmac_sha256(out.secret, "MASTER_PORT=" + std::string(variables.get("MASTER_PORT")));
    out.secret.assign(of_job.begin(), of_job.end());
  }
  return out;
}

Result<LaunchEnvironment> read_srun(const Variables& variables) {
  LaunchEnvironment out;
  // The step's number of tasks, which may differ from the job's.
  const char* size_name =
      variables.is_set("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
  PERSEUS_RETURN_IF_ERROR(read_rank_and_size(variables, "SLURM_PROCID", size_name, out));
  if (out.size == 1) return out;
  out.kind = LaunchEnvironment::Kind::kRendezvous;
  out.rank_0_serves = true;
  out.serves = out.rank == 0;
  Result<std::string> host = first_slurm_host(variables.get("SLURM_STEP_NODELIST"));
  if (!host.is_ok()) {
    return Status::invalid_argument("SLURM_STEP_NODELIST: " + host.status().message());
  }
  if (!variables.is_set("SLURM_JOB_ID")) return missing("SLURM_JOB_ID", "SLURM_PROCID is");
  const bool one_host = variables.is_set("SLURM_STEP_NUM_NODES") &&
                        variables.get("SLURM_STEP_NUM_NODES") == std::string_view("1");
  PERSEUS_RETURN_IF_ERROR(read_or_derive_secret(
      variables, {"SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_JOB_UID", "SLURM_CLUSTER_NAME"}, one_host,
      out));
  // Below the range from which systems assign ports, so that it is not taken by chance.
  constexpr int kFirstPort = 15000;
  constexpr int kPorts = 16000;
  const std::string step = variables.is_set("SLURM_STEP_ID") ? variables.get("SLURM_STEP_ID") : "0";
  const Sha256Digest hash = sha256(std::string(variables.get("SLURM_JOB_ID")) + "." + step);
  const int port = kFirstPort + (hash[0] << 8 | hash[1]) % kPorts;
  PERSEUS_RETURN_IF_ERROR(
      read_master(variables, one_host ? kThisHost : host.value(), {port}, one_host, out));
  return out;
}

Result<LaunchEnvironment> read_mpi(const Variables& variables, const Claim& claim) {
  LaunchEnvironment out;
  if (claim.size_variable != nullptr) {
    PERSEUS_RETURN_IF_ERROR(
        read_rank_and_size(variables, claim.rank_variable, claim.size_variable, out));
    if (out.size == 1) return out;
  } else {
    Result<int> rank = read_int(variables, claim.rank_variable, 0, kMostRanks);
    if (!rank.is_ok()) return rank.status();
    out.rank = rank.value();
    out.size = 0;  // MPI will tell
    out.source = claim.rank_variable;
  }
  out.kind = LaunchEnvironment::Kind::kMpi;
  if (variables.is_set("PERSEUS_SECRET")) {
    PERSEUS_RETURN_IF_ERROR(read_secret(variables, out.secret));
  }
  return out;
}

// srun sets the variables of PMI or PMIx whether or not there is an MPI library, and the library
// may not use them. Returns how the ranks of srun's meet without it; null if srun did not start
// this process as the rank that `by_mpi` says.
std::shared_ptr<const LaunchEnvironment> same_by_srun(const Variables& variables,
                                                      const std::vector<Claim>& claims,
                                                      const LaunchEnvironment& by_mpi) {
  if (claims.back().launcher != Launcher::kSrun) return nullptr;
  Result<LaunchEnvironment> by_slurm = read_srun(variables);
  if (!by_slurm.is_ok() || by_slurm.value().rank != by_mpi.rank) return nullptr;
  if (by_mpi.size != 0 && by_mpi.size != by_slurm.value().size) return nullptr;
  return std::make_shared<const LaunchEnvironment>(std::move(by_slurm).value());
}

// There is no launcher. A variable that says that there are several ranks is then an error: each
// of them would train alone, and nobody would notice.
Status check_alone(const Variables& variables) {
  if (variables.is_set("WORLD_SIZE")) {
    const Result<int> size = read_int(variables, "WORLD_SIZE", 2, kMostRanks);
    if (size.is_ok()) return derive_rank(variables, size.value()).status();
  } else if (variables.is_set("RANK") && variables.is_set("MASTER_ADDR")) {
    return missing("WORLD_SIZE", "RANK and MASTER_ADDR are");
  }
  return Status::ok();
}

}  // namespace

Result<LaunchEnvironment> read_launch_environment(const Variables& variables,
                                                  const std::function<bool()>& mpi_library_found) {
  const std::vector<Claim> claims = find_claims(variables);
  if (claims.empty()) {
    PERSEUS_RETURN_IF_ERROR(check_alone(variables));
    return LaunchEnvironment{};
  }
  const Result<Claim> claim = innermost(variables, claims);
  if (!claim.is_ok()) return claim.status();
  switch (claim.value().launcher) {
    case Launcher::kPerseusrun: return read_perseus(variables, claim.value());
    case Launcher::kTorchrun: return read_torchrun(variables);
    case Launcher::kSrun: return read_srun(variables);
    default: break;
  }
  Result<LaunchEnvironment> found = read_mpi(variables, claim.value());
  if (!found.is_ok() || found.value().kind != LaunchEnvironment::Kind::kMpi) return found;
  // Below Open MPI's mpirun, Slurm's variables are those of its own daemons.
  if (claim.value().launcher != Launcher::kOpenMpi) {
    found.value().without_mpi = same_by_srun(variables, claims, found.value());
  }
  if (found.value().without_mpi != nullptr && !mpi_library_found()) {
    return *found.value().without_mpi;
  }
  return found;  // if there is no library, loading it fails and says what was tried
}

Result<LaunchEnvironment> read_launch_environment(const std::function<bool()>& mpi_library_found) {
  Ancestry ancestry;
  Variables variables;
  variables.get = [](const char* name) -> const char* { return std::getenv(name); };
  variables.age = [&](const char* name) { return ancestry.age(name, std::getenv(name)); };
  return read_launch_environment(variables, mpi_library_found);
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
