#include "bootstrap/rendezvous_bootstrap.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "base/hmac.h"
#include "base/interruption.h"
#include "base/secret.h"
#include "bootstrap/rendezvous_protocol.h"
#include "observe/log.h"

namespace perseus {
namespace {

using namespace rendezvous;
using Clock = Socket::Clock;

constexpr std::chrono::milliseconds kFirstRetry{20};
constexpr std::chrono::milliseconds kSlowestRetry{500};
// The server has closed the connection: in a flood it does so at random (base/caller_pool.h).
constexpr std::chrono::milliseconds kSlowestRetryAfterClose{50};
// A server that accepts a connection and sends nothing for this long is another service, or the
// connection was lost.
constexpr std::chrono::seconds kHandshakeTime{5};
// At first, for what may be waited for at each of several places; then twice as much in each round.
// A stranger may keep silent at a place, and a firewall swallow what goes there.
constexpr std::chrono::seconds kFirstPatience{1};
// For connecting. In a flood the kernel drops requests, and asks for a dropped one again after 1,
// 2, 4, 8 ... seconds.
constexpr std::chrono::seconds kConnectTime{5};

// So long the word of rank 0 is awaited before it is looked for elsewhere.
constexpr std::chrono::seconds kWordTime{3};

std::string describe(const HostPort& server) { return "the rendezvous at " + to_string(server); }

std::string describe(const RendezvousBootstrap::Options& options) {
  std::string text = describe(options.servers[0]);
  for (size_t i = 1; i < options.servers.size(); ++i) {
    text +=
        (i + 1 < options.servers.size() ? ", " : " or ") + std::to_string(options.servers[i].port);
  }
  return text;
}

// The error for a connection to the server that has failed.
Status connection_lost(const RendezvousBootstrap::Options& options, const Status& status) {
  if (status.code() != StatusCode::kAborted || !options.rank_0_serves) {
    return Status(status.code(), describe(options) + ": " + status.message());
  }
  return Status::aborted("rank 0, which serves " + describe(options) +
                         ", has ended or closed it: " + status.message());
}

// `is_authentic`: whether the answer has the tag that it should have. If it has not, only its kind
// is known.
Result<Decoded> receive_answer(Socket& socket, MessageSequence& incoming, size_t most,
                               Clock::time_point deadline, bool& is_authentic) {
  unsigned char head[4];
  PERSEUS_RETURN_IF_ERROR(
      socket.receive_exactly(reinterpret_cast<char*>(head), sizeof(head), deadline));
  const uint32_t bytes = head[0] | head[1] << 8 | head[2] << 16 | uint32_t{head[3]} << 24;
  if (bytes > most) return Status::internal("it sent a message of an impossible length");
  // The length is not proven yet, so memory is taken only for what comes.
  constexpr size_t kPiece = 1 << 20;
  std::string payload;
  while (payload.size() < bytes) {
    const size_t before = payload.size();
    payload.resize(std::min<size_t>(bytes, before + kPiece));
    PERSEUS_RETURN_IF_ERROR(
        socket.receive_exactly(payload.data() + before, payload.size() - before, deadline));
  }
  Decoded decoded;
  is_authentic = open_frame(payload, incoming);
  if (!is_authentic) {
    const bool has_kind = !payload.empty();
    if (has_kind) decoded.kind = static_cast<Answer>(payload[0]);
    return decoded;
  }
  if (!decode(payload, decoded)) return Status::internal("it sent a malformed message");
  return decoded;
}

Hello hello_of(const RendezvousBootstrap::Options& options, std::string called) {
  Hello hello;
  hello.challenge = random_bytes(kChallengeBytes);
  hello.caller = options.caller;
  hello.called = std::move(called);
  hello.generation = static_cast<uint32_t>(options.generation);
  hello.rank = static_cast<uint32_t>(options.rank);
  hello.size = static_cast<uint32_t>(options.size);
  hello.ranks.assign(options.ranks.begin(), options.ranks.end());
  hello.is_numbered = options.is_numbered;
  return hello;
}

// With several places, another service may hold one of them for good and swallow what is sent
// there, while the job's own server is at another.
bool has_single_server(const RendezvousBootstrap::Options& options) {
  return options.servers.size() == 1;
}

// Anybody may listen where the server should be, before it does. So what is said there without a
// proof that its speaker knows the secret costs one attempt.
Status unproven(const Decoded& answer) {
  if (answer.kind != Answer::kRefused) {
    return Status::unreachable("it does not know the job's secret (PERSEUS_SECRET)");
  }
  return Status::invalid_argument(
      "it says that the secret is not this job's; PERSEUS_SECRET must be the same for all ranks, "
      "and the rendezvous address that of this job");
}

// Sets `final` if trying again, or at another place, would be of no use.
Result<Session> authenticate(Socket& socket, const RendezvousBootstrap::Options& options,
                             Clock::time_point deadline, bool& final) {
  char greeting[kGreetingBytes];
  PERSEUS_RETURN_IF_ERROR(socket.receive_exactly(greeting, sizeof(greeting), deadline));
  if (std::string_view(greeting, kMagic.size()) != kMagic) {
    return Status::unreachable("another service answers there");
  }
  const std::string_view challenge(greeting + kMagic.size(), kChallengeBytes);
  const std::string body = encode(hello_of(options, socket.peer_name()));
  const std::string hello = body + client_mac(options.secret, challenge, body);
  Session session = make_session(options.secret, challenge, hello, Role::kInitiator);
  PERSEUS_RETURN_IF_ERROR(socket.send_all(frame(hello), deadline));
  bool is_authentic = false;
  Result<Decoded> answer = receive_answer(
      socket, session.incoming, 8 + kMaxTextBytes + sizeof(MessageTag), deadline, is_authentic);
  if (!answer.is_ok()) return answer.status();
  const Decoded& decoded = answer.value();
  if (!is_authentic) return unproven(decoded);
  if (decoded.kind == Answer::kWelcome) return session;
  if (decoded.kind != Answer::kRefused) return Status::internal("it sent an unexpected answer");
  // If a program at this place passes messages on, the server is at another.
  final = has_single_server(options) || decoded.error.code() != StatusCode::kUnreachable;
  return decoded.error;
}

struct ProvenSocket {
  Socket socket;
  Session session;
};

struct Attempt {
  std::chrono::seconds connect_time, handshake_time;
  bool has_connected = false;  // to anybody
  bool final = false;          // trying again would be of no use
};

// Connects to the job's own server, if that is at `server`.
Result<ProvenSocket> connect_and_authenticate(const HostPort& server,
                                              const RendezvousBootstrap::Options& options,
                                              Clock::time_point deadline, Attempt& attempt) {
  bool& final = attempt.final;
  const auto connected = std::min(deadline, Clock::now() + attempt.connect_time);
  Result<Socket> socket = Socket::connect(server, connected, &final);
  attempt.has_connected = socket.is_ok();
  if (!socket.is_ok()) return socket.status();
  const auto until = std::min(deadline, Clock::now() + attempt.handshake_time);
  Result<Session> session = authenticate(socket.value(), options, until, final);
  if (!session.is_ok()) return session.status();
  return ProvenSocket{std::move(socket).value(), std::move(session).value()};
}

// Returns the places at which to look for the server now.
std::vector<HostPort> places_to_try(const std::vector<HostPort>& known, uint16_t left_port) {
  std::vector<HostPort> places = known;
  if (left_port == 0) return places;
  std::erase_if(places, [&](const HostPort& place) { return place.port == left_port; });
  places.insert(places.begin(), HostPort{known[0].host, left_port});
  return places;
}

}  // namespace

Result<std::unique_ptr<Bootstrap>> RendezvousBootstrap::create(Options options) {
  const Clock::time_point began = Clock::now();
  const Clock::time_point deadline = began + options.time_out;
  const std::vector<HostPort> known = options.servers;
  options.caller = random_bytes(kCallerBytes);
  auto pause = kFirstRetry;
  bool has_warned = false;
  Status failure;  // at the first place, where the server should be
  auto patience = kFirstPatience;
  while (true) {
    if (options.left_port) {
      const uint16_t left_port = options.left_port();
      if (left_port == 0 && Clock::now() < std::min(deadline - kSlowestRetry, began + kWordTime)) {
        if (is_interrupted()) return interrupted_status();
        std::this_thread::sleep_for(kFirstRetry);
        continue;
      }
      options.servers = places_to_try(known, left_port);
    }
    Status latest;
    bool are_all_taken = true;
    for (const HostPort& server : options.servers) {
      const bool is_first = &server == &options.servers[0];
      Attempt attempt{is_first ? kConnectTime : std::min(patience, kConnectTime),
                      has_single_server(options) ? kHandshakeTime : patience};
      Result<ProvenSocket> found = connect_and_authenticate(server, options, deadline, attempt);
      if (found.is_ok()) {
        options.servers = {HostPort(server)};
        return std::unique_ptr<Bootstrap>(new RendezvousBootstrap(
            options, std::move(found.value().socket), found.value().session));
      }
      if (is_interrupted()) return interrupted_status();
      const Status& status = found.status();
      are_all_taken = are_all_taken && attempt.has_connected;
      if (attempt.final) return Status(status.code(), describe(server) + ": " + status.message());
      if (status.code() == StatusCode::kInvalidArgument && !std::exchange(has_warned, true)) {
        PERSEUS_LOG(kWarning, "rank " << options.rank << ": " << describe(server) << ": "
                                      << status.message() << "; trying on");
      }
      if (latest.is_ok()) latest = status;
    }
    // An answer of an earlier round tells more than a time-out of this one.
    if (failure.is_ok() || latest.code() != StatusCode::kTimedOut) failure = latest;
    if (Clock::now() + pause >= deadline) {
      if (failure.code() == StatusCode::kInvalidArgument) {
        return Status::invalid_argument(describe(options) + ": " + failure.message());
      }
      return Status::unreachable(
          describe(options) + " could not be reached within " +
          std::to_string(options.time_out.count() / 1000.0).substr(0, 5) +
          " s: " + failure.message() +
          (are_all_taken && options.rank_0_serves
               ? "; another program answers at each of these ports, so rank 0 may have none of "
                 "them; its error, or `ss -ltnp` on its host, names who listens there"
               : "; check that the host is reachable from here and that its rank 0 or launcher "
                 "runs"));
    }
    const bool is_closed = latest.code() == StatusCode::kAborted;
    std::this_thread::sleep_for(is_closed ? std::min(pause, kSlowestRetryAfterClose) : pause);
    pause = std::min(pause * 2, kSlowestRetry);
    patience = std::min(patience * 2, kHandshakeTime);
  }
}

Result<std::vector<std::string>> RendezvousBootstrap::all_gather(
    const std::string& mine, std::chrono::milliseconds time_out) {
  if (!failure_.is_ok()) return failure_;
  if (mine.size() > kMaxContributionBytes) {
    return Status::invalid_argument("a rank may give " + std::to_string(kMaxContributionBytes) +
                                    " bytes to the rendezvous, not " + std::to_string(mine.size()));
  }
  const Clock::time_point deadline = Clock::now() + time_out;
  // The server answers a little earlier, so that its list of missing ranks comes in time.
  const auto margin = std::min<std::chrono::milliseconds>(time_out / 10, std::chrono::seconds(1));
  Contribution contribution;
  contribution.round = round_++;
  contribution.time_out_ms = static_cast<uint32_t>((time_out - margin).count());
  contribution.bytes = mine;
  const Status sent = socket_.send_all(frame(encode(contribution), session_.outgoing), deadline);
  if (!sent.is_ok()) return failure_ = connection_lost(options_, sent);
  bool is_authentic = false;
  Result<Decoded> answer = receive_answer(socket_, session_.incoming,
                                          max_answer_bytes(static_cast<uint32_t>(options_.size)),
                                          deadline, is_authentic);
  if (answer.is_ok() && !is_authentic) {
    answer = Status::aborted("something between it and this rank has changed what it sent");
  }
  if (!answer.is_ok()) return failure_ = connection_lost(options_, answer.status());
  Decoded& decoded = answer.value();
  if (decoded.kind == Answer::kGathered &&
      decoded.gathered.size() == static_cast<size_t>(options_.size)) {
    return std::move(decoded.gathered);
  }
  const Status status = decoded.kind == Answer::kFailed
                            ? decoded.error
                            : Status::internal("it sent an unexpected answer");
  return failure_ = Status(status.code(), describe(options_) + ": " + status.message());
}

}  // namespace perseus
