// Where the ranks of a job meet: serves their all-gathers, for any number of worlds and
// generations, on a thread of its own that sleeps while nobody speaks. Only who knows the job's
// secret is heard; strangers cost a bounded number of descriptors for a bounded time. (The secret
// keeps strangers out; it does not protect from somebody who can change the traffic of others.)
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
  // Serves a job of `size` ranks on all of `addresses` (an empty one: every interface) and `port`
  // (0: any free one). `secret` is the job's, as bytes. So many survivors as `least` go on without
  // the others. `hosts`: of each rank, for errors, or none.
  static Result<std::unique_ptr<RendezvousServer>> start(const std::vector<std::string>& addresses,
                                                         uint16_t port, int size,
                                                         const std::string& secret, int least = 1,
                                                         std::vector<std::string> hosts = {});
  static Result<std::unique_ptr<RendezvousServer>> start(const std::string& address, uint16_t port,
                                                         int size, const std::string& secret,
                                                         int least = 1,
                                                         std::vector<std::string> hosts = {}) {
    return start(std::vector{address}, port, size, secret, least, std::move(hosts));
  }
  // Stops; clients that still wait see the connection close.
  ~RendezvousServer();

  uint16_t port() const;

  // The process of this launched rank has ended: survivors need not wait for it, and all others
  // need not either. `how` goes into errors: "exited with code 1".
  void note_ended(int rank, std::string how);
  // Launched ranks without which survivors have gone on, for they did not come in time.
  std::vector<int> left_out() const;

 private:
  class Service;
  explicit RendezvousServer(std::unique_ptr<Service> service);
  std::unique_ptr<Service> service_;
};

}  // namespace perseus
