// Runs the same tests on every rank, under mpirun. Rank 0 prints all; other ranks print failures.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>

#include "real_mpi/mpi_world.h"

namespace {

class FailuresOnly : public testing::EmptyTestEventListener {
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (!result.failed()) return;
    std::fprintf(stderr, "rank %s: %s:%d: %s\n", rank.c_str(), result.file_name(),
                 result.line_number(), result.message());
  }

 public:
  explicit FailuresOnly(std::string name) : rank(std::move(name)) {}
  const std::string rank;
};

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const char* rank = std::getenv("OMPI_COMM_WORLD_RANK");
  if (rank == nullptr) rank = std::getenv("PMI_RANK");
  if (rank == nullptr) {
    std::fprintf(stderr, "run this under mpirun: tests/cpp/real_mpi/run.sh\n");
    return 2;
  }
  if (std::string(rank) != "0") {
    auto& listeners = testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new FailuresOnly(rank));
  }
  perseus::world_maker = {perseus::this_process().size, perseus::run_world_of_processes};
  return RUN_ALL_TESTS();
}
