// The calls of a thread since ncclGroupStart.
#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "collective.h"
#include "communicator.h"

namespace perseus::standin {

// Each thread has one.
class Group {
 public:
  static Group& of_this_thread();

  void start() { ++depth_; }
  // Launches all calls if this ends the outermost group. kNcclInvalidUsage outside a group.
  NcclResult end();
  bool is_open() const { return depth_ > 0; }
  // Launched at the end of the group, or at once if there is none.
  void add(std::shared_ptr<Communicator> communicator, Collective collective, CuStream stream);
  // Waited for at the end of the group.
  void add_start(std::shared_ptr<Communicator> communicator);

 private:
  struct Launch {
    std::shared_ptr<Communicator> communicator;
    Collective collective;
    CuStream stream;
  };

  int depth_ = 0;
  std::vector<Launch> launches_;
  std::vector<std::shared_ptr<Communicator>> starts_;
};

}  // namespace perseus::standin
