// How ranks that know nothing of each other yet swap their addresses, once at init.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"

namespace perseus {

class Mpi;
struct Settings;

// Blocking; used by the thread that calls init, before the engine's own thread exists.
class Bootstrap {
 public:
  virtual ~Bootstrap() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // What the launcher calls a rank of this world.
  virtual int launched_rank(int rank) const { return rank; }
  // The job's secret: every connection between ranks must prove that it knows it.
  virtual const std::string& secret() const = 0;
  // Everybody's `mine`, in rank order, or an error on every rank that is still there; never waits
  // longer than `time_out`. An error names who is missing.
  virtual Result<std::vector<std::string>> all_gather(const std::string& mine,
                                                      std::chrono::milliseconds time_out) = 0;
  // The MPI that the ranks met by, initialised; null where they met without.
  virtual const Mpi* mpi() const { return nullptr; }
};

// Chooses by what the environment says, in this order:
//   PERSEUS_RANK / PERSEUS_SIZE / PERSEUS_RENDEZVOUS (perseusrun; HOROVOD_RANK ... likewise),
//   an MPI launcher (OMPI_COMM_WORLD_RANK, PMI_RANK, ...) with an MPI library to be found,
//   torchrun (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT),
//   srun (SLURM_PROCID, SLURM_NTASKS, SLURM_STEP_NODELIST) without MPI,
//   nothing: a world of one.
// `ranks` (empty: all) restricts the world to these ranks of the launched job; the others get a
// world of one. Where the launcher lets the job go on without those that have failed
// (PERSEUS_SURVIVORS), all are those that have not ended. `generation` counts the init calls of
// this process: every rank's n-th init meets the others' n-th.
Result<std::unique_ptr<Bootstrap>> make_bootstrap(const Settings& settings,
                                                  const std::vector<int>& ranks, int generation);

}  // namespace perseus
