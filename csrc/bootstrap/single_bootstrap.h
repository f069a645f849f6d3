// The bootstrap of a world of one.
#pragma once

#include <string>
#include <vector>

#include "base/secret.h"
#include "bootstrap/bootstrap.h"

namespace perseus {

class SingleBootstrap : public Bootstrap {
 public:
  // `mpi`: if MPI launched this process, together with others that are not in its world.
  explicit SingleBootstrap(const Mpi* mpi = nullptr) : mpi_(mpi) {}

  int rank() const override { return 0; }
  int size() const override { return 1; }
  const std::string& secret() const override { return secret_; }
  Result<std::vector<std::string>> all_gather(const std::string& mine,
                                              std::chrono::milliseconds) override {
    return std::vector<std::string>{mine};
  }
  const Mpi* mpi() const override { return mpi_; }

 private:
  const Mpi* mpi_;
  const std::string secret_ = random_bytes(kSecretBytes);
};

}  // namespace perseus
