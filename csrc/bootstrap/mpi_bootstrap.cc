#include "bootstrap/mpi_bootstrap.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/hmac.h"
#include "base/interruption.h"
#include "base/rank_names.h"
#include "base/secret.h"
#include "bootstrap/rendezvous_protocol.h"
#include "mpi/mpi_tags.h"

namespace perseus {
namespace {

using namespace rendezvous;

// The first rank answers before the other ranks' time-out, by a margin that also covers its having
// begun later than they did.
std::chrono::milliseconds less_margin(std::chrono::milliseconds time_out) {
  return time_out - std::min<std::chrono::milliseconds>(time_out / 4, std::chrono::seconds(1));
}

}  // namespace

MpiBootstrap::MpiBootstrap(const MpiProcess& process, std::vector<int> launched, int rank,
                           int generation)
    : process_(process),
      launched_(std::move(launched)),
      rank_(rank),
      generation_(generation),
      tag_(mpi_bootstrap_tag(generation)) {}

Result<std::unique_ptr<Bootstrap>> MpiBootstrap::create(const MpiProcess& process,
                                                        const std::vector<int>& ranks,
                                                        int generation,
                                                        const std::string& own_secret,
                                                        std::chrono::milliseconds time_out) {
  std::vector<int> launched = ranks;
  if (launched.empty()) {
    launched.resize(process.size);
    std::iota(launched.begin(), launched.end(), 0);
  }
  const auto place = std::find(launched.begin(), launched.end(), process.rank);
  const int rank = static_cast<int>(place - launched.begin());
  auto bootstrap = std::unique_ptr<MpiBootstrap>(
      new MpiBootstrap(process, std::move(launched), rank, generation));
  PERSEUS_RETURN_IF_ERROR(bootstrap->share_secret(own_secret, time_out));
  return std::unique_ptr<Bootstrap>(std::move(bootstrap));
}

// Each rank gives a check of its own secret, and a random number. The secret comes from all of the
// numbers, so a rank to which somebody has told others has another secret, and no tag of it fits.
Status MpiBootstrap::share_secret(const std::string& own_secret,
                                  std::chrono::milliseconds time_out) {
  const Mac check = hmac_sha256(own_secret, "perseus check of PERSEUS_SECRET");
  const std::string text(check.begin(), check.end());
  Result<std::vector<std::string>> gathered = exchange(text + random_bytes(kSecretBytes), time_out);
  if (!gathered.is_ok()) return gathered.status();
  std::string numbers = "perseus secret of an MPI world";
  for (size_t rank = 0; rank < launched_.size(); ++rank) {
    const std::string& given = gathered.value()[rank];
    if (given.size() != text.size() + kSecretBytes ||
        given.substr(0, text.size()) != gathered.value()[0].substr(0, text.size())) {
      return Status::invalid_argument("PERSEUS_SECRET of " + name_ranks({launched_[rank]}) +
                                      " is not that of " + name_ranks({launched_[0]}) +
                                      "; it must be the same on all ranks, or not be set on any");
    }
    numbers += given.substr(text.size());
  }
  const Mac secret = hmac_sha256(own_secret, numbers);
  secret_.assign(secret.begin(), secret.end());
  has_own_secret_ = !own_secret.empty();
  return {};
}

// A MAC follows what a rank gives, so that where the user has set a secret, nobody on the
// network can change where ranks are to call each other.
Result<std::vector<std::string>> MpiBootstrap::all_gather(const std::string& mine,
                                                          std::chrono::milliseconds time_out) {
  const uint32_t round = round_;
  const auto tag = [&](size_t rank, const std::string& bytes) {
    const Mac mac = hmac_sha256(secret_, "perseus round " + std::to_string(round) + " of rank " +
                                             std::to_string(rank) + ": " + bytes);
    return std::string(mac.begin(), mac.end());
  };
  Result<std::vector<std::string>> all = exchange(mine + tag(rank_, mine), time_out);
  if (!all.is_ok()) return all;
  for (size_t rank = 0; rank < launched_.size(); ++rank) {
    std::string& given = all.value()[rank];
    const size_t size = given.size() - std::min(given.size(), sizeof(Mac));
    const std::string theirs = given.substr(size);
    given.resize(size);
    if (equal_in_constant_time(theirs, tag(rank, given))) continue;
    failure_ = Status::aborted("what " + name_ranks({launched_[rank]}) +
                               " told the others by MPI is not what it said: something between "
                               "the hosts has changed it");
    return failure_;
  }
  return all;
}

Result<std::vector<std::string>> MpiBootstrap::exchange(const std::string& mine,
                                                        std::chrono::milliseconds time_out) {
  if (!failure_.is_ok()) return failure_;
  if (mine.size() > kMaxContributionBytes) {
    return Status::invalid_argument("a rank may give " + std::to_string(kMaxContributionBytes) +
                                    " bytes to the bootstrap, not " + std::to_string(mine.size()));
  }
  Result<std::vector<std::string>> all =
      rank_ == 0 ? gather(mine, Clock::now() + less_margin(time_out)) : contribute(mine, time_out);
  ++round_;
  if (all.is_ok() && all.value().size() != launched_.size()) {
    all = Status::internal("the first rank answered for " + std::to_string(all.value().size()) +
                           " ranks of " + std::to_string(launched_.size()));
  }
  if (!all.is_ok()) failure_ = all.status();
  return all;
}

// On the first rank.
Result<std::vector<std::string>> MpiBootstrap::gather(const std::string& mine,
                                                      Clock::time_point deadline) {
  std::vector<std::string> all(launched_.size());
  std::vector<bool> there(launched_.size(), false);
  all[0] = mine;
  there[0] = true;
  size_t missing = launched_.size() - 1;
  Status status;
  MpiBackoff backoff;
  while (missing > 0 && status.is_ok()) {
    bool found = false;
    MpiMatchedMessage arrival;
    PERSEUS_RETURN_IF_ERROR(
        process_.mpi->match(process_.comm, Mpi::kAnySource, tag_, found, arrival));
    if (found) {
      std::string bytes;
      PERSEUS_RETURN_IF_ERROR(receive(arrival, bytes, deadline));
      const auto place = std::find(launched_.begin(), launched_.end(), arrival.source);
      Contribution contribution;
      if (place == launched_.end() || there[place - launched_.begin()] ||
          !decode(bytes, contribution) || contribution.round != round_) {
        status = Status::invalid_argument(
            "rank " + std::to_string(arrival.source) +
            " takes this rank for part of another world; every rank must give init the same ranks");
        break;
      }
      const size_t rank = place - launched_.begin();
      all[rank] = std::move(contribution.bytes);
      there[rank] = true;
      --missing;
      // The earliest time-out among the ranks counts, so that all end together.
      deadline =
          std::min(deadline, Clock::now() + std::chrono::milliseconds(contribution.time_out_ms));
    } else if (Clock::now() >= deadline) {
      status = Status::timed_out("the ranks did not all meet in time: " + name_missing(there) +
                                 " of " + std::to_string(launched_.size()) +
                                 " never came; raise PERSEUS_START_TIMEOUT if they were only slow");
    } else if (is_interrupted()) {
      status = interrupted_status();
    } else {
      backoff.pause();
    }
  }
  // The answer gets some time of its own, since the other ranks are waiting for it.
  const Clock::time_point told = std::max(deadline, Clock::now() + std::chrono::seconds(1));
  if (!status.is_ok()) {
    (void)answer_all(encode_error(Answer::kFailed, status), told);  // `status` is what counts
    return status;
  }
  PERSEUS_RETURN_IF_ERROR(answer_all(encode_gathered(all), told));
  return all;
}

Status MpiBootstrap::answer_all(const std::string& answer, Clock::time_point deadline) {
  Status first;
  for (size_t rank = 1; rank < launched_.size(); ++rank) {
    Status status = send(launched_[rank], answer, deadline);
    if (first.is_ok()) first = std::move(status);
  }
  return first;
}

// On the other ranks.
Result<std::vector<std::string>> MpiBootstrap::contribute(const std::string& mine,
                                                          std::chrono::milliseconds time_out) {
  const Clock::time_point deadline = Clock::now() + time_out;
  Contribution contribution;
  contribution.round = round_;
  contribution.time_out_ms = static_cast<uint32_t>(less_margin(time_out).count());
  contribution.bytes = mine;
  PERSEUS_RETURN_IF_ERROR(send(launched_[0], encode(contribution), deadline));
  MpiBackoff backoff;
  while (true) {
    bool found = false;
    MpiMatchedMessage arrival;
    PERSEUS_RETURN_IF_ERROR(process_.mpi->match(process_.comm, launched_[0], tag_, found, arrival));
    if (found) {
      std::string bytes;
      PERSEUS_RETURN_IF_ERROR(receive(arrival, bytes, deadline));
      Decoded answer;
      if (!decode(bytes, answer)) return Status::internal("the first rank sent a malformed answer");
      if (answer.kind != Answer::kGathered) return answer.error;
      return std::move(answer.gathered);
    }
    if (Clock::now() >= deadline) {
      return Status::timed_out("rank " + std::to_string(launched_[0]) +
                               ", through which the ranks meet, did not answer");
    }
    backoff.pause();
  }
}

Status MpiBootstrap::send(int to, const std::string& bytes, Clock::time_point deadline) {
  auto copy = std::make_unique<std::string>(bytes);
  MpiRequest request;
  PERSEUS_RETURN_IF_ERROR(
      process_.mpi->begin_send(process_.comm, to, tag_, copy->data(), copy->size(), request));
  Status status = wait_for(*process_.mpi, request, deadline);
  // Not freed, since MPI may read it until the process ends.
  if (!status.is_ok()) (void)copy.release();
  if (status.code() == StatusCode::kTimedOut) {
    return Status::timed_out("rank " + std::to_string(to) + " does not receive");
  }
  return status;
}

Status MpiBootstrap::receive(MpiMatchedMessage& arrival, std::string& bytes,
                             Clock::time_point deadline) {
  auto target = std::make_unique<std::string>(arrival.bytes, '\0');
  MpiRequest request;
  PERSEUS_RETURN_IF_ERROR(process_.mpi->begin_receive(arrival, target->data(), request));
  Status status = wait_for(*process_.mpi, request, deadline);
  if (!status.is_ok()) {
    (void)target.release();  // MPI may write to it until the process ends
    return status;
  }
  bytes = std::move(*target);
  return status;
}

std::string MpiBootstrap::name_missing(const std::vector<bool>& there) const {
  std::vector<int> names;
  for (size_t rank = 0; rank < there.size(); ++rank) {
    if (!there[rank]) names.push_back(launched_[rank]);
  }
  return name_ranks(names);
}

}  // namespace perseus
