// Finding the MPI library to speak to.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "mpi/mpi.h"

namespace perseus {

// The library of this process, opened when first asked for and then kept: `path` if not empty, else
// the one in the process already, else the first of mpi_library_candidates that opens. An error
// lists what was tried, and the next call tries again. Any thread.
Result<Mpi*> load_mpi(const std::string& path);

// Paths and names for dlopen, best first: beside the program that launched this process, beside the
// mpirun found in PATH, under the prefixes that MPI_HOME and its like name, then where the loader
// looks. `get` gives an environment variable or null; `launcher` is the parent's executable or
// empty; `exists` says whether there is a file.
std::vector<std::string> mpi_library_candidates(
    const std::function<const char*(const char*)>& get, const std::string& launcher,
    const std::function<bool(const std::string&)>& exists);

}  // namespace perseus
