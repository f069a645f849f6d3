// A rank's side of the rendezvous: one connection to the server.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/session.h"
#include "bootstrap/bootstrap.h"
#include "bootstrap/socket.h"

namespace perseus {

// One thread at a time.
class RendezvousBootstrap : public Bootstrap {
 public:
  struct Options {
    // At least one; the job's own server is at one of them.
    std::vector<HostPort> servers;
    // If not null: returns the port that rank 0 has left word of, or 0. It is tried first. Anybody
    // may have written it.
    std::function<uint16_t()> left_port;
    std::string secret;  // bytes
    bool has_guessable_secret = false;
    int rank = 0;  // in the world
    int size = 1;  // of the world
    // The launched ranks that form the world, in rank order; empty: all.
    std::vector<int> ranks;
    // Otherwise the launcher does. For error texts.
    bool rank_0_serves = false;
    bool is_numbered = false;  // the launcher has chosen the generation
    int generation = 0;
    std::string caller = {};  // create() makes it up; see rendezvous::Hello
    // How long connecting is retried, since the server may start after its clients.
    std::chrono::milliseconds time_out{30000};
  };
  static Result<std::unique_ptr<Bootstrap>> create(Options options);

  int rank() const override { return options_.rank; }
  int size() const override { return options_.size; }
  int launched_rank(int rank) const override {
    return options_.ranks.empty() ? rank : options_.ranks[rank];
  }
  const std::string& secret() const override { return options_.secret; }
  std::string secret_weakness() const override {
    return options_.has_guessable_secret ? "is derived from ids that others can see" : "";
  }
  Result<std::vector<std::string>> all_gather(const std::string& mine,
                                              std::chrono::milliseconds time_out) override;

 private:
  RendezvousBootstrap(const Options& options, Socket socket, const Session& session)
      : options_(options), socket_(std::move(socket)), session_(session) {}

  Options options_;
  Socket socket_;
  Session session_;
  uint32_t round_ = 0;
  Status failure_;  // of an earlier round, after which the connection cannot be used
};

}  // namespace perseus
