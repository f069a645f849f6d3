// Finds and opens the MPI library.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "mpi/mpi.h"

namespace perseus {

// Returns this process's MPI library, which the first call opens: `path` if that is not empty, else
// the library that is already in the process, else the first of mpi_library_candidates that can be
// opened. An error lists what was tried, and the next call tries again. Any thread.
Result<Mpi*> load_mpi(const std::string& path);

// Paths and names for dlopen, best first: beside the program that launched this process, beside the
// mpirun found in PATH, under the prefixes that MPI_HOME and similar variables name, then the
// loader's own search path. `get` returns an environment variable or null, `launcher` is the
// parent's executable or empty, and `exists` says whether a file exists.
std::vector<std::string> mpi_library_candidates(
    const std::function<const char*(const char*)>& get, const std::string& launcher,
    const std::function<bool(const std::string&)>& exists);

}  // namespace perseus
