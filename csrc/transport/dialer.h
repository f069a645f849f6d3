// Makes one connection to a rank: tries its endpoints in turn, authenticates, or gives up with an
// error that names them. Loop thread.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/event_loop.h"
#include "base/status.h"
#include "transport/acceptor.h"
#include "transport/endpoint.h"
#include "transport/handshake.h"
#include "transport/resource_exhaustion.h"

namespace perseus {

class Dialer final : public FdHandler {
 public:
  // Called once, with the connection or an error. It may destroy the dialer.
  using Done = std::function<void(Result<ProvenConnection>)>;

  // `endpoints` must not be empty. `sources` are addresses to connect from, one for each endpoint
  // (of length 0: any), or none at all. Fills in the job, nonce and rank of `hello`.
  Dialer(EventLoop& loop, const Credentials& credentials, ResourceExhaustion& exhaustion,
         std::vector<Endpoint> endpoints, std::vector<Endpoint> sources, const Hello& hello,
         Clock::time_point deadline, Done done);
  ~Dialer();
  void start();

 private:
  enum class Step { kIdle, kConnecting, kAwaitingGreeting, kAwaitingWelcome };

  void on_ready(uint32_t epoll_events) override;
  void try_endpoint();
  // Tries the next endpoint if the current step is not done by then.
  void set_step_deadline(Clock::time_point end);
  void connected();
  void introduce();
  void welcomed();
  // How an endpoint failed. kRefused and kClosed are answers, after which retrying for long is of
  // no use; but a rank that is flooded closes connections of the job, too.
  enum class Failure { kRefused, kClosed, kOther };
  static Failure failure_of(int error);
  void next_endpoint(const std::string& why, Failure failure);
  void close_connection();
  void finish(Result<ProvenConnection> result);

  EventLoop& loop_;
  const Credentials& credentials_;
  ResourceExhaustion& exhaustion_;
  const std::vector<Endpoint> endpoints_, sources_;
  Hello hello_;
  const Clock::time_point deadline_;
  Done done_;

  Step step_ = Step::kIdle;
  FileDescriptor fd_;
  EventLoop::TimerId timer_ = 0;
  size_t current_ = 0;
  bool all_answered_ = true, any_closed_ = false;  // in this round
  int refused_rounds_ = 0, closed_rounds_ = 0;
  std::string errors_;  // of this round, or of the last one if this has just begun
  MessageReader reader_;
  Greeting greeting_;
  Introduction introduction_;
  Welcome welcome_;
};

}  // namespace perseus
