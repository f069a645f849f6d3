#include "device/cuda/libraries.h"

#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include <mutex>
#include <sstream>
#include <string_view>

#include "observe/log.h"

namespace perseus {
namespace {

// The oldest NCCL that can make communicators without blocking and split them as needed here.
constexpr int kOldestNccl = 21800;
// The oldest driver that has all functions of the table.
constexpr int kOldestDriver = 11040;

std::mutex g_mutex;
std::vector<std::string> g_folders;  // from add_library_folders

std::vector<std::string> split_folders(const std::string& folders) {
  std::vector<std::string> found;
  std::istringstream items(folders);
  std::string item;
  while (std::getline(items, item, ':')) {
    if (!item.empty()) found.push_back(item);
  }
  return found;
}

// The path of an open library.
std::string path_of(void* library) {
  link_map* map = nullptr;
  if (dlinfo(library, RTLD_DI_LINKMAP, &map) != 0 || map == nullptr) return "?";
  return map->l_name;
}

struct SearchPath {
  std::vector<std::string> first, then;  // folders to search before the process, and after it

  // Returns null if no library can be opened; `problem` then has the loader's error and the places
  // that were searched.
  void* open(const std::vector<const char*>& names, std::string& problem) const {
    for (const std::string& folder : first) {
      if (void* library = open_in(folder, names, problem)) return library;
    }
    for (const char* name : names) {
      if (void* library = dlopen(name, RTLD_NOW | RTLD_NOLOAD)) return library;
    }
    for (const std::string& folder : then) {
      if (void* library = open_in(folder, names, problem)) return library;
    }
    for (const char* name : names) {
      if (void* library = dlopen(name, RTLD_NOW)) return library;
      const char* why = dlerror();
      if (problem.empty() && why != nullptr) problem = why;
    }
    problem += "; looked in ";
    for (const auto* folders : {&first, &then}) {
      for (const std::string& folder : *folders) problem += folder + ", ";
    }
    problem += "this process and where the system has libraries";
    return nullptr;
  }

 private:
  // The first file that exists but cannot be opened is reported as the problem.
  static void* open_in(const std::string& folder, const std::vector<const char*>& names,
                       std::string& problem) {
    for (const char* name : names) {
      const std::string path = folder + "/" + name;
      if (void* library = dlopen(path.c_str(), RTLD_NOW)) return library;
      const char* why = dlerror();
      if (problem.empty() && why != nullptr && access(path.c_str(), F_OK) == 0) problem = why;
    }
    return nullptr;
  }
};

// Looks up one function of a library; notes the first one that is missing.
template <typename Function>
void bind(void* library, const char* name, Function& function, std::string& problem) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr && problem.empty()) problem = "it has no " + std::string(name);
}

void bind_all(void* library, CudaDriver& driver, std::string& problem) {
#define PERSEUS_BIND(member, name, parameters) bind(library, #name, driver.member, problem);
  PERSEUS_CUDA_DRIVER_FUNCTIONS(PERSEUS_BIND)
#undef PERSEUS_BIND
}

void bind_all(void* library, CudaRuntime& runtime, std::string& problem) {
#define PERSEUS_BIND(member, name, parameters) bind(library, #name, runtime.member, problem);
  PERSEUS_CUDA_RUNTIME_FUNCTIONS(PERSEUS_BIND)
#undef PERSEUS_BIND
}

void bind_all(void* library, Nccl& nccl, std::string& problem) {
#define PERSEUS_BIND(member, name, parameters) bind(library, #name, nccl.member, problem);
  PERSEUS_NCCL_FUNCTIONS(PERSEUS_BIND)
#undef PERSEUS_BIND
  std::string missing;  // ignored, since older versions lack these functions
#define PERSEUS_BIND(member, since, name, parameters) bind(library, #name, nccl.member, missing);
  PERSEUS_NEWER_NCCL_FUNCTIONS(PERSEUS_BIND)
#undef PERSEUS_BIND
  bind(library, "ncclGetErrorString", nccl.error_text, problem);
}

template <typename Functions>
FoundLibrary<Functions> find(const SearchPath& search, const std::vector<const char*>& names) {
  FoundLibrary<Functions> found;
  void* library = search.open(names, found.problem);
  if (library == nullptr) return found;
  found.problem.clear();
  found.path = path_of(library);
  bind_all(library, found.functions, found.problem);
  return found;
}

// 13000 and 13020 are CUDA 13.0 and 13.2.
std::string cuda_version(int number) {
  return std::to_string(number / 1000) + "." + std::to_string(number % 1000 / 10);
}

// From 2.9 on, version numbers count in ten thousands: 22703 is 2.27.3.
std::string nccl_version(int number) {
  const int unit = number < 10000 ? 1000 : 10000;
  return std::to_string(number / unit) + "." + std::to_string(number % unit / 100) + "." +
         std::to_string(number % 100);
}

void check_versions(CudaLibraries& libraries) {
  auto& [driver, runtime, nccl] = libraries;
  if (driver.is_usable()) {
    if (driver.functions.driver_version(&driver.version) != kCuSuccess) driver.version = 0;
    if (driver.version < kOldestDriver) {
      driver.problem = "it is of CUDA " + cuda_version(driver.version) + ", and " +
                       cuda_version(kOldestDriver) + " or newer is needed";
    }
  }
  if (runtime.is_usable()) {
    if (runtime.functions.runtime_version(&runtime.version) != 0) runtime.version = 0;
    // A driver works with all runtimes of its major version.
    if (driver.is_usable() && runtime.version / 1000 > driver.version / 1000) {
      runtime.problem = "the driver, of CUDA " + cuda_version(driver.version) +
                        ", is too old for it: install a newer driver, or a framework built for "
                        "this one";
    }
  }
  if (nccl.is_usable()) {
    if (nccl.functions.version(&nccl.version) != kNcclSuccess) nccl.version = 0;
#define PERSEUS_CHECK(member, since, name, parameters) \
  if (nccl.version < since) nccl.functions.member = nullptr;
    PERSEUS_NEWER_NCCL_FUNCTIONS(PERSEUS_CHECK)
#undef PERSEUS_CHECK
    if (nccl.version < kOldestNccl) {
      nccl.problem = "it is " + nccl_version(nccl.version) + ", and " + nccl_version(kOldestNccl) +
                     " or newer is needed";
    }
  }
}

template <typename Functions>
std::string describe(const FoundLibrary<Functions>& library, const std::string& version) {
  if (library.path.empty()) return "none found (" + library.problem + ")";
  std::string text = (library.version > 0 ? version + ", " : "") + library.path;
  return library.is_usable() ? text : text + ": not usable, " + library.problem;
}

CudaLibraries open_all(const std::string& folders) {
  const SearchPath search{split_folders(folders), g_folders};
  CudaLibraries libraries;
  libraries.driver = find<CudaDriver>(search, {"libcuda.so.1"});
  libraries.runtime = find<CudaRuntime>(search, {"libcudart.so.13", "libcudart.so.12"});
  libraries.nccl = find<Nccl>(search, {"libnccl.so.2"});
  check_versions(libraries);
  return libraries;
}

}  // namespace

Result<const CudaDriver*> CudaLibraries::usable_driver() const {
  if (driver.is_usable()) return &driver.functions;
  return Status::unsupported(
      "the CUDA driver cannot be used: " + (driver.path.empty() ? "" : driver.path + ": ") +
      driver.problem + "; `perseusrun --check-build` says where it was looked for");
}

void add_library_folders(const std::string& folders) {
  std::lock_guard lock(g_mutex);
  for (std::string& folder : split_folders(folders)) g_folders.push_back(std::move(folder));
}

const CudaLibraries& load_cuda(const std::string& folders) {
  std::lock_guard lock(g_mutex);
  // Never destroyed: the libraries stay open.
  static const CudaLibraries* loaded = nullptr;
  if (loaded == nullptr) {
    loaded = new CudaLibraries(open_all(folders));
    for (const auto& [what, found] : describe_cuda(*loaded)) {
      PERSEUS_LOG(kDebug, what << ": " << found);
    }
  }
  return *loaded;
}

std::vector<std::pair<std::string, std::string>> describe_cuda(const CudaLibraries& libraries) {
  return {
      {"CUDA driver", describe(libraries.driver, cuda_version(libraries.driver.version))},
      {"CUDA runtime", describe(libraries.runtime, cuda_version(libraries.runtime.version))},
      {"NCCL", describe(libraries.nccl, nccl_version(libraries.nccl.version))},
  };
}

}  // namespace perseus
