#include "bootstrap/mpi_bootstrap.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "bootstrap/rendezvous_protocol.h"
#include "real_mpi/mpi_world.h"

namespace perseus {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

std::unique_ptr<Bootstrap> must_bootstrap(const std::vector<int>& ranks = {}) {
  auto bootstrap = next_bootstrap(ranks);
  EXPECT_TRUE(bootstrap.is_ok()) << bootstrap.status().message();
  return std::move(bootstrap).value();
}

void expect_gathers(Bootstrap& bootstrap, size_t bytes) {
  const auto text = [&](int rank) {
    return std::to_string(rank) + std::string(bytes + rank, static_cast<char>('a' + rank));
  };
  auto all = bootstrap.all_gather(text(bootstrap.rank()), seconds(20));
  ASSERT_TRUE(all.is_ok()) << all.status().message();
  ASSERT_EQ(all.value().size(), static_cast<size_t>(bootstrap.size()));
  for (int rank = 0; rank < bootstrap.size(); ++rank) EXPECT_EQ(all.value()[rank], text(rank));
}

TEST(MpiBootstrap, TakesRankAndSizeFromTheLauncher) {
  auto bootstrap = must_bootstrap();
  EXPECT_EQ(bootstrap->rank(), this_process().rank);
  EXPECT_EQ(bootstrap->size(), this_process().size);
}

TEST(MpiBootstrap, AllRanksHaveTheSameSecret) {
  auto bootstrap = must_bootstrap();
  auto all = bootstrap->all_gather(bootstrap->secret(), seconds(20));
  ASSERT_TRUE(all.is_ok()) << all.status().message();
  EXPECT_EQ(bootstrap->secret().size(), 32u);
  for (const std::string& secret : all.value()) EXPECT_EQ(secret, bootstrap->secret());
}

// While it lives, this process has PERSEUS_SECRET.
class OwnSecret {
 public:
  explicit OwnSecret(char digit) {
    setenv("PERSEUS_SECRET", std::string(64, digit).c_str(), /*overwrite=*/1);
  }
  ~OwnSecret() { unsetenv("PERSEUS_SECRET"); }
};

TEST(MpiBootstrap, ASecretOfTheUsersIsPartOfTheWorlds) {
  EXPECT_EQ(must_bootstrap()->secret_weakness(), "is carried by MPI, which encrypts nothing");
  OwnSecret secret('7');
  auto bootstrap = must_bootstrap();
  EXPECT_EQ(bootstrap->secret_weakness(), "");
  EXPECT_NE(bootstrap->secret(), std::string(32, '\x77'));  // other worlds have others
  auto all = bootstrap->all_gather(bootstrap->secret(), seconds(20));
  ASSERT_TRUE(all.is_ok()) << all.status().message();
  for (const std::string& of_rank : all.value()) EXPECT_EQ(of_rank, bootstrap->secret());
}

TEST(MpiBootstrap, SecretsThatDifferAreNamedOnEveryRank) {
  OwnSecret secret(this_process().rank == 1 ? '6' : '7');
  auto bootstrap = next_bootstrap();
  EXPECT_EQ(bootstrap.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(bootstrap.status().message(),
            "PERSEUS_SECRET of rank 1 is not that of rank 0; it must be the same on all ranks, or "
            "not be set on any");
}

TEST(MpiBootstrap, EveryRankGetsEverybodysBytesInRankOrder) {
  auto bootstrap = must_bootstrap();
  for (size_t bytes : {size_t{0}, size_t{100}, size_t{5000}, size_t{700000}}) {
    expect_gathers(*bootstrap, bytes);
  }
}

TEST(MpiBootstrap, ServesOneGenerationAfterTheOther) {
  for (int i = 0; i < 20; ++i) expect_gathers(*must_bootstrap(), 10);
}

TEST(MpiBootstrap, RefusesMoreThanTheBound) {
  auto bootstrap = must_bootstrap();
  auto all =
      bootstrap->all_gather(std::string(rendezvous::kMaxContributionBytes + 1, 'x'), seconds(1));
  EXPECT_EQ(all.status().code(), StatusCode::kInvalidArgument);
}

TEST(MpiBootstrap, RanksRestrictTheWorldAndGiveItsOrder) {
  const MpiProcess me = this_process();
  const int last = me.size - 1;
  auto bootstrap = must_bootstrap({last, 0});
  EXPECT_EQ(bootstrap->mpi(), me.mpi);
  if (me.rank == 0 || me.rank == last) {
    EXPECT_EQ(bootstrap->size(), 2);
    EXPECT_EQ(bootstrap->rank(), me.rank == last ? 0 : 1);
    expect_gathers(*bootstrap, 10);
  } else {
    EXPECT_EQ(bootstrap->size(), 1);
  }
}

TEST(MpiBootstrap, RefusesRanksThatWereNotLaunched) {
  EXPECT_EQ(next_bootstrap({0, this_process().size}).status().code(), StatusCode::kInvalidArgument);
}

TEST(MpiBootstrap, ARankThatNeverComesIsNamedOnTheOthers) {
  const MpiProcess me = this_process();
  const int last = me.size - 1;
  auto bootstrap = must_bootstrap();
  if (me.rank != last) {
    // Long enough for the first rank to begin late: it is one of several that compute on few cores.
    auto all = bootstrap->all_gather("here", seconds(3));
    EXPECT_EQ(all.status().code(), StatusCode::kTimedOut) << all.status().message();
    EXPECT_NE(all.status().message().find("rank " + std::to_string(last)), std::string::npos)
        << all.status().message();
  }
  expect_gathers(*must_bootstrap(), 10);
}

TEST(MpiBootstrap, TheFirstRankThatNeverComesIsNamedOnTheOthers) {
  auto bootstrap = must_bootstrap();
  if (this_process().rank != 0) {
    auto all = bootstrap->all_gather("here", milliseconds(500));
    EXPECT_EQ(all.status().code(), StatusCode::kTimedOut) << all.status().message();
    EXPECT_NE(all.status().message().find("rank 0"), std::string::npos) << all.status().message();
  }
  expect_gathers(*must_bootstrap(), 10);
}

TEST(Mpi, GivesErrorsOfOurCommunicatorBack) {
  const MpiProcess me = this_process();
  MpiRequest request;
  const Status status = me.mpi->begin_send(me.comm, me.size, 0, "x", 1, request);
  EXPECT_EQ(status.code(), StatusCode::kInternal);
  EXPECT_NE(status.message().find("MPI_Isend failed: "), std::string::npos) << status.message();
}

TEST(Mpi, IsInitialisedForManyThreads) {
  const MpiProcess me = this_process();
  EXPECT_TRUE(me.initialized_here);
  EXPECT_TRUE(me.mpi->is_main_thread());
  EXPECT_EQ(me.mpi->thread_level(), MpiThreadLevel::kMultiple) << me.mpi->version();
}

}  // namespace
}  // namespace perseus
