#include "communicator.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "detached_thread.h"
#include "device.h"
#include "failure.h"
#include "settings.h"
#include "simulator.h"

namespace perseus::standin {
namespace {

// Which launch may run on a device that runs one at a time.
struct DeviceTurns {
  uint64_t taken = 0;
  uint64_t next = 0;
  std::set<uint64_t> left_early;  // aborted before their turn

  void leave(uint64_t ticket) {
    left_early.insert(ticket);
    while (left_early.erase(next) == 1) ++next;
  }
};

// Shared by all communicators of the process. One lock is enough, since speed does not matter here.
struct Shared {
  std::mutex mutex;  // guards all communicators' members too
  std::condition_variable changed;
  std::map<int, DeviceTurns> turns;  // by device
};

Shared& shared() {
  static Shared& shared = *new Shared;
  return shared;
}

// Ranks exchange this when they meet.
struct Greeting {
  int ranks;
  CuUuid device;
};

// Ranks exchange this before each launch.
struct Announcement {
  char text[256];
  size_t hash;  // of the whole text
};

Announcement announcement_of(const std::string& text) {
  Announcement announcement{};
  text.copy(announcement.text, sizeof(announcement.text) - 1);
  announcement.hash = std::hash<std::string>{}(text);
  return announcement;
}

NcclResult result_of(Mesh::End end) {
  if (end == Mesh::End::kDone) return kNcclSuccess;
  return end == Mesh::End::kLost ? kNcclRemoteError : kNcclSystemError;
}

}  // namespace

Communicator::Communicator(std::string name, int rank, int ranks, int device, bool is_blocking)
    : name(std::move(name)),
      rank(rank),
      ranks(ranks),
      device(device),
      is_blocking(is_blocking),
      mesh_(this->name, rank, ranks) {}

void Communicator::start() {
  start_detached([self = shared_from_this()] {
    const NcclResult result = self->connect();
    std::lock_guard lock(shared().mutex);
    self->error_ = result;
    self->is_started_ = true;
    shared().changed.notify_all();
  });
}

NcclResult Communicator::connect() {
  if (const NcclResult error = result_of(mesh_.connect())) return error;
  std::vector<Greeting> all;
  if (const NcclResult error = share(Greeting{ranks, uuid_of(device)}, all)) return error;
  std::set<std::string> devices;
  for (const Greeting& each : all) {
    if (each.ranks != ranks) {
      fail("rank " + std::to_string(rank) + " has a communicator of " + std::to_string(ranks) +
           ", another rank one of " + std::to_string(each.ranks));
    }
    devices.emplace(each.device.bytes, sizeof(each.device.bytes));
  }
  // NCCL cannot have two ranks on one device.
  return devices.size() == all.size() ? kNcclSuccess : kNcclInvalidUsage;
}

NcclResult Communicator::share_bytes(const void* mine, void* all, size_t bytes) {
  std::vector<Transfer> sends;
  std::vector<Transfer> receives;
  for (int peer = 0; peer < ranks; ++peer) {
    if (peer == rank) continue;
    sends.push_back({peer, const_cast<void*>(mine), bytes});
    receives.push_back(
        {peer, static_cast<std::byte*>(all) + bytes * static_cast<size_t>(peer), bytes});
  }
  return result_of(mesh_.exchange(sends, receives));
}

NcclResult Communicator::wait_for_start() {
  std::unique_lock lock(shared().mutex);
  shared().changed.wait(lock, [&] { return is_started_ && !is_dividing_; });
  return error_;
}

NcclResult Communicator::error() {
  std::lock_guard lock(shared().mutex);
  if (!is_started_ || is_dividing_) return kNcclInProgress;
  if (error_ == kNcclSuccess && is_finalized_ && done_ < launched_) return kNcclInProgress;
  return error_;
}

void Communicator::launch(Collective collective, CuStream stream) {
  const auto found = Simulator::get().stream(stream, device);
  if (!found) fail(std::string(collective.name) + " on a stream that is none");
  if (found->device != device) {
    fail(std::string(collective.name) + " of a communicator of device " + std::to_string(device) +
         " on a stream of device " + std::to_string(found->device));
  }
  const CollectiveFault fault = injected_collective();
  // The lock is held, so that turns come in the order in which streams get the work.
  std::lock_guard lock(shared().mutex);
  const Turn turn{launched_++, shared().turns[device].taken++};
  const char* const name = collective.name;
  const std::vector<Access> accesses = collective.accesses(rank, ranks);
  Simulator::get().launch(*found, name, accesses,
                          [self = shared_from_this(), collective = std::move(collective), turn,
                           fault] { self->run(collective, turn, fault); });
}

void Communicator::run(const Collective& collective, Turn turn, CollectiveFault fault) {
  Mesh::End end = Mesh::End::kDone;
  {
    std::unique_lock lock(shared().mutex);
    DeviceTurns& turns = shared().turns[device];
    shared().changed.wait(lock, [&] {
      const bool has_device = !settings().one_collective || turns.next == turn.ticket;
      return is_aborted_ || (done_ == turn.launch && has_device);
    });
    if (is_aborted_) end = Mesh::End::kAborted;
    if (fault.error != 0) error_ = fault.error;
  }
  if (end == Mesh::End::kDone && !fault.hangs) {
    end = compare(collective);
    if (end == Mesh::End::kDone) end = collective.run(mesh_, rank, ranks);
  }
  std::unique_lock lock(shared().mutex);
  if (end == Mesh::End::kLost && error_ == kNcclSuccess) error_ = kNcclRemoteError;
  if (end == Mesh::End::kLost || fault.hangs) {
    shared().changed.wait(lock, [&] { return is_aborted_; });
  }
  ++done_;
  shared().turns[device].leave(turn.ticket);
  shared().changed.notify_all();
}

// With real NCCL, ranks that launch different calls would hang or reduce garbage.
Mesh::End Communicator::compare(const Collective& collective) {
  std::vector<Announcement> mine(static_cast<size_t>(ranks));
  std::vector<Announcement> theirs(static_cast<size_t>(ranks));
  std::vector<Transfer> sends;
  std::vector<Transfer> receives;
  for (int peer = 0; peer < ranks; ++peer) {
    if (peer == rank || !collective.involves(peer)) continue;
    const auto at = static_cast<size_t>(peer);
    mine[at] = announcement_of(collective.description(rank, peer));
    sends.push_back({peer, &mine[at], sizeof(Announcement)});
    receives.push_back({peer, &theirs[at], sizeof(Announcement)});
  }
  const Mesh::End end = mesh_.exchange(sends, receives);
  if (end != Mesh::End::kDone) return end;
  for (const Transfer& each : sends) {
    const auto at = static_cast<size_t>(each.peer);
    if (mine[at].hash == theirs[at].hash) continue;
    fail("rank " + std::to_string(rank) + " launched " + mine[at].text + ", rank " +
         std::to_string(each.peer) + " launched " + theirs[at].text);
  }
  return end;
}

void Communicator::finalize() {
  {
    std::lock_guard lock(shared().mutex);
    is_finalized_ = true;
  }
  if (is_blocking) wait_for_work();
}

void Communicator::wait_for_work() {
  std::unique_lock lock(shared().mutex);
  shared().changed.wait(lock, [&] { return is_started_ && done_ == launched_; });
}

void Communicator::divide(const char* call,
                          std::function<NcclResult(const std::string& name)> make) {
  std::lock_guard lock(shared().mutex);
  if (!is_started_ || is_dividing_ || done_ < launched_) {
    fail(std::string(call) + " of a communicator on which something is under way");
  }
  is_dividing_ = true;
  start_detached([self = shared_from_this(), make = std::move(make),
                  part = name + "d" + std::to_string(++divided_) + "."] {
    const NcclResult result = make(part);
    std::lock_guard lock(shared().mutex);
    if (self->error_ == kNcclSuccess) self->error_ = result;
    self->is_dividing_ = false;
    shared().changed.notify_all();
  });
}

std::string Communicator::next_shrink(const std::string& without) {
  std::lock_guard lock(shared().mutex);
  return without + "." + std::to_string(++shrunk_[without]);
}

void* Communicator::register_buffer(const void* buffer, size_t bytes) {
  std::lock_guard lock(shared().mutex);
  auto* const registered = reinterpret_cast<void*>(++registrations_);
  const auto begin = reinterpret_cast<uintptr_t>(buffer);
  registered_[registered] = {begin, begin + bytes};
  return registered;
}

bool Communicator::deregister_buffer(void* registered) {
  std::lock_guard lock(shared().mutex);
  if (done_ < launched_) fail("memory is deregistered while collectives are under way");
  return registered_.erase(registered) > 0;
}

bool Communicator::is_registered(const void* bytes, size_t count) {
  std::lock_guard lock(shared().mutex);
  const auto begin = reinterpret_cast<uintptr_t>(bytes);
  return std::any_of(registered_.begin(), registered_.end(), [&](const auto& each) {
    return each.second.begin <= begin && begin + count <= each.second.end;
  });
}

bool Communicator::has_registered() {
  std::lock_guard lock(shared().mutex);
  return !registered_.empty();
}

void Communicator::abort() {
  std::lock_guard lock(shared().mutex);
  is_aborted_ = true;
  mesh_.abort();
  shared().changed.notify_all();
}

}  // namespace perseus::standin
