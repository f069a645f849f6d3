// The protocol between a rank and the rendezvous server, over one TCP connection for each
// generation of a world:
//
//   server  Greeting   magic and a random challenge
//   client  Hello      its own challenge, the address that it has called, its rank and world, and
//                      an HMAC over all of that and the server's challenge. If it calls once more,
//                      because it has got no answer, the new connection takes the old one's place
//   server  Welcome; or
//           Refusal    the reason
//   then any number of rounds, in step on all ranks:
//   client  Contribution
//   server  Gathered   the contributions of all ranks, in rank order; or
//           Failure    the same for every rank of the world that is still there
//
// The greeting has a fixed size. Everything else is a frame: a length in four bytes (integers are
// little-endian), then that many bytes. Both ends limit the length that they accept. After the
// hello, each frame ends with its tag in a session whose keys come from the secret, the greeting
// and the hello. So the first answer proves that the server knows the secret, and nobody in between
// can change what the ranks tell each other.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/session.h"
#include "base/status.h"

namespace perseus::rendezvous {

inline constexpr std::string_view kMagic = "PERSRDV5";
inline constexpr size_t kChallengeBytes = 32;
inline constexpr size_t kGreetingBytes = kMagic.size() + kChallengeBytes;
inline constexpr size_t kCallerBytes = 16;
inline constexpr size_t kMacBytes = 32;
inline constexpr size_t kMaxAddressBytes = 64;
inline constexpr size_t kMaxContributionBytes = 1 << 20;
inline constexpr size_t kMaxTextBytes = 1 << 16;

// Which rank of which world a client is.
struct Hello {
  std::string challenge;
  // Random, and the same in all calls that a process makes for one meeting: it is not another
  // process with the same rank.
  std::string caller;
  std::string called;  // the address of the server, "10.0.0.1:4711"
  uint32_t generation = 0;
  uint32_t rank = 0;  // in the world
  uint32_t size = 0;  // of the world
  // The launched ranks that form the world, in rank order; empty: all.
  std::vector<uint32_t> ranks;
  bool is_numbered = false;  // the launcher has chosen the generation
};

struct Contribution {
  uint32_t round = 0;
  uint32_t time_out_ms = 0;  // the server answers by then
  std::string bytes;
};

// A frame from the server.
enum class Answer : uint8_t { kWelcome = 0, kRefused = 1, kGathered = 2, kFailed = 3 };

// Bounds on what frames hold. Those from a client, whose world has at most `job_size` ranks.
size_t max_hello_bytes(uint32_t job_size);
size_t max_contribution_frame_bytes();
// Bound on a frame from the server of a world of `size` ranks.
size_t max_answer_bytes(uint32_t size);

std::string frame(std::string_view payload);
// With the tag of the next message.
std::string frame(std::string_view payload, MessageSequence& outgoing);
// Takes the tag off what a frame holds. Returns false if it is not that of the next message.
bool open_frame(std::string& payload, MessageSequence& incoming);

std::string client_mac(std::string_view secret, std::string_view server_challenge,
                       std::string_view hello_body);
// `hello`: the hello with its MAC.
Session make_session(std::string_view secret, std::string_view server_challenge,
                     std::string_view hello, Role mine);

// The hello without its MAC, which follows it in the same frame.
std::string encode(const Hello& hello);
bool decode(std::string_view body, Hello& hello);
std::string encode(const Contribution& contribution);
bool decode(std::string_view payload, Contribution& contribution);

std::string encode_welcome();
std::string encode_gathered(const std::vector<std::string>& contributions);
// kRefused or kFailed.
std::string encode_error(Answer answer, const Status& why);

// A decoded frame from the server; `kind` says which fields are set.
struct Decoded {
  Answer kind = Answer::kFailed;
  std::vector<std::string> gathered;
  Status error;
};
bool decode(std::string_view payload, Decoded& decoded);

}  // namespace perseus::rendezvous
