#include "bootstrap/rank_holder.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <string_view>

#include "base/sha256.h"
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

// The process that holds a rank, and a hash of the rank in one word; 0: none does.
using Claim = uint64_t;

Claim claim_of(pid_t process, const std::string& rank) {
  const Sha256Digest digest = sha256(rank);
  uint32_t hash = 0;
  std::memcpy(&hash, digest.data(), sizeof hash);
  return Claim{static_cast<uint32_t>(process)} << 32 | hash;
}

pid_t process_of(Claim claim) { return static_cast<pid_t>(claim >> 32); }

bool is_alive(pid_t process) { return kill(process, 0) == 0 || errno == EPERM; }

// Shared with all processes that are forked from now on; null if there was no memory for it.
std::atomic<Claim>* map_shared_claim() {
  void* memory = mmap(nullptr, sizeof(std::atomic<Claim>), PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return memory == MAP_FAILED ? nullptr : new (memory) std::atomic<Claim>(0);
}

// Made when the library is loaded: a process may be forked before this one calls init.
std::atomic<Claim>* const shared_claim = map_shared_claim();

// Returns the process that holds the rank; 0 if this one has it now.
pid_t take_shared_claim(const std::string& rank) {
  if (shared_claim == nullptr) return 0;
  const Claim own = claim_of(getpid(), rank);
  Claim current = shared_claim->load();
  while (current != own) {
    const pid_t holder = process_of(current);
    if (holder != 0 && holder != getpid() && is_alive(holder)) {
      // Where it is a rank of another job, this process's claim is kept in its environment alone.
      return current == claim_of(holder, rank) ? holder : 0;
    }
    if (shared_claim->compare_exchange_weak(current, own)) break;
  }
  return 0;
}

void give_back_shared_claim() {
  if (shared_claim == nullptr) return;
  Claim current = shared_claim->load();
  if (process_of(current) == getpid()) shared_claim->compare_exchange_strong(current, 0);
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

Status refusal(const std::string& how, pid_t holder, int rank) {
  return Status::invalid_argument(
      "this process was " + how + " process " + std::to_string(holder) + ", which is rank " +
      std::to_string(rank) +
      " of the job; it must not call init, since it would take that rank's place and its data "
      "would enter the sums of all ranks. Let the rank itself call init and all operations. Where "
      "a child only needs to know its parent's rank, PERSEUS_RANK and PERSEUS_SIZE tell it; in a "
      "forked child, rank() and size() do so without init. To work alone, set PERSEUS_RANK=0 and "
      "PERSEUS_SIZE=1 in the child before init");
}

}  // namespace

Status take_rank(const LaunchEnvironment* told) {
  const auto launch = told != nullptr ? Result<LaunchEnvironment>(*told)
                                      : read_launch_environment([] { return true; });
  // Malformed variables are reported by the bootstrap.
  if (!launch.is_ok() || launch.value().kind == LaunchEnvironment::Kind::kSingle) return {};
  const std::string rank = describe(launch.value());
  const Holder holder = current_holder();
  if (holder.process != 0 && holder.process != getpid() && holder.rank == rank) {
    return refusal("started by", holder.process, launch.value().rank);
  }
  if (const pid_t relative = take_shared_claim(rank); relative != 0) {
    return refusal("forked from or beside", relative, launch.value().rank);
  }
  const std::string value = std::to_string(getpid()) + " " + rank;
  setenv(kRankHeldBy, value.c_str(), 1);
  return {};
}

void give_back_rank() {
  give_back_shared_claim();
  if (current_holder().process == getpid()) unsetenv(kRankHeldBy);
}

}  // namespace perseus
