// Ranks launched by MPI exchange their addresses by MPI messages. The world's first rank gathers
// and distributes them, so it knows which ranks are missing.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bootstrap/bootstrap.h"
#include "mpi/mpi_process.h"

namespace perseus {

// Used by the thread that calls init.
class MpiBootstrap : public Bootstrap {
 public:
  // `ranks`: the launched ranks that form the world, in rank order; empty: all. This process must
  // be one of them. `own_secret`: what the user has set, the same on all ranks; empty: nothing.
  static Result<std::unique_ptr<Bootstrap>> create(const MpiProcess& process,
                                                   const std::vector<int>& ranks, int generation,
                                                   const std::string& own_secret,
                                                   std::chrono::milliseconds time_out);

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(launched_.size()); }
  int launched_rank(int rank) const override { return launched_[rank]; }
  const std::string& secret() const override { return secret_; }
  std::string secret_weakness() const override {
    return has_own_secret_ ? "" : "is carried by MPI, which encrypts nothing";
  }
  Result<std::vector<std::string>> all_gather(const std::string& mine,
                                              std::chrono::milliseconds time_out) override;
  const Mpi* mpi() const override { return process_.mpi; }

  // For the transport that moves data by MPI.
  const MpiProcess& process() const { return process_; }
  // The rank in process().comm of each rank of the world.
  const std::vector<int>& launched() const { return launched_; }
  int generation() const { return generation_; }

 private:
  using Clock = std::chrono::steady_clock;

  MpiBootstrap(const MpiProcess& process, std::vector<int> launched, int rank, int generation);

  // Makes the world's secret.
  Status share_secret(const std::string& own_secret, std::chrono::milliseconds time_out);
  // all_gather without MACs.
  Result<std::vector<std::string>> exchange(const std::string& mine,
                                            std::chrono::milliseconds time_out);
  Result<std::vector<std::string>> gather(const std::string& mine, Clock::time_point deadline);
  Status answer_all(const std::string& answer, Clock::time_point deadline);
  Result<std::vector<std::string>> contribute(const std::string& mine,
                                              std::chrono::milliseconds time_out);
  Status send(int to, const std::string& bytes, Clock::time_point deadline);
  Status receive(MpiMatchedMessage& arrival, std::string& bytes, Clock::time_point deadline);
  std::string name_missing(const std::vector<bool>& there) const;

  const MpiProcess process_;
  const std::vector<int> launched_;
  const int rank_;
  const int generation_;
  const int tag_;
  std::string secret_;
  bool has_own_secret_ = false;  // which secret_ comes from, and MPI has not carried
  uint32_t round_ = 0;
  Status failure_;
};

}  // namespace perseus
