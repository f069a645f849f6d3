#include "mpi/mpi_library.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

namespace perseus {
namespace {

using Names = std::vector<std::string>;

Names candidates(const std::map<std::string, std::string>& variables, const std::string& launcher,
                 const std::set<std::string>& files) {
  return mpi_library_candidates(
      [&](const char* name) -> const char* {
        const auto found = variables.find(name);
        return found == variables.end() ? nullptr : found->second.c_str();
      },
      launcher, [&](const std::string& file) { return files.count(file) > 0; });
}

TEST(MpiLibraryCandidates, AreTheLoadersNamesWhenNothingElseIsThere) {
  EXPECT_EQ(candidates({}, "", {}), (Names{"libmpi.so.40", "libmpi_abi.so.1", "libmpi.so.12"}));
}

TEST(MpiLibraryCandidates, BeginWithTheKindThatLaunchedTheProcess) {
  EXPECT_EQ(candidates({{"PMI_RANK", "0"}}, "", {}).front(), "libmpi.so.12");
  EXPECT_EQ(candidates({{"OMPI_COMM_WORLD_RANK", "0"}, {"PMI_RANK", "0"}}, "", {}).front(),
            "libmpi.so.40");
}

TEST(MpiLibraryCandidates, TheLaunchersOwnFolderComesBeforePathAndPrefixes) {
  const Names names =
      candidates({{"PATH", "/none:/usr/bin"}, {"MPI_HOME", "/opt/mpi"}}, "/venv/bin/prterun",
                 {"/usr/bin/mpirun", "/venv/bin/../lib/libmpi.so.40",
                  "/usr/bin/../lib/libmpi.so.12", "/opt/mpi/lib/libmpi.so.40"});
  ASSERT_GE(names.size(), 3u);
  EXPECT_EQ(names[0], "/venv/bin/../lib/libmpi.so.40");
  EXPECT_EQ(names[1], "/usr/bin/../lib/libmpi.so.12");
  EXPECT_EQ(names[2], "/opt/mpi/lib/libmpi.so.40");
}

TEST(LoadMpi, NamesTheLibraryThatCannotBeOpened) {
  const auto mpi = load_mpi("/nowhere/libmpi.so");
  EXPECT_EQ(mpi.status().code(), StatusCode::kUnsupported);
  EXPECT_NE(mpi.status().message().find("/nowhere/libmpi.so"), std::string::npos);
  EXPECT_NE(mpi.status().message().find("PERSEUS_MPI_LIBRARY"), std::string::npos);
}

TEST(LoadMpi, RefusesALibraryThatIsNoMpi) {
  const auto mpi = load_mpi("libc.so.6");
  EXPECT_EQ(mpi.status().code(), StatusCode::kUnsupported);
  EXPECT_NE(mpi.status().message().find("not an MPI library"), std::string::npos)
      << mpi.status().message();
}

}  // namespace
}  // namespace perseus
