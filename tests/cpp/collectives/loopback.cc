#include "collectives/loopback.h"

#include <algorithm>
#include <chrono>
#include <cstring>

namespace perseus {

class LoopbackLink : public Link {
 public:
  LoopbackLink(LoopbackWorld& world, int self, int peer) : Link(peer), world_(world), self_(self) {}

 private:
  void start_send(Transfer& transfer) override { world_.begin(self_, peer(), transfer, true); }
  void start_receive(Transfer& transfer) override { world_.begin(peer(), self_, transfer, false); }

  LoopbackWorld& world_;
  int self_;
};

namespace {

class Outcome final : public TaskObserver {
 public:
  void task_finished(const Status& status) override {
    status_ = status;
    is_finished_ = true;
  }
  bool is_finished() const { return is_finished_; }
  const Status& status() const { return status_; }

 private:
  Status status_;
  bool is_finished_ = false;
};

}  // namespace

LoopbackWorld::LoopbackWorld(std::vector<int> ranks_on_host, uint64_t seed,
                             const std::vector<int>& cache_of)
    : cache_of_(cache_of), random_(seed) {
  std::vector<int> host_of;
  for (size_t host = 0; host < ranks_on_host.size(); ++host) {
    host_of.insert(host_of.end(), ranks_on_host[host], static_cast<int>(host));
  }
  const int size = static_cast<int>(host_of.size());
  held_.resize(size);
  for (int rank = 0; rank < size; ++rank) {
    std::vector<Link*> links;
    for (int peer = 0; peer < size; ++peer) {
      if (peer == rank) {
        links.push_back(nullptr);
        continue;
      }
      links_.push_back(std::make_unique<LoopbackLink>(*this, rank, peer));
      links.push_back(links_.back().get());
    }
    groups_.push_back(make_group(rank, std::move(links), host_of, cache_of));
  }
  loop_.add_poller(this);
}

LoopbackWorld::~LoopbackWorld() { loop_.remove_poller(this); }

std::vector<Status> LoopbackWorld::run(std::vector<Task> tasks) {
  std::vector<Outcome> outcomes(tasks.size());
  for (size_t i = 0; i < tasks.size(); ++i) std::move(tasks[i]).start(&outcomes[i]);
  int idle_turns = 0;
  const auto is_finished = [](const Outcome& outcome) { return outcome.is_finished(); };
  while (!std::all_of(outcomes.begin(), outcomes.end(), is_finished)) {
    idle_turns = loop_.run_once(std::chrono::milliseconds(0)) ? 0 : idle_turns + 1;
    if (idle_turns == 100) {
      violation("deadlock: nothing can move and not all ranks are done");
      // Ends the tasks, whose transfers this world still holds.
      failure_ = Status::internal("deadlock");
      fail_everything();
    }
  }
  if (!messages_.empty()) violation("a message was never received");
  std::vector<Status> statuses;
  for (const Outcome& outcome : outcomes) statuses.push_back(outcome.status());
  return statuses;
}

void LoopbackWorld::fail_after(int messages, Status why) {
  messages_until_failure_ = messages;
  failure_ = std::move(why);
  if (messages == 0) fail_everything();
}

std::vector<std::string> LoopbackWorld::violations() const { return violations_; }

void LoopbackWorld::violation(std::string what) {
  if (violations_.size() < 5) violations_.push_back(std::move(what));
}

void LoopbackWorld::begin(int from, int to, Transfer& transfer, bool is_send) {
  if (messages_until_failure_ == 0) {
    transfer.finish(loop_, failure_);
    return;
  }
  if (transfer.bytes == 0) violation("a message of no bytes");
  Message& message =
      messages_[{from, to, transfer.tag.operation, transfer.tag.shard, transfer.tag.step}];
  Transfer*& side = is_send ? message.send : message.receive;
  if (side != nullptr || (is_send && message.is_early)) {
    violation("step " + std::to_string(transfer.tag.step) + " is used twice from rank " +
              std::to_string(from) + " to rank " + std::to_string(to));
    transfer.finish(loop_, Status::internal("a tag is used twice"));
    return;
  }
  side = &transfer;
  message.from = from;
  message.to = to;
  hold(is_send ? from : to, transfer, is_send);
}

// Memory given to a transfer must not be given to another that writes it.
void LoopbackWorld::hold(int rank, const Transfer& transfer, bool is_send) {
  Held held{is_send ? transfer.source : transfer.target, nullptr, !is_send};
  uint64_t bytes = transfer.bytes;
  if (transfer.reduction != nullptr) {
    bytes = bytes / transfer.reduction->arriving_size * transfer.reduction->accumulator_size;
  }
  held.end = held.begin + bytes;
  for (const auto& [other, memory] : held_[rank]) {
    const bool overlaps = held.begin < memory.end && memory.begin < held.end;
    if (overlaps && (held.is_written || memory.is_written)) {
      violation("rank " + std::to_string(rank) + " gave the same memory to two transfers");
    }
  }
  held_[rank][&transfer] = held;
}

void LoopbackWorld::release(int rank, const Transfer* transfer) { held_[rank].erase(transfer); }

// Delivers one random piece. Returns whether the message is complete.
bool LoopbackWorld::deliver(Message& message) {
  if (message.send != nullptr && message.receive == nullptr) {
    // A link may accept a message that is not awaited yet.
    if (random_() % 4 != 0) return false;
    message.early_copy.assign(message.send->source, message.send->source + message.send->bytes);
    message.is_early = true;
    release(message.from, message.send);
    std::exchange(message.send, nullptr)->finish(loop_, Status::ok());
    return false;
  }
  if (message.receive == nullptr || (message.send == nullptr && !message.is_early)) return false;

  Transfer& receive = *message.receive;
  const uint64_t bytes = message.is_early ? message.early_copy.size() : message.send->bytes;
  if (bytes != receive.bytes) violation("sizes of a message differ");
  const std::byte* source = message.is_early ? message.early_copy.data() : message.send->source;
  const uint64_t unit = receive.reduction != nullptr ? receive.reduction->arriving_size : 1;
  const uint64_t units_left = (bytes - message.delivered) / unit;
  const bool all_at_once = random_() % 2 == 0;
  const uint64_t units = all_at_once ? units_left : 1 + random_() % units_left;
  if (receive.reduction != nullptr) {
    const uint64_t done = message.delivered / unit * receive.reduction->accumulator_size;
    receive.reduction->kernel(receive.target + done, source + message.delivered, units);
  } else {
    std::memcpy(receive.target + message.delivered, source + message.delivered, units);
  }
  message.delivered += units * unit;
  if (message.delivered < bytes) return false;

  if (groups_[0].host_of[message.from] != groups_[0].host_of[message.to]) {
    bytes_between_hosts_ += bytes;
  }
  if (!cache_of_.empty() && cache_of_[message.from] != cache_of_[message.to]) {
    bytes_between_caches_ += bytes;
  }
  release(message.to, message.receive);
  receive.finish(loop_, Status::ok());
  if (message.send != nullptr) {
    release(message.from, message.send);
    message.send->finish(loop_, Status::ok());
  }
  return true;
}

bool LoopbackWorld::poll() {
  if (messages_.empty()) return false;
  bool moved = false;
  for (auto it = messages_.begin(); it != messages_.end();) {
    // Half of the messages that could move wait for a later turn.
    Message& message = it->second;
    const bool is_ready =
        message.send != nullptr || (message.is_early && message.receive != nullptr);
    moved |= is_ready;
    if (is_ready && random_() % 2 == 0 && deliver(message)) {
      it = messages_.erase(it);
      if (messages_until_failure_ > 0 && --messages_until_failure_ == 0) {
        fail_everything();
        return true;
      }
    } else {
      ++it;
    }
  }
  return moved;
}

void LoopbackWorld::fail_everything() {
  messages_until_failure_ = 0;
  for (auto& [key, message] : messages_) {
    if (message.send != nullptr) message.send->finish(loop_, failure_);
    if (message.receive != nullptr) message.receive->finish(loop_, failure_);
  }
  messages_.clear();
  for (auto& rank : held_) rank.clear();
}

}  // namespace perseus
