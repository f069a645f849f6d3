// MPICH's binary interface, shared by the members of its ABI initiative (MPICH >= 3.1, Intel MPI >=
// 5, MVAPICH2, Cray MPT >= 7): handles are integers with fixed values.
#include "mpi/mpi_binding.h"

namespace perseus {
namespace {

struct MpichInterface {
  using Comm = int;
  using Datatype = int;
  using Request = int;
  using Message = int;
  using Errhandler = int;
  struct Status {
    int count_low;
    int count_high_and_cancelled;
    int MPI_SOURCE;
    int MPI_TAG;
    int MPI_ERROR;
  };

  static constexpr std::array<int, 4> kThreadLevels = {0, 1, 2, 3};
  static constexpr int kAnySource = -2;

  int world = 0x44000000;
  int byte = 0x4c00010d;
  int errors_return = 0x54000001;

  bool resolve(void*, std::string&) { return true; }
};

}  // namespace

std::unique_ptr<Mpi> bind_mpich(void* library, const std::string& path, std::string& missing) {
  return MpiBinding<MpichInterface>::bind(library, path, missing);
}

}  // namespace perseus
