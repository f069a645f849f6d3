#include "mpi/mpi_library.h"

#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include <climits>
#include <cstdlib>
#include <mutex>
#include <string_view>

namespace perseus {
namespace {

constexpr const char* kOpenMpi = "libmpi.so.40";
constexpr const char* kMpich = "libmpi.so.12";
constexpr const char* kStandard = "libmpi_abi.so.1";

std::string path_of(void* library) {
  link_map* map = nullptr;
  if (dlinfo(library, RTLD_DI_LINKMAP, &map) != 0 || map == nullptr) return "";
  return map->l_name;
}

// Recognises a library's interface. Symbols alone do not tell: all libraries have those of MPI-5,
// and dlsym also searches the libraries that a library depends on.
std::unique_ptr<Mpi> bind(void* library, std::string& why_not) {
  std::string path = path_of(library);
  const std::string_view name = std::string_view(path).substr(path.rfind('/') + 1);
  if (path.empty()) path = "linked into the program";
  std::string missing;
  std::unique_ptr<Mpi> mpi;
  if (name.starts_with("libmpi_abi.so")) {
    mpi = bind_mpi_abi(library, path, missing);
  } else if (dlsym(library, "ompi_mpi_comm_world") != nullptr) {
    mpi = bind_open_mpi(library, path, missing);
  } else if (dlsym(library, "MPIR_Dup_fn") != nullptr) {
    mpi = bind_mpich(library, path, missing);
  } else {
    why_not += path + ": not an MPI library whose binary interface is known; ";
    return nullptr;
  }
  if (mpi == nullptr) why_not += path + ": has no " + missing + "; ";
  return mpi;
}

// Prefers a library whose MPI is initialised to one that was only loaded.
std::unique_ptr<Mpi> find_in_process(std::string& why_not) {
  std::vector<void*> libraries;
  for (const char* name : {kOpenMpi, kMpich, kStandard}) {
    if (void* library = dlopen(name, RTLD_NOW | RTLD_NOLOAD)) libraries.push_back(library);
  }
  // A library of another name, or one linked into the program.
  Dl_info info;
  void* symbol = dlsym(RTLD_DEFAULT, "MPI_Init_thread");
  if (libraries.empty() && symbol != nullptr && dladdr(symbol, &info) != 0) {
    void* library = dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    if (library == nullptr) library = dlopen(nullptr, RTLD_NOW);
    if (library != nullptr) libraries.push_back(library);
  }
  std::unique_ptr<Mpi> chosen;
  for (void* library : libraries) {
    std::unique_ptr<Mpi> mpi = bind(library, why_not);
    if (mpi == nullptr) continue;
    if (mpi->is_initialized()) return mpi;
    if (chosen == nullptr) chosen = std::move(mpi);
  }
  return chosen;
}

std::unique_ptr<Mpi> open(const std::string& path, std::string& why_not) {
  // RTLD_GLOBAL, since the plugins of Open MPI before version 5 need its symbols.
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) {
    why_not += std::string(dlerror()) + "; ";
    return nullptr;
  }
  return bind(library, why_not);
}

std::string launcher_path() {
  const std::string link = "/proc/" + std::to_string(getppid()) + "/exe";
  char path[PATH_MAX];
  const ssize_t length = readlink(link.c_str(), path, sizeof(path));
  return length > 0 ? std::string(path, length) : "";
}

// "/usr/bin/../lib" for "/usr/bin/mpirun".
std::string lib_beside(const std::string& program) {
  const size_t slash = program.rfind('/');
  return slash == std::string::npos ? "" : program.substr(0, slash) + "/../lib";
}

std::string first_in_path(const char* path, const std::string& program,
                          const std::function<bool(const std::string&)>& exists) {
  std::string_view rest = path == nullptr ? "" : path;
  while (!rest.empty()) {
    const size_t colon = rest.find(':');
    const std::string candidate = std::string(rest.substr(0, colon)) + "/" + program;
    if (exists(candidate)) return candidate;
    if (colon == rest.npos) break;
    rest.remove_prefix(colon + 1);
  }
  return "";
}

}  // namespace

std::vector<std::string> mpi_library_candidates(
    const std::function<const char*(const char*)>& get, const std::string& launcher,
    const std::function<bool(const std::string&)>& exists) {
  std::vector<std::string> folders = {lib_beside(launcher),
                                      lib_beside(first_in_path(get("PATH"), "mpirun", exists))};
  for (const char* prefix :
       {"MPI_HOME", "OPAL_PREFIX", "I_MPI_ROOT", "VIRTUAL_ENV", "CONDA_PREFIX"}) {
    if (get(prefix) != nullptr) folders.push_back(std::string(get(prefix)) + "/lib");
  }
  // A process that used another kind of MPI than its launcher would be alone in its world.
  const bool pmi = get("PMI_RANK") != nullptr && get("OMPI_COMM_WORLD_RANK") == nullptr;
  const std::vector<const char*> names =
      pmi ? std::vector{kMpich, kStandard, kOpenMpi} : std::vector{kOpenMpi, kStandard, kMpich};
  std::vector<std::string> candidates;
  for (const std::string& folder : folders) {
    for (const char* name : names) {
      const std::string path = folder + "/" + name;
      if (!folder.empty() && exists(path)) candidates.push_back(path);
    }
  }
  candidates.insert(candidates.end(), names.begin(), names.end());
  return candidates;
}

Result<Mpi*> load_mpi(const std::string& path) {
  static std::mutex mutex;
  // Never freed, since MPI is finalised when the process exits.
  static Mpi* loaded = nullptr;
  std::lock_guard lock(mutex);
  if (loaded != nullptr) return loaded;
  std::string why_not;
  std::unique_ptr<Mpi> mpi;
  if (!path.empty()) {
    mpi = open(path, why_not);
  } else {
    mpi = find_in_process(why_not);
    const auto exists = [](const std::string& file) { return access(file.c_str(), R_OK) == 0; };
    const auto get = [](const char* name) -> const char* { return std::getenv(name); };
    for (const std::string& candidate : mpi_library_candidates(get, launcher_path(), exists)) {
      if (mpi != nullptr) break;
      mpi = open(candidate, why_not);
    }
  }
  if (mpi == nullptr) {
    return Status::unsupported("no MPI library was found (" + why_not +
                               "set PERSEUS_MPI_LIBRARY to the path of the one that launched this "
                               "process)");
  }
  loaded = mpi.release();
  return loaded;
}

}  // namespace perseus
