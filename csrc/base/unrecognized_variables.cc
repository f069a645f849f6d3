// Variables of the environment that are not settings: those of Horovod that have no effect here,
// and mistyped settings.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <string_view>

#include "base/settings.h"
#include "base/settings_rows.h"

namespace perseus {
namespace {

// Variables that launchers set for a rank, and Ali-Perseus's switch for Kubernetes.
constexpr const char* kEnvironmentNames[] = {"PERSEUS_RANK",
                                             "PERSEUS_SIZE",
                                             "PERSEUS_LOCAL_RANK",
                                             "PERSEUS_LOCAL_SIZE",
                                             "PERSEUS_CROSS_RANK",
                                             "PERSEUS_CROSS_SIZE",
                                             "PERSEUS_HOSTNAME",
                                             "PERSEUS_RENDEZVOUS",
                                             "PERSEUS_SECRET",
                                             "PERSEUS_NEWS_FD",
                                             "PERSEUS_NEWS_INODE",
                                             "PERSEUS_DRIVER_FD",
                                             "PERSEUS_DRIVER_INODE",
                                             "PERSEUS_ELASTIC_JOIN",
                                             "PERSEUS_ELASTIC_MEETING",
                                             "PERSEUS_ELASTIC_SLOT",
                                             "PERSEUS_ELASTIC_DRAIN_SIGNAL",
                                             "PERSEUS_MASTER_ADDR",
                                             "PERSEUS_MASTER_PORT",
                                             "PERSEUS_RANK_HELD_BY",
                                             "PERSEUS_WITH_K8S"};

// Variables of Horovod's that mean something else than the settings whose names are like them: they
// are for launchers, or for its build.
constexpr const char* kHorovodNames[] = {
    "HOROVOD_RANK",       "HOROVOD_SIZE",       "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE",
    "HOROVOD_CROSS_RANK", "HOROVOD_CROSS_SIZE", "HOROVOD_HOSTNAME",   "HOROVOD_GPU_OPERATIONS"};

// The number of insertions, deletions and substitutions between them (Levenshtein 1966).
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t substituted = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({row[j] + 1, row[j + 1] + 1, substituted});
    }
  }
  return row.back();
}

}  // namespace

const std::vector<IgnoredVariable>& ignored_variables() {
  static const char* const kEvents = "agreement is driven by events; there is no cycle";
  static const char* const kTransport = "PERSEUS_TRANSPORT chooses how ranks reach each other";
  static const std::vector<IgnoredVariable> variables = {
      {"HOROVOD_CYCLE_TIME", kEvents},
      {"HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE",
       "the tuner tries values in turn and fits no Gaussian process"},
      {"HOROVOD_BATCH_D2D_MEMCOPIES", "packing always copies all tensors of a merge in one pass"},
      {"HOROVOD_ENABLE_XLA_OPS", "there are no XLA operations"},
      {"HOROVOD_DISABLE_NVTX_RANGES", "there are no NVTX ranges; PERSEUS_TIMELINE shows the same"},
      {"HOROVOD_CONTROLLER", "agreement needs no controller"},
      {"HOROVOD_CPU_OPERATIONS", kTransport},
      {"HOROVOD_MPI_THREADS_DISABLE", "MPI is only ever called from the engine's one thread"},
      {"HOROVOD_ADASUM_MPI_CHUNK_SIZE", "PERSEUS_CHUNK bounds the pieces of every operation"},
      {"HOROVOD_CCL_CACHE", "oneCCL is not used"},
      {"HOROVOD_HIERARCHICAL_ALLGATHER", "the allgather is chosen by size and topology"},
  };
  return variables;
}

std::vector<std::string> unknown_variables(const char* const* environment) {
  std::vector<std::string> ours(std::begin(kEnvironmentNames), std::end(kEnvironmentNames));
  std::vector<std::string> horovods(std::begin(kHorovodNames), std::end(kHorovodNames));
  for (const TableRow& row : table_rows()) {
    ours.emplace_back(row.name);
    for (const SettingAlias& alias : aliases_of(row)) horovods.emplace_back(alias.name);
  }
  for (const IgnoredVariable& ignored : ignored_variables()) horovods.emplace_back(ignored.name);

  std::vector<std::string> warnings;
  for (; environment != nullptr && *environment != nullptr; ++environment) {
    const std::string_view variable(*environment, std::strcspn(*environment, "="));
    const bool is_ours = variable.starts_with("PERSEUS_");
    if (!is_ours && !variable.starts_with("HOROVOD_")) continue;
    const std::vector<std::string>& known = is_ours ? ours : horovods;
    if (std::find(known.begin(), known.end(), variable) != known.end()) continue;
    std::string_view nearest;
    size_t distance = SIZE_MAX;
    for (const std::string& name : known) {
      const size_t to_name = edit_distance(variable, name);
      if (to_name < distance) distance = to_name, nearest = name;
    }
    // Allows two typing errors, or more in a long name of ours: Horovod has names that are not
    // listed here. Only settings begin with PERSEUS_ALLREDUCE_, so those are reported whatever the
    // distance.
    const size_t in_long_names = is_ours ? (variable.size() - std::strlen("PERSEUS_")) / 5 : 0;
    const size_t errors = std::max<size_t>(2, in_long_names);
    if (distance <= errors) {
      warnings.push_back(std::string(variable) + " is not a setting; did you mean " +
                         std::string(nearest) + "?");
    } else if (variable.starts_with("PERSEUS_ALLREDUCE_")) {
      warnings.push_back(std::string(variable) + " is not a setting and has no effect");
    }
  }
  return warnings;
}

}  // namespace perseus
