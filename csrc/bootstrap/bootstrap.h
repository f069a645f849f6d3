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
struct WorldRequest;

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

// Chooses a bootstrap by what the program has told, or else by the environment, in which the
// innermost launcher counts (launchers.h): perseusrun, MPI if there is an MPI library, torchrun, or
// srun without MPI. Without a launcher it is a world of one. If the world is restricted to some of
// the launched ranks, the others get a world of one.
Result<std::unique_ptr<Bootstrap>> make_bootstrap(const Settings& settings,
                                                  const WorldRequest& request);

}  // namespace perseus
