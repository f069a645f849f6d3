#include "bootstrap/rank_holder.h"

#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <string>
#include <string_view>

#include "bootstrap/environment.h"

namespace perseus {
namespace {

// The process that the variable names, and the rank: "4711 PERSEUS_RANK=1/4@10.0.0.7:36593".
struct Holder {
  pid_t process = 0;
  std::string_view rank;
};

Holder current_holder() {
  const char* value = std::getenv(kRankHeldBy);
  if (value == nullptr) return {};
  const std::string_view text = value;
  Holder holder;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), holder.process);
  if (error != std::errc() || end == text.data() + text.size()) return {};
  holder.rank = text.substr(end - text.data() + 1);
  return holder;
}

// Tells ranks of different jobs apart: a rank may itself start a job, whose ranks inherit the
// variable as well.
std::string describe(const LaunchEnvironment& launch) {
  const char* name_space = std::getenv("PMIX_NAMESPACE");
  std::string job = name_space == nullptr ? "" : name_space;
  if (!launch.rendezvous.empty()) job = to_string(launch.rendezvous[0]);
  return launch.source + "=" + std::to_string(launch.rank) + "/" + std::to_string(launch.size) +
         "@" + job;
}

}  // namespace

Status take_rank() {
  const auto launch = read_launch_environment(
      [](const char* name) -> const char* { return std::getenv(name); }, [] { return true; });
  // Malformed variables are reported by the bootstrap.
  if (!launch.is_ok() || launch.value().kind == LaunchEnvironment::Kind::kSingle) return {};
  const std::string rank = describe(launch.value());
  const Holder holder = current_holder();
  if (holder.process != 0 && holder.process != getpid() && holder.rank == rank) {
    const std::string number = std::to_string(launch.value().rank);
    return Status::invalid_argument(
        "this process was started by process " + std::to_string(holder.process) +
        ", which is rank " + number +
        " of the job; it must not call init, since it would take that rank's place and its data "
        "would enter the sums of all ranks. Let the rank itself call init and all operations. "
        "Where a child only needs to know its parent's rank, PERSEUS_RANK and PERSEUS_SIZE tell "
        "it; in a forked child, rank() and size() do so without init. To work alone, set "
        "PERSEUS_RANK=0 and PERSEUS_SIZE=1 in the child before init");
  }
  const std::string value = std::to_string(getpid()) + " " + rank;
  setenv(kRankHeldBy, value.c_str(), 1);
  return {};
}

void give_back_rank() {
  if (current_holder().process == getpid()) unsetenv(kRankHeldBy);
}

}  // namespace perseus
