// Which launchers say in the environment that they have started this process, and which of them is
// the innermost. A launcher may run below another one: torchrun on each host that srun gives, or
// perseusrun in a process of mpirun's. Then the variables of all are there.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/status.h"

namespace perseus {

// In the order in which they count where several say the same.
enum class Launcher { kPerseusrun, kOpenMpi, kMvapich, kPmi, kPals, kPmix, kTorchrun, kSrun };

// A launcher, and the numbers in its variables.
struct Claim {
  Launcher launcher{};
  const char* name = "";  // of the launcher
  // The variables, or null: the rank follows from others, or only MPI itself knows the size.
  const char* rank_variable = nullptr;
  const char* size_variable = nullptr;
  // -1: it is missing or malformed, which whoever reads all variables of this launcher reports.
  int rank = -1;
  int size = -1;  // 0: only MPI itself knows it
  int age = 0;    // see ancestry.h
};

// The values of variables, and when they were set.
struct Variables {
  // Returns null if the variable is not set.
  std::function<const char*(const char* name)> get;
  // See ancestry.h. Called only where there are several launchers.
  std::function<int(const char* name)> age = [](const char*) { return 0; };

  bool is_set(const char* name) const;
};

inline constexpr int kMostRanks = 1 << 24;

// The variable's number; kInvalidArgument if it is none of `low` to `high`. The variable is set.
Result<int> read_int(const Variables& variables, const char* name, int low, int high);

// Returns the claims of all launchers whose variables are set, in the order of Launcher.
std::vector<Claim> find_claims(const Variables& variables);

// Returns the one that counts. This is the rule, of which docs/launching.md has the table:
//   - The innermost launcher counts: the one whose variables are the youngest.
//   - Launchers whose variables came at once must say the same, or it is kInvalidArgument. Then the
//     first in the order of Launcher counts, since its way to meet is the best.
//   - RANK and WORLD_SIZE, which many programs set, are no launcher of their own if they repeat
//     what the launcher says above which they were set, unless torchrun itself has set them.
// `claims`, of which there is at least one, are those that find_claims has returned.
Result<Claim> innermost(const Variables& variables, const std::vector<Claim>& claims);

// The rank that follows from LOCAL_RANK and NODE_RANK or GROUP_RANK, where RANK is not set.
Result<int> derive_rank(const Variables& variables, int size);

}  // namespace perseus
