#include "group.h"

#include <algorithm>

#include "failure.h"

namespace perseus::standin {

Group& Group::of_this_thread() {
  thread_local Group group;
  return group;
}

NcclResult Group::end() {
  if (depth_ == 0) return kNcclInvalidUsage;
  if (--depth_ > 0) return kNcclSuccess;
  NcclResult result = kNcclSuccess;
  for (const auto& communicator : std::exchange(starts_, {})) {
    if (const NcclResult error = communicator->wait_for_start(); error != 0) result = error;
  }
  for (Launch& launch : std::exchange(launches_, {})) {
    launch.communicator->launch(std::move(launch.collective), launch.stream);
  }
  return result;
}

void Group::add(std::shared_ptr<Communicator> communicator, Collective collective,
                CuStream stream) {
  if (depth_ == 0) {
    communicator->launch(std::move(collective), stream);
    return;
  }
  if (collective.kind == Collective::Kind::kMessages) {
    // A group's messages of one communicator go together.
    const auto same = std::find_if(launches_.begin(), launches_.end(), [&](const Launch& each) {
      return each.communicator == communicator &&
             each.collective.kind == Collective::Kind::kMessages;
    });
    if (same != launches_.end()) {
      if (same->stream != stream)
        fail("a group has messages on two streams, which is not done here");
      same->collective.messages.push_back(collective.messages.front());
      return;
    }
  }
  launches_.push_back({std::move(communicator), std::move(collective), stream});
}

void Group::add_start(std::shared_ptr<Communicator> communicator) {
  starts_.push_back(std::move(communicator));
}

}  // namespace perseus::standin
