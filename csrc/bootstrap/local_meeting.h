// Where ranks meet that are all on one host and whose launcher is none of ours. Rank 0 makes a
// secret, listens at a port that nobody could know before, and tells both to the processes of its
// own user alone. Each side learns the other's user from the kernel, so this does not depend on
// anything that others could guess, read or leave behind.
//
// It is told over a Unix socket with an abstract name (unix(7)), which leaves no file. Another user
// may have taken that name. Then it has one that nobody can know before, and which the others find
// among all sockets that are there (/proc/net/unix). Those of other users are passed over.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"
#include "bootstrap/socket.h"

namespace perseus {

struct LocalMeeting {
  std::string secret;  // kSecretBytes
  uint16_t port = 0;   // of the rendezvous
};

// Rank 0's side.
class LocalMeetingPlace {
 public:
  // kUnreachable if another process of this user has the name; the error says which.
  static Result<LocalMeetingPlace> take(const std::string& name);
  // Tells every process of this user that asks, from a thread of its own, until this process ends.
  Status tell(const LocalMeeting& meeting) &&;
  // Tells `others` processes of this user why there is no meeting. Waits for them for a second.
  void decline(const Status& why, int others) &&;

 private:
  explicit LocalMeetingPlace(Socket listener) : listener_(std::move(listener)) {}
  Socket listener_;
};

// Asks rank 0, until the deadline, since it may come later. Its error if it has declined;
// kUnreachable if it does not come.
Result<LocalMeeting> find_local_meeting(const std::string& name,
                                        Socket::Clock::time_point deadline);

}  // namespace perseus
