// Fuzzes the states of acceptors and dialers: strangers and ranks, several at once, connect to an
// acceptor and say right and wrong things in any order, while ranks dial it, and a program that
// knows no secret listens at some of their endpoints and may pass on what it hears. The acceptor's
// owner hears only from ranks that have proved themselves; each dialer finds the acceptor; and
// nothing stays behind.
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/secret.h"
#include "fuzz/acceptor_caller.h"
#include "fuzz/callers_scene.h"
#include "fuzz/dialers.h"
#include "observe/log.h"
#include "transport/acceptor.h"

using namespace perseus;
using fuzz::AcceptorCaller;

namespace {

constexpr size_t kHeard = 4;  // connections of dialers to a program that is not the rank
constexpr size_t kDialers = 3;
constexpr uint32_t kDialersRank = 7;
constexpr std::chrono::seconds kTimeToConnect{300};
constexpr std::array<std::chrono::milliseconds, 6> kTimes = {
    std::chrono::milliseconds(1), std::chrono::milliseconds(10), std::chrono::milliseconds(100),
    std::chrono::seconds(1),      std::chrono::seconds(5),       std::chrono::seconds(10)};
const std::string kSecret(32, 's');
const std::string kOtherSecret(32, 'o');
const Nonce kJob{1};

class Meeting final : private fuzz::CallersScene<AcceptorCaller>, private AcceptorOwner {
 public:
  Meeting(const uint8_t* data, size_t size) : CallersScene(data, size) {
    static int inputs = 0;
    const std::string name = "perseus-fuzz-" + std::to_string(getpid()) + "-";
    where_ = {Endpoint::unix_name(name + std::to_string(inputs++)), fuzz::loopback()};
    for (Endpoint& where : where_) MUST(acceptor_.listen(where).is_ok());
    acceptor_.start();
    Result<FileDescriptor> listener = listen_at(strangers_);
    MUST(listener.is_ok());
    listener_ = std::move(listener).value();
  }

  void run() {
    const size_t descriptors = fuzz::open_descriptors();
    take_steps();
    expect_dialers_to_connect();
    for (auto& caller : callers_) drop(caller);
    for (auto& heard : heard_) heard.reset();
    while (hear().is_open()) {
    }
    flood_.clear();
    dialers_.close();
    settle();
    MUST(fuzz::open_descriptors() == descriptors);
  }

 private:
  bool run_once() override { return loop_.run_once(std::chrono::milliseconds(0)); }

  void take_step(uint8_t what, ConnectionPtr& caller) override {
    switch (what % 20) {
      case 0: return dial();
      case 1: return flood(where_, 40);
      case 2: return call_without_descriptors(caller);
      case 3: return pass_time(kTimes);
      case 4: return static_cast<void>(run_once());
      case 5: may_connect_ = !may_connect_; return;
      case 6:
        drop(caller);
        caller = call();
        return;
      case 7: heard_[input_.number<uint8_t>() % kHeard].emplace(hear()); return;
      case 8: return answer_dialer();
      default: break;
    }
    if (!caller) caller = call();
    switch (what % 20) {
      case 9: caller->read(); break;
      case 10: caller->caller().close_one_way(); break;
      case 11: drop(caller); break;
      case 12: caller->say(input_.text()); break;
      case 13: caller->say(part_of_another<uint8_t>(512)); break;
      case 14: caller->say(broken(introduction_of(*caller))); break;
      case 15: caller->say(broken(bytes_of(caller->confirmation()))); break;
      case 16: caller->say(bytes_of(caller->confirmation())); break;
      case 17: pass_on(*caller); break;
      default: caller->say(introduction_of(*caller)); break;
    }
  }

  ConnectionPtr call() override {
    const Endpoint& where = where_[input_.number<uint8_t>() % where_.size()];
    return std::make_unique<AcceptorCaller>(where, credentials_);
  }

  // Closes the connection, on which the acceptor may still hear what was said.
  void drop(ConnectionPtr& caller) override {
    if (!caller) return;
    caller->caller().close();
    past_callers_.push_back(std::move(caller));
  }

  void pass_scarcity() override {
    settle();
    fuzz::pass(std::chrono::milliseconds(50));  // dialers try again
    settle();
  }

  // Of a rank that knows the secret, other than the dialers'.
  std::string introduction_of(AcceptorCaller& caller) {
    settle();
    caller.read();
    const auto how = input_.number<uint8_t>();
    Hello hello;
    hello.job = how % 16 == 15 ? Nonce{2} : kJob;
    hello.nonce = Nonce{static_cast<uint8_t>(how), static_cast<uint8_t>(++introductions_)};
    hello.called = digest_of(where_[how & 1]);
    hello.from = 2u + (how >> 1) % 4;
    hello.to = credentials_.rank + (how % 16 == 14 ? 1u : 0u);
    hello.purpose = Hello::kTcpChannel;
    return std::string(bytes_of(caller.introduction(hello, how >= 0xf0 ? kOtherSecret : kSecret)));
  }

  std::string broken(std::string_view whole) {
    std::string message(whole);
    const auto how = input_.number<uint8_t>();
    const size_t at = input_.number<uint8_t>() % message.size();
    if (how % 4 == 0) return message.substr(0, at);
    if (how % 4 == 1) return message.substr(at);
    message[at] = static_cast<char>(message[at] ^ 1 << (how >> 2) % 8);
    return message;
  }

  void dial() {
    const auto how = input_.number<uint8_t>();
    if (dialers_.size() == kDialers) return;
    std::vector<Endpoint> endpoints;
    if ((how & 16) != 0) endpoints.push_back(nobodys_);
    if ((how & 1) != 0) endpoints.push_back(strangers_);
    if ((how & 2) != 0) endpoints.push_back(where_[0]);
    if ((how & 4) != 0) endpoints.push_back(strangers_);
    endpoints.push_back(where_[1]);
    dialers_.dial(endpoints, credentials_.rank, /*ends_at_once=*/(how & 8) != 0);
  }

  // The next connection to the program that is not the rank.
  fuzz::Caller hear() {
    return fuzz::Caller(
        FileDescriptor(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)));
  }

  void answer_dialer() {
    std::optional<fuzz::Caller>& heard = heard_[input_.number<uint8_t>() % kHeard];
    if (!heard) heard.emplace(hear());
    const auto how = input_.number<uint8_t>();
    Greeting greeting;
    greeting.nonce = Nonce{how};
    const uint32_t verdict = how >> 6;
    switch (how % 5) {
      case 0: return heard->send(bytes_of(greeting));
      case 1: return heard->send(bytes_of(Welcome{verdict, {}}));
      case 2: return heard->send(input_.text());
      case 3: return heard->close_one_way();
      default: heard.reset();
    }
  }

  // Passes on what a dialer says to the acceptor, and what that answers.
  void pass_on(AcceptorCaller& caller) {
    std::optional<fuzz::Caller>& heard = heard_[input_.number<uint8_t>() % kHeard];
    if (!heard) heard.emplace(hear());
    const size_t had = caller.received().size();
    caller.read();
    heard->send(std::string_view(caller.received()).substr(had));
    settle();
    heard->read();
    caller.say(heard->take_received(heard->received().size()));
  }

  // AcceptorOwner
  bool may_connect(const Hello& hello) override {
    if (hello.from != kDialersRank) {
      MUST(find(hello) != nullptr);
      return may_connect_;
    }
    // No caller can have passed this on.
    for (const auto& caller : callers_) MUST(!caller || caller->hello().nonce != hello.nonce);
    if (!may_connect_) dialers_.note_refused(hello);
    return may_connect_;
  }

  void on_connected(const Hello& hello, ProvenConnection connection) override {
    if (hello.from == kDialersRank) {
      return dialers_.note_connected(hello, std::move(connection));
    }
    const AcceptorCaller* caller = find(hello);
    MUST(caller != nullptr && caller->is_confirmed());
    MUST(connected_.insert(hello.nonce).second);
  }

  // The caller that has proved to be this.
  const AcceptorCaller* find(const Hello& hello) const {
    const auto is_it = [&](const std::unique_ptr<AcceptorCaller>& caller) {
      return caller && caller->is_proven() && bytes_of(caller->hello()) == bytes_of(hello);
    };
    const auto found = std::ranges::find_if(callers_, is_it);
    if (found != callers_.end()) return found->get();
    const auto past = std::ranges::find_if(past_callers_, is_it);
    return past == past_callers_.end() ? nullptr : past->get();
  }

  // All callers are still there, and say nothing more.
  void expect_dialers_to_connect() {
    const Clock::time_point end = Clock::now() + kTimeToConnect;
    settle();
    while (!dialers_.are_done()) {
      MUST(Clock::now() < end);
      fuzz::pass(std::chrono::milliseconds(50));
      settle();
    }
    dialers_.check();
    for (auto& caller : callers_) {
      if (caller) caller->read();
    }
  }

  EventLoop loop_{std::chrono::microseconds(0)};
  const Credentials credentials_{kSecret, kJob, 1};
  const Credentials dialers_credentials_{kSecret, kJob, kDialersRank};
  ResourceExhaustion exhaustion_{std::chrono::hours(1), [](int) { MUST(false); }};
  Acceptor acceptor_{loop_, credentials_, exhaustion_, *this};
  std::array<Endpoint, 2> where_;
  Endpoint strangers_ = fuzz::loopback();
  const Endpoint nobodys_ = fuzz::loopback(1);
  FileDescriptor listener_;
  bool may_connect_ = true;
  int introductions_ = 0;
  std::vector<ConnectionPtr> past_callers_;
  std::array<std::optional<fuzz::Caller>, kHeard> heard_;
  fuzz::Dialers dialers_{loop_, dialers_credentials_, exhaustion_};
  std::set<Nonce> connected_;  // other ranks, by the nonces of their hellos
};

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  configure_log(LogLevel::kError, true, -1);
  // The acceptor keeps an eighth of these.
  const rlimit limit{256, 256};
  setrlimit(RLIMIT_NOFILE, &limit);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Meeting(data, size).run();
  return 0;
}
