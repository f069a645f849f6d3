// The ranks' side of the rendezvous: one connection to its server.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bootstrap/bootstrap.h"
#include "bootstrap/socket.h"

namespace perseus {

// One thread at a time.
class RendezvousBootstrap : public Bootstrap {
 public:
  struct Options {
    // The job's is at one of them. At least one.
    std::vector<HostPort> servers;
    std::string secret;  // bytes
    int rank = 0;        // in the world
    int size = 1;        // of the world
    // The launched ranks that form the world, in rank order; empty: all.
    std::vector<int> ranks;
    // Of all, those that have not ended: rank and size above are as launched, and change.
    bool survivors = false;
    // Else the launcher does. For error texts.
    bool rank_0_serves = false;
    int generation = 0;
    // For connecting, which is tried until it ends: the server may start after its clients.
    std::chrono::milliseconds time_out{30000};
  };
  static Result<std::unique_ptr<Bootstrap>> create(Options options);

  int rank() const override { return options_.rank; }
  int size() const override { return options_.size; }
  int launched_rank(int rank) const override {
    return options_.ranks.empty() ? rank : options_.ranks[rank];
  }
  const std::string& secret() const override { return options_.secret; }
  Result<std::vector<std::string>> all_gather(const std::string& mine,
                                              std::chrono::milliseconds time_out) override;

 private:
  RendezvousBootstrap(const Options& options, Socket socket)
      : options_(options), socket_(std::move(socket)) {}

  // Makes the world that of the ranks that come.
  Status find_survivors(std::chrono::milliseconds time_out);

  Options options_;
  Socket socket_;
  uint32_t round_ = 0;
  Status failure_;  // of an earlier round: the connection is of no more use
};

}  // namespace perseus
