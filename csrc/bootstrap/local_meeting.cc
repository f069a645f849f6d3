#include "bootstrap/local_meeting.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/interruption.h"
#include "base/secret.h"
#include "base/start_thread.h"
#include "bootstrap/local_sockets.h"

namespace perseus {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Clock = Socket::Clock;

// Rank 0's message: the port in two bytes and the secret; or a zero port, a status code in two
// bytes and a text of up to kMostText bytes, to the end of the stream.
constexpr size_t kHeadBytes = 4;
constexpr size_t kMostText = 4096;
// For rank 0 to answer a caller that the kernel has let in.
constexpr seconds kAnswerTime{5};
constexpr seconds kDeclineTime{1};

std::string head(uint16_t port, uint16_t code) {
  std::string out;
  for (const uint16_t value : {port, code}) {
    out += static_cast<char>(value);
    out += static_cast<char>(value >> 8);
  }
  return out;
}

uint16_t number_at(std::string_view bytes, size_t place) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(bytes[place + i]); };
  return static_cast<uint16_t>(byte(0) | byte(1) << 8);
}

Socket open_socket() {
  return Socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

// Says it to the next caller, and returns whether that is a process of this user. Waits for a
// caller for so long; -1: without end.
bool tell_next(const Socket& listener, const std::string& said, milliseconds wait) {
  pollfd entry{listener.fd(), POLLIN, 0};
  if (poll(&entry, 1, static_cast<int>(wait.count())) <= 0) return false;
  const Socket caller(accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!caller) {
    // For example, out of descriptors. Callers try again.
    if (errno != EINTR && errno != ECONNABORTED && errno != EAGAIN) {
      std::this_thread::sleep_for(milliseconds(100));
    }
    return false;
  }
  // So few bytes always fit into the socket's buffer as a whole.
  return peer_of(caller.fd()).is_ours() &&
         send(caller.fd(), said.data(), said.size(), MSG_NOSIGNAL) >= 0;
}

// Returns the process that listens there, if one answers.
std::optional<LocalPeer> listening_at(const LocalSocketName& address) {
  const Socket socket = open_socket();
  if (!socket || connect(socket.fd(), address.get(), address.size) != 0) return std::nullopt;
  return peer_of(socket.fd());
}

// Returns 0, or an errno.
int try_listen(const LocalSocketName& address, Socket& listener) {
  listener = open_socket();
  if (!listener || bind(listener.fd(), address.get(), address.size) != 0) return errno;
  return listen(listener.fd(), SOMAXCONN) == 0 ? 0 : errno;
}

std::string is_taken(const LocalSocketName& address, const LocalPeer& holder) {
  return "the name " + address.to_string() + " of a Unix socket is held by " + holder.to_string();
}

Status cannot_meet(const std::string& why) {
  return Status::unreachable(
      "the ranks of this host cannot meet: " + why +
      "; end that process, or set PERSEUS_SECRET and PERSEUS_MASTER_PORT, the same for all ranks");
}

Result<LocalMeeting> hear(Socket& rank_0, Clock::time_point deadline) {
  std::string bytes(kHeadBytes, '\0');
  PERSEUS_RETURN_IF_ERROR(rank_0.receive_exactly(bytes.data(), bytes.size(), deadline));
  LocalMeeting meeting;
  meeting.port = number_at(bytes, 0);
  if (meeting.port != 0) {
    meeting.secret.resize(kSecretBytes);
    PERSEUS_RETURN_IF_ERROR(
        rank_0.receive_exactly(meeting.secret.data(), meeting.secret.size(), deadline));
    return meeting;
  }
  std::string text;
  char byte;
  while (text.size() < kMostText && rank_0.receive_exactly(&byte, 1, deadline).is_ok()) {
    text += byte;
  }
  return Status(error_code(number_at(bytes, 2)), "on rank 0: " + text);
}

}  // namespace

Result<LocalMeetingPlace> LocalMeetingPlace::take(const std::string& name) {
  std::vector<LocalSocketName> places = {known_socket_name(name)};
  Socket listener;
  int error = try_listen(places[0], listener);
  if (error == EADDRINUSE) {
    const std::vector<LocalSocketName> more = find_fresh_socket_names(name);
    places.insert(places.end(), more.begin(), more.end());
    for (const LocalSocketName& place : places) {
      const LocalPeer holder = listening_at(place).value_or(LocalPeer());
      // The other ranks would ask that process.
      if (holder.is_ours()) return cannot_meet(is_taken(place, holder));
    }
    places[0] = fresh_socket_name(name);
    error = try_listen(places[0], listener);
  }
  if (error != 0) return cannot_meet(places[0].to_string() + ": " + std::strerror(error));
  return LocalMeetingPlace(std::move(listener));
}

Status LocalMeetingPlace::tell(const LocalMeeting& meeting) && {
  std::thread server;
  PERSEUS_RETURN_IF_ERROR(start_thread(
      server, "telling the ranks of this host where to meet",
      [listener = std::move(listener_), said = head(meeting.port, 0) + meeting.secret] {
        while (true) tell_next(listener, said, milliseconds(-1));
      }));
  server.detach();
  return {};
}

void LocalMeetingPlace::decline(const Status& why, int others) && {
  // After these two a rank asks again, as after a connection that broke.
  const bool is_passing = why.code() == StatusCode::kAborted || why.code() == StatusCode::kTimedOut;
  const StatusCode code = is_passing ? StatusCode::kUnreachable : why.code();
  const std::string said =
      head(0, static_cast<uint16_t>(code)) + std::string(why.message()).substr(0, kMostText);
  const Clock::time_point end = Clock::now() + kDeclineTime;
  while (others > 0) {
    const auto left = std::chrono::ceil<milliseconds>(end - Clock::now());
    if (left.count() <= 0 || is_interrupted()) return;
    others -= tell_next(listener_, said, std::min(left, kInterruptionCheck)) ? 1 : 0;
  }
}

Result<LocalMeeting> find_local_meeting(const std::string& name, Clock::time_point deadline) {
  milliseconds pause{5};
  while (true) {
    std::string why;  // at the name where rank 0 should be
    std::vector<LocalSocketName> places = find_fresh_socket_names(name);
    places.insert(places.begin(), known_socket_name(name));
    for (const LocalSocketName& place : places) {
      Socket socket = open_socket();
      std::string failure;
      if (!socket || connect(socket.fd(), place.get(), place.size) != 0) {
        failure = place.to_string() + ": " + std::strerror(errno);
      } else if (const LocalPeer holder = peer_of(socket.fd()); !holder.is_ours()) {
        failure = is_taken(place, holder);
      } else {
        const auto until = std::min(deadline, Clock::now() + kAnswerTime);
        Result<LocalMeeting> meeting = hear(socket, until);
        const StatusCode code = meeting.status().code();
        if (code != StatusCode::kAborted && code != StatusCode::kTimedOut) return meeting;
        failure = meeting.status().message();
      }
      if (why.empty()) why = failure;
      if (Clock::now() >= deadline) break;  // anybody may have made any number of places
    }
    if (Clock::now() + pause >= deadline) {
      return Status::unreachable("rank 0, on this host, did not tell in time where to meet: " +
                                 why);
    }
    if (is_interrupted()) return interrupted_status();
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, milliseconds(200));
  }
}

}  // namespace perseus
