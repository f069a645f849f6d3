// CUDA's driver and runtime and NCCL, opened while the program runs: the ones that are in the
// process already (the framework's own) first, then those of Python packages, then the system's.
// Without them all else works; what was found, or why not, is told by describe_cuda.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "device/cuda/driver.h"
#include "device/cuda/nccl.h"
#include "device/cuda/runtime.h"

namespace perseus {

// One library: its functions, or why it cannot be used.
template <typename Functions>
struct FoundLibrary {
  Functions functions;
  int version = 0;      // as the library numbers it
  std::string path;     // empty: there is none
  std::string problem;  // empty: it can be used

  bool is_usable() const { return problem.empty(); }
};

struct CudaLibraries {
  FoundLibrary<CudaDriver> driver;
  FoundLibrary<CudaRuntime> runtime;
  FoundLibrary<Nccl> nccl;

  // The driver, or an error that says what is missing.
  Result<const CudaDriver*> usable_driver() const;
};

// Folders in which they may lie, where neither the process nor the system's loader has them: of
// Python packages. Before load_cuda. Any thread.
void add_library_folders(const std::string& folders);

// Opens them at the first call; later ones give the same. `folders`, separated by colons, are
// looked through before all else: PERSEUS_CUDA_LIBRARY_PATH. Any thread.
const CudaLibraries& load_cuda(const std::string& folders);

// What was found, for people: a line for each library.
std::vector<std::pair<std::string, std::string>> describe_cuda(const CudaLibraries& libraries);

}  // namespace perseus
