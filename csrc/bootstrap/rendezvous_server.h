// The server through which the ranks of a job meet: serves their all-gathers, for any number of
// worlds and generations, on a thread of its own that sleeps while no client sends. It acts only on
// clients that prove that they know the job's secret; others cost at most 256 descriptors, each for
// five seconds at most; see base/caller_pool.h for how ranks get through a flood of them. (The
// secret keeps other programs out. It does not protect against an attacker who can modify the
// traffic.)
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"

namespace perseus {

// Any thread.
class RendezvousServer {
 public:
  // Serves a job of `size` ranks on all of `addresses` (an empty string: every interface) at `port`
  // (0: any free port). `secret` is the job's, as bytes. `hosts` are the ranks' hosts, for errors,
  // or empty.
  static Result<std::unique_ptr<RendezvousServer>> start(const std::vector<std::string>& addresses,
                                                         uint16_t port, int size,
                                                         const std::string& secret,
                                                         std::vector<std::string> hosts = {});
  static Result<std::unique_ptr<RendezvousServer>> start(const std::string& address, uint16_t port,
                                                         int size, const std::string& secret,
                                                         std::vector<std::string> hosts = {}) {
    return start(std::vector{address}, port, size, secret, std::move(hosts));
  }
  // Like start, but without a thread: what has come is served when run_once is called. For tests.
  static Result<std::unique_ptr<RendezvousServer>> listen(const std::vector<std::string>& addresses,
                                                          uint16_t port, int size,
                                                          const std::string& secret,
                                                          std::vector<std::string> hosts = {});
  // Returns whether there was anything to do.
  bool run_once();
  // Stops the server; clients that still wait see their connections close.
  ~RendezvousServer();

  uint16_t port() const;
  // Serves at another port, too.
  Status also_listen(const std::vector<std::string>& addresses, uint16_t port);

  // The launcher starts one more rank, on this host.
  void add_rank(std::string host);
  // The process of this launched rank has ended, so no world waits for it any more. `how` goes into
  // errors: "exited with code 1".
  void note_ended(int rank, std::string how);
  // Returns whether these launched ranks have met here, in this order, and call their world this
  // (WorldKey::name), which nobody else can know.
  bool has_met(const std::string& world, const std::vector<int>& ranks) const;

 private:
  class Service;
  explicit RendezvousServer(std::unique_ptr<Service> service);
  std::unique_ptr<Service> service_;
};

}  // namespace perseus
