// A connection to a rendezvous server, on which anything may be said. It reads along what it says,
// as the server must, and so knows what the server may answer.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bootstrap/rendezvous_protocol.h"
#include "fuzz/caller.h"
#include "fuzz/input.h"

namespace perseus::fuzz {

// What ranks that have proved themselves have said.
struct Contributed {
  rendezvous::Hello hello;
  rendezvous::Contribution contribution;
};

class RendezvousCaller {
 public:
  RendezvousCaller(const Endpoint& server, const std::string& secret, uint32_t job_size,
                   std::vector<Contributed>& contributed)
      : caller_(server),
        here_(server.to_string()),
        secret_(secret),
        job_size_(job_size),
        contributed_(contributed) {}

  Caller& caller() { return caller_; }
  bool has_greeting() const { return challenge_.size() == rendezvous::kChallengeBytes; }
  bool is_welcome() const { return welcome_; }
  bool is_refused() const { return refused_; }
  bool has_failed() const { return failed_; }
  // The contributions of all ranks to each round.
  const std::vector<std::vector<std::string>>& gathered() const { return gathered_; }
  // In how many rounds this has taken part.
  uint32_t rounds() const { return rounds_; }
  // All that was said here.
  const std::string& said() const { return said_; }

  // The frame of a hello, which proves that it knows `secret`.
  std::string hello(const rendezvous::Hello& hello, const std::string& secret) const {
    const std::string body = encode(hello);
    return rendezvous::frame(body + rendezvous::client_mac(secret, challenge_, body));
  }
  // The frame of a contribution, with the next tag.
  std::string contribution(const rendezvous::Contribution& contribution) {
    const std::string payload = encode(contribution);
    return mine_ ? rendezvous::frame(payload, mine_->outgoing) : rendezvous::frame(payload);
  }

  void say(const std::string& bytes) {
    said_ += bytes;
    if (has_greeting()) understand(bytes);
    caller_.send(bytes);
  }

  // Checks all that has come. Returns whether something has.
  bool read() {
    const bool came = caller_.read();
    if (!has_greeting() && caller_.received().size() >= rendezvous::kGreetingBytes) {
      const std::string greeting = caller_.take_received(rendezvous::kGreetingBytes);
      MUST(greeting.starts_with(rendezvous::kMagic));
      challenge_ = greeting.substr(rendezvous::kMagic.size());
      understand(said_);
    }
    while (has_greeting() && caller_.received().size() >= 4) {
      const std::string& received = caller_.received();
      const uint32_t bytes = length_of(received);
      MUST(mine_ && bytes <= rendezvous::max_answer_bytes(hello_.size));
      if (received.size() - 4 < bytes) break;
      std::string payload = caller_.take_received(4 + bytes).substr(4);
      rendezvous::Decoded answer;
      MUST(rendezvous::open_frame(payload, mine_->incoming) && decode(payload, answer));
      check(answer);
    }
    return came;
  }

 private:
  static uint32_t length_of(std::string_view bytes) {
    uint32_t length = 0;
    for (int i = 3; i >= 0; --i) length = length << 8 | static_cast<unsigned char>(bytes[i]);
    return length;
  }

  // Reads along.
  void understand(std::string_view bytes) {
    heard_ += bytes;
    while (!is_broken_ && heard_.size() >= 4) {
      const size_t length = length_of(heard_);
      const size_t most = mine_ ? rendezvous::max_contribution_frame_bytes()
                                : rendezvous::max_hello_bytes(job_size_);
      is_broken_ = length > most;
      if (is_broken_ || heard_.size() - 4 < length) return;
      std::string payload = heard_.substr(4, length);
      heard_.erase(0, 4 + length);
      mine_ ? understand_contribution(payload) : understand_hello(payload);
    }
  }

  void understand_hello(const std::string& payload) {
    const size_t size = payload.size() - std::min(payload.size(), rendezvous::kMacBytes);
    const std::string body = payload.substr(0, size);
    is_broken_ = payload.size() < rendezvous::kMacBytes || !decode(body, hello_);
    if (is_broken_) return;
    mine_.emplace(rendezvous::make_session(secret_, challenge_, payload, Role::kInitiator));
    servers_.emplace(rendezvous::make_session(secret_, challenge_, payload, Role::kAcceptor));
    is_proven_ = hello_.called == here_ &&
                 payload.substr(size) == rendezvous::client_mac(secret_, challenge_, body);
    is_broken_ = !is_proven_;
  }

  void understand_contribution(std::string& payload) {
    rendezvous::Contribution contribution;
    is_broken_ =
        !rendezvous::open_frame(payload, servers_->incoming) || !decode(payload, contribution);
    if (is_broken_) return;
    contributed_.push_back({hello_, contribution});
    ++rounds_;
  }

  void check(const rendezvous::Decoded& answer) {
    MUST(!refused_);
    switch (answer.kind) {
      case rendezvous::Answer::kWelcome:
        MUST(is_proven_ && !welcome_);
        welcome_ = true;
        break;
      case rendezvous::Answer::kRefused:
        MUST(!welcome_);
        refused_ = true;
        break;
      case rendezvous::Answer::kFailed:
        MUST(welcome_);
        failed_ = true;
        break;
      case rendezvous::Answer::kGathered:
        MUST(welcome_);
        check_gathered(answer.gathered);
        gathered_.push_back(answer.gathered);
        break;
    }
  }

  // Each rank's contribution must come from a connection that has proved to be that rank.
  void check_gathered(const std::vector<std::string>& gathered) const {
    MUST(gathered.size() == hello_.size);
    for (uint32_t rank = 0; rank < gathered.size(); ++rank) {
      bool is_known = false;
      for (const auto& [hello, contribution] : contributed_) {
        is_known = is_known ||
                   (hello.ranks == hello_.ranks && hello.rank == rank &&
                    contribution.round == gathered_.size() && contribution.bytes == gathered[rank]);
      }
      MUST(is_known);
    }
  }

  Caller caller_;
  const std::string here_;
  const std::string& secret_;
  const uint32_t job_size_;
  std::vector<Contributed>& contributed_;
  std::string said_, heard_, challenge_;
  rendezvous::Hello hello_;
  std::optional<Session> mine_, servers_;  // once a hello has been said
  // Whether the hello proves that it comes from the job; whether what follows cannot.
  bool is_proven_ = false, is_broken_ = false;
  uint32_t rounds_ = 0;
  bool welcome_ = false, refused_ = false, failed_ = false;
  std::vector<std::vector<std::string>> gathered_;
};

}  // namespace perseus::fuzz
