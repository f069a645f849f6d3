// The binary interface of the MPI-5 standard (chapter 20): handles are pointers, and those of
// predefined objects are small integers cast to pointers.
#include "mpi/mpi_binding.h"

namespace perseus {
namespace {

struct StandardInterface {
  using Comm = void*;
  using Datatype = void*;
  using Request = void*;
  using Message = void*;
  using Errhandler = void*;
  struct Status {
    int MPI_SOURCE;
    int MPI_TAG;
    int MPI_ERROR;
    int reserved[5];
  };

  static constexpr std::array<int, 4> kThreadLevels = {0, 1024, 2048, 4096};
  static constexpr int kAnySource = -1;

  void* world = reinterpret_cast<void*>(0x101);
  void* byte = reinterpret_cast<void*>(0x247);
  void* errors_return = reinterpret_cast<void*>(0x143);

  bool resolve(void*, std::string&) { return true; }
};

}  // namespace

std::unique_ptr<Mpi> bind_mpi_abi(void* library, const std::string& path, std::string& missing) {
  return MpiBinding<StandardInterface>::bind(library, path, missing);
}

}  // namespace perseus
