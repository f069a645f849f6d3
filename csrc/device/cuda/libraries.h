// CUDA's driver and runtime, and NCCL, opened at run time: preferably the ones that are already in
// the process (the framework's own), then those of Python packages, then the system's. Without them
// everything else works. describe_cuda says what was found, or why not.
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
  std::string path;     // empty: not found
  std::string problem;  // empty: usable

  bool is_usable() const { return problem.empty(); }
};

struct CudaLibraries {
  FoundLibrary<CudaDriver> driver;
  FoundLibrary<CudaRuntime> runtime;
  FoundLibrary<Nccl> nccl;

  // The driver, or an error that says what is missing.
  Result<const CudaDriver*> usable_driver() const;
};

// Adds folders of Python packages, which are searched if the process does not have the libraries.
// Call before load_cuda. Any thread.
void add_library_folders(const std::string& folders);

// Opens the libraries at the first call; later calls return the same. `folders`, separated by
// colons, are searched before everything else (PERSEUS_CUDA_LIBRARY_PATH). Any thread.
const CudaLibraries& load_cuda(const std::string& folders);

// A readable line for each library that says what was found.
std::vector<std::pair<std::string, std::string>> describe_cuda(const CudaLibraries& libraries);

}  // namespace perseus
