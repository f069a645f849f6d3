#include "bootstrap/launchers.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>

namespace perseus {
namespace {

// The variables that a launcher sets in each process that it starts.
struct Row {
  Launcher launcher;
  const char* name;
  const char* rank;
  const char* size;     // null: only MPI itself knows it
  const char* of_job;   // a variable that tells jobs apart of which this is the same rank, or null
  const char* besides;  // a variable without which the others mean nothing, or null
};
constexpr Row kRows[] = {
    {Launcher::kPerseusrun, "perseusrun", "PERSEUS_RANK", "PERSEUS_SIZE", "PERSEUS_RENDEZVOUS",
     nullptr},
    {Launcher::kOpenMpi, "Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
     "PMIX_NAMESPACE", nullptr},
    {Launcher::kMvapich, "MVAPICH", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", nullptr, nullptr},
    // MPICH, Intel MPI, and srun --mpi=pmi2.
    {Launcher::kPmi, "an MPI launcher that uses PMI", "PMI_RANK", "PMI_SIZE", nullptr, nullptr},
    {Launcher::kPals, "Cray's launcher", "PALS_RANKID", nullptr, nullptr, nullptr},
    // srun --mpi=pmix, too.
    {Launcher::kPmix, "an MPI launcher that uses PMIx", "PMIX_RANK", nullptr, "PMIX_NAMESPACE",
     nullptr},
    {Launcher::kTorchrun, "torchrun", "RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID", "WORLD_SIZE"},
    // A batch script has SLURM_PROCID, too; only processes that srun starts belong to a step.
    {Launcher::kSrun, "srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_ID",
     "SLURM_STEP_NODELIST"},
};

// Returns the first of these that is set, or else the first.
const char* one_set(const Variables& variables, const char* one, const char* other) {
  return variables.is_set(one) || !variables.is_set(other) ? one : other;
}

// Scripts that start their ranks themselves may set only Horovod's names beside PERSEUS_RENDEZVOUS.
bool has_horovods_names(const Variables& variables) {
  return variables.is_set("PERSEUS_RENDEZVOUS") && !variables.is_set("PERSEUS_RANK") &&
         !variables.is_set("PERSEUS_SIZE") && variables.is_set("HOROVOD_RANK");
}

// Returns the variables of this launcher as they are here.
Row row_here(const Variables& variables, const Row& row) {
  Row here = row;
  switch (row.launcher) {
    case Launcher::kPerseusrun:
      if (has_horovods_names(variables)) here.rank = "HOROVOD_RANK", here.size = "HOROVOD_SIZE";
      break;
    case Launcher::kTorchrun:
      // Lightning's launcher and others tell places on hosts.
      here.rank = one_set(variables, "RANK", "LOCAL_RANK");
      break;
    case Launcher::kSrun:
      // The step's number of tasks may differ from the job's.
      here.size = one_set(variables, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS");
      break;
    default: break;
  }
  return here;
}

bool is_there(const Variables& variables, const Row& row) {
  if (row.launcher == Launcher::kPerseusrun) {
    return variables.is_set("PERSEUS_RANK") || variables.is_set("PERSEUS_SIZE") ||
           variables.is_set("PERSEUS_RENDEZVOUS");
  }
  return variables.is_set(row.rank) && (row.besides == nullptr || variables.is_set(row.besides));
}

int number_or(const Variables& variables, const char* name, int low, int otherwise) {
  if (!variables.is_set(name)) return otherwise;
  const Result<int> read = read_int(variables, name, low, kMostRanks);
  return read.is_ok() ? read.value() : otherwise;
}

Claim claim_of(const Variables& variables, const Row& row) {
  Claim claim{row.launcher, row.name, row.rank, row.size, -1, 0, 0};
  if (row.size != nullptr) claim.size = number_or(variables, row.size, 1, -1);
  if (row.launcher == Launcher::kTorchrun && !variables.is_set("RANK")) {
    const Result<int> derived = derive_rank(variables, std::max(claim.size, 1));
    if (derived.is_ok()) claim.rank = derived.value();
  } else {
    claim.rank = number_or(variables, row.rank, 0, -1);
  }
  return claim;
}

// A rank or a job number may happen to be the same as that of an outer launcher of the same kind,
// so the youngest of all that the launcher sets counts.
int age_of(const Variables& variables, const Claim& claim) {
  const Row& row = *std::ranges::find(kRows, claim.launcher, &Row::launcher);
  int youngest = std::numeric_limits<int>::max();
  for (const char* name : {claim.rank_variable, claim.size_variable, row.of_job}) {
    if (name != nullptr && variables.is_set(name)) {
      youngest = std::min(youngest, variables.age(name));
    }
  }
  return youngest;
}

bool is_whole(const Claim& claim) { return claim.rank >= 0 && claim.size >= 0; }

bool agree(const Claim& one, const Claim& other) {
  return one.rank == other.rank && (one.size == other.size || one.size == 0 || other.size == 0);
}

std::string describe(const Claim& claim) {
  std::string text = "rank " + std::to_string(claim.rank);
  if (claim.size > 0) text += " of " + std::to_string(claim.size);
  text += " by " + std::string(claim.name) + " (" + claim.rank_variable;
  if (claim.size_variable != nullptr) text += std::string(" and ") + claim.size_variable;
  return text + ")";
}

Result<Claim> youngest(const std::vector<Claim>& claims) {
  const Claim& first = *std::ranges::min_element(claims, {}, &Claim::age);
  // Whoever reads its variables one by one says what is missing.
  if (!is_whole(first)) return first;
  for (const Claim& other : claims) {
    if (other.age != first.age || !is_whole(other) || agree(first, other)) continue;
    return Status::invalid_argument(
        "two launchers say which rank this process is, and nothing tells which of them started "
        "the other: it is " +
        describe(first) + ", and " + describe(other) +
        "; unset the variables of the one that did not start this job");
  }
  return first;
}

}  // namespace

bool Variables::is_set(const char* name) const {
  const char* value = get(name);
  return value != nullptr && *value != '\0';
}

Result<int> read_int(const Variables& variables, const char* name, int low, int high) {
  const std::string text = variables.get(name);
  int value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || stop != text.data() + text.size() || value < low || value > high) {
    return Status::invalid_argument(std::string(name) + "='" + text + "' is not a number of " +
                                    std::to_string(low) + " to " + std::to_string(high));
  }
  return value;
}

std::vector<Claim> find_claims(const Variables& variables) {
  std::vector<Claim> claims;
  for (const Row& row : kRows) {
    const Row here = row_here(variables, row);
    if (is_there(variables, here)) claims.push_back(claim_of(variables, here));
  }
  return claims;
}

Result<Claim> innermost(const Variables& variables, const std::vector<Claim>& claims) {
  if (claims.size() == 1) return claims[0];
  std::vector<Claim> aged = claims;
  for (Claim& claim : aged) claim.age = age_of(variables, claim);
  const auto torch = std::ranges::find(aged, Launcher::kTorchrun, &Claim::launcher);
  if (torch == aged.end() || !is_whole(*torch)) return youngest(aged);
  std::vector<Claim> others = aged;
  std::erase_if(others, [](const Claim& claim) { return claim.launcher == Launcher::kTorchrun; });
  const Result<Claim> above = youngest(others);
  if (!above.is_ok() || !is_whole(above.value()) || !agree(above.value(), *torch)) {
    return youngest(aged);
  }
  const bool is_torchrun = variables.is_set("TORCHELASTIC_RUN_ID") &&
                           variables.age("TORCHELASTIC_RUN_ID") < above.value().age;
  // Below srun, where programs set them, they say where to meet, too.
  const bool is_better =
      above.value().launcher == Launcher::kSrun && torch->age <= above.value().age;
  return is_torchrun || is_better ? Result<Claim>(*torch) : above;
}

Result<int> derive_rank(const Variables& variables, int size) {
  const char* node_name = one_set(variables, "GROUP_RANK", "NODE_RANK");
  const bool knows_node = variables.is_set(node_name);
  const bool knows_local_size = variables.is_set("LOCAL_WORLD_SIZE");
  const std::string told = "RANK is not set, though WORLD_SIZE=" + std::to_string(size);
  if (!variables.is_set("LOCAL_RANK")) {
    return Status::invalid_argument(
        told + " says that there are several ranks; set RANK to this process's, from 0 to " +
        std::to_string(size - 1) + ", or give rank and world_size to init_process_group");
  }
  Result<int> local_rank = read_int(variables, "LOCAL_RANK", 0, kMostRanks);
  if (!local_rank.is_ok()) return local_rank;
  int node = 0;
  if (knows_node) {
    Result<int> read = read_int(variables, node_name, 0, kMostRanks);
    if (!read.is_ok()) return read;
    node = read.value();
  }
  int local_size = 0;
  if (knows_local_size) {
    Result<int> read = read_int(variables, "LOCAL_WORLD_SIZE", 1, kMostRanks);
    if (!read.is_ok()) return read;
    local_size = read.value();
  }
  const bool is_one_host = local_size == size;
  if ((!knows_node && !is_one_host) || (node > 0 && !knows_local_size)) {
    const std::string missing = knows_node ? "LOCAL_WORLD_SIZE" : "NODE_RANK";
    return Status::invalid_argument(
        told + " and LOCAL_RANK=" + std::to_string(local_rank.value()) +
        (knows_node ? std::string(" and ") + node_name + "=" + std::to_string(node) : "") +
        " are, and it does not follow from them without " + missing + "; set RANK");
  }
  const int64_t rank = int64_t{node} * local_size + local_rank.value();
  if (rank >= size) {
    return Status::invalid_argument(
        told + ", and rank " + std::to_string(rank) + ", which follows from LOCAL_RANK=" +
        std::to_string(local_rank.value()) + " and the number of the host, is not below it");
  }
  return static_cast<int>(rank);
}

}  // namespace perseus
