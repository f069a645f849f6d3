// Open MPI's binary interface, of which the part used here is stable since 1.7: handles point to
// structures, and predefined handles are addresses of structures that the library exports.
#include <dlfcn.h>
#include <sys/auxv.h>

#include "mpi/mpi_binding.h"

namespace perseus {
namespace {

// In an executable that is linked with the library, the linker makes a copy of each object that the
// executable names (a copy relocation), and all code then uses that copy. Null if there is none.
void* find_in_executable(const char* name) {
  void* symbol = dlsym(RTLD_DEFAULT, name);
  Dl_info of_symbol{};
  Dl_info of_executable{};
  const auto* headers = reinterpret_cast<const void*>(getauxval(AT_PHDR));
  if (symbol == nullptr || dladdr(symbol, &of_symbol) == 0 ||
      dladdr(headers, &of_executable) == 0) {
    return nullptr;
  }
  return of_symbol.dli_fbase == of_executable.dli_fbase ? symbol : nullptr;
}

struct OpenMpiInterface {
  using Comm = void*;
  using Datatype = void*;
  using Request = void*;
  using Message = void*;
  using Errhandler = void*;
  struct Status {
    int MPI_SOURCE;
    int MPI_TAG;
    int MPI_ERROR;
    int cancelled;
    size_t bytes;
  };

  static constexpr std::array<int, 4> kThreadLevels = {0, 1, 2, 3};
  static constexpr int kAnySource = -1;

  void* world = nullptr;
  void* byte = nullptr;
  void* errors_return = nullptr;

  bool resolve(void* library, std::string& missing) {
    return find(library, "ompi_mpi_comm_world", world, missing) &&
           find(library, "ompi_mpi_byte", byte, missing) &&
           find(library, "ompi_mpi_errors_return", errors_return, missing);
  }

  static bool find(void* library, const char* name, void*& handle, std::string& missing) {
    handle = find_in_executable(name);
    if (handle == nullptr) handle = dlsym(library, name);
    if (handle == nullptr) missing = name;
    return handle != nullptr;
  }
};

}  // namespace

std::unique_ptr<Mpi> bind_open_mpi(void* library, const std::string& path, std::string& missing) {
  return MpiBinding<OpenMpiInterface>::bind(library, path, missing);
}

}  // namespace perseus
