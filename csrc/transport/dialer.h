// Makes one connection to a rank: tries its endpoints in turn, proves itself, and gives up with an
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
#include "transport/resource_shortage.h"

namespace perseus {

class Dialer final : public FdHandler {
 public:
  // Called once, with the connection or why there is none. It may destroy the dialer.
  using Done = std::function<void(Result<FileDescriptor>)>;

  // `endpoints` is not empty. `sources`: addresses to connect from, one for each endpoint (length
  // 0: any), or none at all. Job, nonce and rank of `hello` are filled in.
  Dialer(EventLoop& loop, const Credentials& credentials, ResourceShortage& shortage,
         std::vector<Endpoint> endpoints, std::vector<Endpoint> sources, const Hello& hello,
         Clock::time_point deadline, Done done);
  ~Dialer();
  void start();

 private:
  enum class Step { kIdle, kConnecting, kChallenged, kWaitingForWelcome };

  void on_ready(uint32_t epoll_events) override;
  void try_endpoint();
  // How long the present step may take before the next endpoint is tried.
  void set_step_deadline(Clock::time_point end);
  void connected();
  // This endpoint won't do; `refused`: something answered, so trying on for long is no use.
  void next_endpoint(const std::string& why, bool refused);
  void close_connection();
  void finish(Result<FileDescriptor> result);

  EventLoop& loop_;
  const Credentials& credentials_;
  ResourceShortage& shortage_;
  const std::vector<Endpoint> endpoints_, sources_;
  Hello hello_;
  const Clock::time_point deadline_;
  Done done_;

  Step step_ = Step::kIdle;
  FileDescriptor fd_;
  EventLoop::TimerId timer_ = 0;
  size_t current_ = 0;
  bool all_refused_ = true;  // in this round
  int refused_rounds_ = 0;
  std::string errors_;  // of this round, or of the last if it has just begun
  MessageReader reader_;
  Challenge challenge_;
  Welcome welcome_;
};

}  // namespace perseus
