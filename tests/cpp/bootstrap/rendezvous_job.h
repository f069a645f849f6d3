// A rendezvous server, and ranks that meet there.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "bootstrap/rendezvous_bootstrap.h"
#include "bootstrap/rendezvous_server.h"

namespace perseus {

inline const std::string kSecret = "a secret of the job";

inline std::unique_ptr<RendezvousServer> serve(int size, const std::string& address = "127.0.0.1") {
  auto server = RendezvousServer::start(address, 0, size, kSecret);
  EXPECT_TRUE(server.is_ok()) << server.status().message();
  return std::move(server).value();
}

inline RendezvousBootstrap::Options options_for(const RendezvousServer& server, int rank,
                                                int size) {
  RendezvousBootstrap::Options options;
  options.servers = {HostPort{"127.0.0.1", server.port()}};
  options.secret = kSecret;
  options.rank = rank;
  options.size = size;
  options.time_out = std::chrono::seconds(10);
  return options;
}

inline void on_threads(int count, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) threads.emplace_back(body, i);
  for (std::thread& thread : threads) thread.join();
}

inline void expect_gathers(Bootstrap& bootstrap, int rounds, const std::string& prefix) {
  for (int round = 0; round < rounds; ++round) {
    const auto text = [&](int rank) {
      return prefix + std::to_string(round) + "/" + std::string(rank * 1000, 'x');
    };
    auto all = bootstrap.all_gather(text(bootstrap.rank()), std::chrono::seconds(10));
    ASSERT_TRUE(all.is_ok()) << all.status().message();
    ASSERT_EQ(all.value().size(), static_cast<size_t>(bootstrap.size()));
    for (int r = 0; r < bootstrap.size(); ++r) EXPECT_EQ(all.value()[r], text(r));
  }
}

}  // namespace perseus
