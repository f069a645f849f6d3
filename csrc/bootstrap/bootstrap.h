// How ranks that do not know each other yet exchange their addresses, once at init.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"

namespace perseus {

class Mpi;
struct Settings;

// Blocking. Used by the thread that calls init, before the engine's own thread exists.
class Bootstrap {
 public:
  virtual ~Bootstrap() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // The number that the launcher gave to a rank of this world.
  virtual int launched_rank(int rank) const { return rank; }
  // The job's secret, which both ends of every connection between ranks must prove that they know.
  virtual const std::string& secret() const = 0;
  // How others may come to know the secret: "is derived from ...". Empty: they cannot.
  virtual std::string secret_weakness() const { return ""; }
  // Returns the `mine` of every rank, in rank order, or an error on every rank that is still there.
  // Never waits longer than `time_out`. An error names the missing ranks.
  virtual Result<std::vector<std::string>> all_gather(const std::string& mine,
                                                      std::chrono::milliseconds time_out) = 0;
  // The initialised MPI by which the ranks met; null if they met without MPI.
  virtual const Mpi* mpi() const { return nullptr; }
};

// Chooses a bootstrap by the environment, in this order:
//   PERSEUS_RANK / PERSEUS_SIZE / PERSEUS_RENDEZVOUS (perseusrun; HOROVOD_RANK ... likewise),
//   an MPI launcher (OMPI_COMM_WORLD_RANK, PMI_RANK, ...), if there is an MPI library,
//   torchrun (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT),
//   srun (SLURM_PROCID, SLURM_NTASKS, SLURM_STEP_NODELIST) without MPI,
//   otherwise a world of one.
// `ranks` (empty: all) restricts the world to these ranks of the launched job; the others get a
// world of one. If the launcher lets the job go on without ranks that have failed
// (PERSEUS_SURVIVORS), "all" means those that have not ended. `generation` counts the init calls of
// this process: every rank's n-th init meets the other ranks' n-th.
Result<std::unique_ptr<Bootstrap>> make_bootstrap(const Settings& settings,
                                                  const std::vector<int>& ranks, int generation);

}  // namespace perseus
