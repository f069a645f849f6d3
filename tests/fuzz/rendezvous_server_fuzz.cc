// Fuzzes the rendezvous server's states: strangers and ranks, several at once, say right and wrong
// things in any order, while time passes and processes end. No rank hears what has not proved to
// come from a rank; ranks that follow the protocol meet all the same; and nothing stays behind.
#include <array>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bootstrap/rendezvous_server.h"
#include "fuzz/callers_scene.h"
#include "fuzz/rendezvous_caller.h"
#include "observe/log.h"

using namespace perseus;
using namespace perseus::rendezvous;
using fuzz::RendezvousCaller;

namespace {

constexpr uint32_t kSize = 3;
// The world of the ranks that follow the protocol. No other caller asks for one of these members.
const std::vector<uint32_t> kProperRanks = {2, 1, 0};
constexpr uint32_t kRoundsOfProperRanks = 2;
constexpr std::array<std::chrono::milliseconds, 6> kTimes = {
    std::chrono::milliseconds(1), std::chrono::milliseconds(100), std::chrono::seconds(1),
    std::chrono::seconds(5),      std::chrono::seconds(60),       std::chrono::hours(2)};
const std::string kSecret(32, 's');
const std::string kOtherSecret(32, 'o');

class Meeting final : private fuzz::CallersScene<RendezvousCaller> {
 public:
  Meeting(const uint8_t* data, size_t size) : CallersScene(data, size) {
    auto server = RendezvousServer::listen({"127.0.0.1"}, 0, kSize, kSecret, {"h1", "h2", "h1"});
    MUST(server.is_ok());
    server_ = std::move(server).value();
    where_[0] = fuzz::loopback(server_->port());
  }

  void run() {
    const size_t descriptors = fuzz::open_descriptors();
    take_steps();
    while (proper_.size() < kSize || !have_met()) advance_proper_ranks();
    expect_to_be_alone(descriptors);
  }

 private:
  bool run_once() override { return server_->run_once(); }

  void take_step(uint8_t what, ConnectionPtr& caller) override {
    switch (what % 16) {
      case 0: caller = call(); return;
      case 1: return flood(where_, 300);
      case 2: return call_without_descriptors(caller);
      case 3: return pass_time(kTimes);
      case 4: return server_->note_ended(input_.number<uint8_t>() % kSize, "exited with code 1");
      case 5: return advance_proper_ranks();
      default: break;
    }
    if (!caller) caller = call();
    switch (what % 16) {
      case 6: caller->read(); break;
      case 7: caller->caller().close_one_way(); break;
      case 8: caller.reset(); break;
      case 9: caller->say(std::string(input_.text())); break;
      case 10: caller->say(part_of_another<uint16_t>(1 << 16)); break;
      case 11: caller->say(broken(hello_of(*caller))); break;
      case 12: caller->say(broken(contribution_of(*caller))); break;
      case 13: caller->say(contribution_of(*caller)); break;
      default: caller->say(hello_of(*caller)); break;
    }
  }

  ConnectionPtr call() override {
    return std::make_unique<RendezvousCaller>(where_[0], kSecret, kSize, contributed_);
  }

  // A hello of a rank that knows the secret, of any world but that of the proper ranks.
  std::string hello_of(RendezvousCaller& caller) {
    settle();
    caller.read();
    Hello hello;
    hello.challenge = std::string(kChallengeBytes, 'c');
    hello.called = where_[0].to_string();
    const auto world = input_.number<uint8_t>();
    hello.rank = world % 4;  // one too many
    hello.size = (world >> 2) % 8 == 7 ? 2 : kSize;
    hello.generation = world >> 6;
    const auto members = input_.number<uint8_t>();
    hello.is_numbered = members % 4 == 1;
    if (members % 4 == 2) hello.ranks = {members >> 2 & 3u, members >> 4 & 3u, 1};
    if (hello.ranks == kProperRanks) hello.ranks.pop_back();
    if (members % 4 == 3) {
      hello.ranks = {0, 2};
      hello.size = 2;
    }
    if (members >= 0xf8) hello.called = "127.0.0.1:1";
    return caller.hello(hello, members >= 0xf0 && members < 0xf8 ? kOtherSecret : kSecret);
  }

  std::string contribution_of(RendezvousCaller& caller) {
    // At the bounds of a read and of a contribution.
    static constexpr std::array<size_t, 4> kSizes = {16384, 100'000, kMaxContributionBytes,
                                                     kMaxContributionBytes + 1};
    static constexpr std::array<uint32_t, 4> kTimeOuts = {0, 1000, 60'000, UINT32_MAX};
    const auto which = input_.number<uint8_t>();
    const uint32_t round = caller.rounds() + (which >= 0xc0 ? 1 : 0);
    std::string bytes = "contribution " + std::to_string(contributions_++);
    if (which % 4 == 3) bytes.resize(kSizes[which / 16 % 4], '.');
    if (which % 4 == 2) bytes.clear();
    return caller.contribution({round, kTimeOuts[which / 4 % 4], bytes});
  }

  std::string broken(std::string frame) {
    const auto how = input_.number<uint8_t>();
    const size_t at = input_.number<uint16_t>() % frame.size();
    if (how % 4 == 0) return frame.substr(0, at);
    if (how % 4 == 1) return frame.substr(at);
    if (how % 4 == 2) return frame + frame.substr(at);
    frame[at] = static_cast<char>(frame[at] ^ 1 << (how >> 2) % 8);
    return frame;
  }

  // One more of the proper ranks comes, or all of them meet once more.
  void advance_proper_ranks() {
    settle();
    if (proper_.size() < kSize) return add_proper_rank();
    if (have_met()) return;
    ++rounds_;
    std::vector<std::string> expected;
    for (auto& rank : proper_) {
      expected.push_back("proper " + std::to_string(expected.size()));
      rank->say(rank->contribution({rounds_ - 1, UINT32_MAX, expected.back()}));
      settle();
    }
    for (auto& rank : proper_) {
      rank->read();
      MUST(rank->gathered().size() == rounds_ && rank->gathered().back() == expected);
    }
  }

  bool have_met() const { return rounds_ == kRoundsOfProperRanks; }

  // It calls again if it is not heard, as there may be no descriptor for it at first.
  void add_proper_rank() {
    for (int attempt = 0;; ++attempt) {
      MUST(attempt < 20);
      auto rank = call();
      settle();
      rank->read();
      if (rank->has_greeting()) {
        Hello hello;
        hello.challenge = std::string(kChallengeBytes, 'p');
        hello.called = where_[0].to_string();
        hello.size = kSize;
        hello.rank = static_cast<uint32_t>(proper_.size());
        hello.ranks = kProperRanks;
        rank->say(rank->hello(hello, kSecret));
        settle();
        rank->read();
        MUST(rank->is_welcome());
        proper_.push_back(std::move(rank));
        return;
      }
      fuzz::pass(std::chrono::milliseconds(50));
    }
  }

  void expect_to_be_alone(size_t descriptors) {
    for (auto& caller : callers_) {
      while (caller && caller->read()) settle();
      caller.reset();
    }
    proper_.clear();
    flood_.clear();
    settle();
    MUST(fuzz::open_descriptors() == descriptors);
    // No world has kept its members.
    auto caller = call();
    settle();
    caller->read();
    if (!caller->has_greeting()) return;  // the server still pauses for want of descriptors
    Hello hello;
    hello.challenge = std::string(kChallengeBytes, 'c');
    hello.called = where_[0].to_string();
    hello.size = kSize;
    caller->say(caller->hello(hello, kSecret));
    settle();
    caller->read();
    MUST(caller->is_welcome());
  }

  std::unique_ptr<RendezvousServer> server_;
  std::array<Endpoint, 1> where_;
  std::vector<fuzz::Contributed> contributed_;
  std::vector<std::unique_ptr<RendezvousCaller>> proper_;
  uint32_t rounds_ = 0;  // that the proper ranks have done
  int contributions_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  configure_log(LogLevel::kError, true, -1);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Meeting(data, size).run();
  return 0;
}
